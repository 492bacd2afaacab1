"""Data that cannot be learnt from: refused with its file, line and column; what is only odd is counted and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapler.config import DataSettings
from adapler.data.load import Known, load_dataset
from adapler.errors import BadInput
from adapler.problems import REGRESSION, SINGLE

FEW = "text,stars\na,x\nb,y\n"


def refusal(source: Path, seed: int = 0, known: Known | None = None, **settings: Any) -> str:
    with pytest.raises(BadInput) as caught:
        load_dataset(DataSettings(source=str(source), label="stars", **settings), seed, known)
    return str(caught.value)


def write(folder: Path, name: str, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("label", ["positive", "1"])
@pytest.mark.parametrize("folder", ["sst2", "mine"])
def test_one_class_is_refused_also_under_the_name_of_a_task(tmp_path: Path, folder: str, label: str) -> None:
    file = write(tmp_path / folder, "train.csv", f"text,stars\na,{label}\nb,{label}\n")
    message = refusal(tmp_path / folder)
    assert message.startswith(f"{file} line 2: column 'stars' holds '{label}', as do all other rows; ")
    assert "at least two" in message


def test_one_class_is_refused_for_a_model_that_knows_more(tmp_path: Path) -> None:
    file = write(tmp_path, "train.csv", "text,stars\na,x\nb,x\n")
    assert f"{file} line 2: column 'stars'" in refusal(tmp_path, known=Known(("x", "y"), SINGLE))


def test_one_class_is_refused_where_chance_left_no_other(tmp_path: Path) -> None:
    file = write(tmp_path, "train.csv", "text,stars\n" + "a,x\n" * 50 + "b,y\n")
    message = refusal(file, train_limit=2)
    assert message.startswith(f"{file}: column 'stars' holds the same label in all 2 examples") and "train_limit" in message


def test_an_unknown_label_names_its_column(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", FEW)
    file = write(tmp_path, "dev.csv", "text,stars\na,x\nb,z\n")
    assert refusal(tmp_path) == f"{file} line 3: column 'stars' holds 'z', a label not known to train, which has x, y"


def test_a_quantity_that_is_none_names_its_column(tmp_path: Path) -> None:
    file = write(tmp_path, "train.csv", "text,stars\na,0.5\nb,much\n")
    message = refusal(tmp_path, problem=REGRESSION)
    assert message.startswith(f"{file} line 3: column 'stars' holds 'much', which is no number")
