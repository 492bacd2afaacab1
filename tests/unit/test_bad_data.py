"""Data that cannot be learnt from: refused with its file, line and column; what is only odd is counted and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapler.config import DataSettings
from adapler.data.annotated import read_documents
from adapler.data.load import Known, load_dataset, read_split
from adapler.errors import BadInput
from adapler.problems import MULTI, REGRESSION, SINGLE

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


@pytest.mark.parametrize("missing", ["", "  ", "nan", "NaN"])
@pytest.mark.parametrize("labels", [("x", "y"), ("0", "1"), ("0.5", "1.5")])
def test_a_missing_label_of_a_table_is_no_class(tmp_path: Path, labels: tuple[str, str], missing: str) -> None:
    file = write(tmp_path, "train.csv", f"text,stars\na,{labels[0]}\nb,{labels[1]}\nc,{missing}\n")
    message = refusal(tmp_path)
    assert message.startswith(f"{file} line 4: column 'stars' ") and "expected a label" in message


@pytest.mark.parametrize("missing", [None, float("nan"), "", "NaN", [""], ["x", "nan"], ["x", None]])
def test_a_missing_label_of_json_is_no_class(tmp_path: Path, missing: Any) -> None:
    rows = [{"text": text, "stars": ["x"] if isinstance(missing, list) else text} for text in "ab"]
    file = write(tmp_path, "train.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, {"text": "c", "stars": missing}]))
    message = refusal(tmp_path)
    assert message.startswith(f"{file} line 3: column 'stars' ") and "expected a label" in message


def test_no_label_at_all_is_an_answer_where_a_text_may_have_several(tmp_path: Path) -> None:
    file = write(tmp_path, "train.csv", "text,stars\na,x|y\nb,\nc,y\n")
    write(tmp_path, "dev.csv", "text,stars\na,x\n")
    made = load_dataset(DataSettings(source=str(tmp_path), label="stars", problem=MULTI), 0)
    assert made.train.labels[1] == (0.0, 0.0)
    write(tmp_path, "train.csv", "text,stars\na,x|y\nb,NaN\nc,y\n")
    assert refusal(tmp_path, problem=MULTI).startswith(f"{file} line 3: column 'stars' ")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("row", [("", "d"), ("c", ""), (" ", "d")])
def test_an_empty_text_is_refused_in_every_split(tmp_path: Path, split: str, row: tuple[str, str]) -> None:
    for each in ("train", "dev", "test"):
        more = f"{row[0]},{row[1]},x\n" if each == split else ""
        write(tmp_path, f"{each}.csv", f"text,text_pair,stars\na,b,x\nb,c,y\n{more}")
    column = "text_pair" if row[0] == "c" else "text"
    words = f"{tmp_path / split}.csv line 4: column '{column}' is empty, expected a text"
    assert refusal(tmp_path).startswith(words)
    with pytest.raises(BadInput, match=words):
        read_split(DataSettings(source=str(tmp_path), label="stars"), split, ["x", "y"])


@pytest.mark.parametrize("column", ["text", "text_pair", "stars"])
def test_what_pandas_has_no_value_for_is_refused(tmp_path: Path, column: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["a", "b", "c"], "text_pair": ["a", "b", "c"], "stars": [1, 0, 1]})
    table[column] = table[column].astype(object)
    table.loc[1, column] = float("nan")
    table.to_csv(tmp_path / "mine.csv", index=False)
    table.to_parquet(tmp_path / "mine.parquet")
    table.to_json(tmp_path / "mine.jsonl", orient="records", lines=True)
    for name, place in (("mine.csv", "line 3"), ("mine.parquet", "row 2"), ("mine.jsonl", "line 2")):
        assert refusal(tmp_path / name).startswith(f"{tmp_path / name} {place}: column '{column}' ")


def test_texts_that_are_numbers_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "train.jsonl", '{"text": "a", "stars": "x"}\n{"text": NaN, "stars": "y"}\n')
    assert refusal(tmp_path).startswith(f"{file} line 2: column 'text' holds float nan, expected a string")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"words": ["a"], "rationale": [1], "label": "nan"}, "label"),
        ({"words": ["a"], "rationale": [1], "label": ""}, "label"),
        ({"words": [], "rationale": [], "label": 1}, "words"),
        ({"words": ["a"], "rationale": [1], "label": 1, "text_pair": ""}, "text_pair"),
    ],
)
def test_annotated_documents_keep_the_same_rules(tmp_path: Path, row: dict[str, Any], column: str) -> None:
    file = write(tmp_path, "dev.jsonl", json.dumps(row) + "\n")
    with pytest.raises(BadInput, match=f"{file} line 1: column '{column}' "):
        read_documents(str(tmp_path), "dev")


@pytest.mark.parametrize("columns", ["text,gold", "body,gold", "body,gold,id"])
def test_a_missing_label_column_is_answered_with_its_flag(tmp_path: Path, columns: str) -> None:
    file = write(tmp_path, "train.csv", f"{columns}\n{columns}\n")
    message = refusal(tmp_path)
    assert message.startswith(f"{file}: no column 'stars'; there are: ") and message.endswith("Choose with --label")


def test_a_column_that_later_rows_lack_is_asked_for_in_every_row(tmp_path: Path) -> None:
    file = write(tmp_path, "train.jsonl", '{"text": "a", "stars": 1}\n{"text": "b", "gold": 0}\n')
    assert refusal(tmp_path) == (
        f"{file} line 2: no column 'stars'; there are: 'text', 'gold'; a column must be there in every row"
    )


def notes(source: Path, **settings: Any) -> tuple[str, ...]:
    return load_dataset(DataSettings(source=str(source), label="stars", **settings), 0).notes


def test_texts_in_two_splits_are_counted_for_every_two(tmp_path: Path) -> None:
    splits = {"train": "abcdefgh", "dev": "abcijk", "test": "abijkl"}
    for split, texts in splits.items():
        write(tmp_path, f"{split}.csv", "text,stars\n" + "".join(f"{t},{'xy'[i % 2]}\n" for i, t in enumerate(texts)))
    told = [
        "3 texts of dev are in train as well; its score is too good by them",
        "2 texts of test are in train as well; its score is too good by them",
        "5 texts of test are in dev as well; its score is too good by them",
    ]
    assert list(notes(tmp_path)) == told
    assert list(notes(tmp_path, test=False)) == told[:1]


def test_pairs_are_the_same_where_both_texts_are(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,text_pair,stars\na,b,x\nb,c,y\n")
    write(tmp_path, "dev.csv", "text,text_pair,stars\na,b,x\nb,a,x\n")
    assert notes(tmp_path) == ("1 texts of dev are in train as well; its score is too good by them",)


@pytest.mark.parametrize(("rare", "said"), [(3, True), (4, False)])
def test_an_imbalance_of_ten_offers_class_weights(tmp_path: Path, rare: int, said: bool) -> None:
    labels = ["x"] * 30 + ["y"] * rare
    write(tmp_path, "train.csv", "text,stars\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    write(tmp_path, "dev.csv", FEW)
    told = ("the commonest label has 30 examples, the rarest 3; --class-weights may help",) if said else ()
    assert notes(tmp_path) == told
    assert notes(tmp_path, class_weights=True) == ()
