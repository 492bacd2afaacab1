"""docs/backbones.md: its table is the table in the code, and what it says about adding a family works as written."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import adapler.backbones as backbones
from adapler.backbones import BACKBONES
from adapler.classifier import Classifier
from adapler.errors import BadModel
from tests import families
from tests.contract.batches import Setup, family_setup
from tests.contract.test_engine_equalities import (
    check_engine_equals_transformers,
    check_packed_equals_padded_equals_alone,
    check_steepest_soft_equals_hard,
)
from tests.contract.test_families import check_costs_what_torch_counts, check_removal_is_masking_in_transformers
from tests.tiny import tiny_texts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")
NEWCOMER = "roberta-prelayernorm"


def blocks() -> list[str]:
    """The page's pieces of Python, in order: the file, the line of the table, the line of the tests."""
    return re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def rows() -> list[list[str]]:
    """The cells of the support table."""
    table = PAGE.partition("| `model_type` |")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines()[2:] if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_the_support_table_is_the_table_of_backbones() -> None:
    assert [row[0] for row in rows()] == list(BACKBONES)
    for row in rows():
        file = inspect.getsourcefile(BACKBONES[row[0]])
        assert file is not None and Path(file).samefile(ROOT / "src" / "adapler" / row[-1]), row[0]


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The family of the page, added as the page says: a file, a line, and a tiny model for the tests."""
    view, line, settings = blocks()
    named = re.search(r"`backbones/(\w+\.py)`:\n", PAGE)
    assert named is not None
    (tmp_path / named[1]).write_text(view, encoding="utf-8")
    monkeypatch.delitem(sys.modules, f"{backbones.__name__}.{Path(named[1]).stem}", raising=False)
    monkeypatch.setattr(backbones, "__path__", [*backbones.__path__, str(tmp_path)])
    monkeypatch.setattr(BACKBONES, "_entries", {**BACKBONES._entries, **ast.literal_eval(f"{{{line}}}")})
    monkeypatch.setattr(families, "SETTINGS", {**families.SETTINGS, **ast.literal_eval(f"{{{settings}}}")})
    assert set(families.SETTINGS) == set(BACKBONES) and NEWCOMER in BACKBONES
    return NEWCOMER


CHECKS: list[tuple[Callable[[Setup], None], torch.dtype]] = [
    (check_engine_equals_transformers, torch.float32),
    (check_removal_is_masking_in_transformers, torch.float64),
    (check_packed_equals_padded_equals_alone, torch.float64),
    (check_steepest_soft_equals_hard, torch.float64),
    (check_costs_what_torch_counts, torch.float32),
]


def test_a_family_added_as_the_page_says_keeps_the_contract(newcomer: str, tmp_path: Path) -> None:
    for check, dtype in CHECKS:
        check(family_setup(newcomer, dtype=dtype))
    made = families.tiny_classifier_of(newcomer, layers=2)
    made.save_pretrained(tmp_path / "model")
    texts = tiny_texts(6)
    after = Classifier.from_pretrained(tmp_path / "model")(texts)
    assert [answer.kept for answer in after] == [answer.kept for answer in made(texts)]


def test_a_family_is_added_from_outside_as_page_and_error_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _, settings = blocks()
    said = re.search(r"`adapler\.backbones\.BACKBONES\.add(\(.*?\))`", PAGE)
    assert said is not None
    name, target = ast.literal_eval(said[1])
    monkeypatch.setattr(families, "SETTINGS", {**families.SETTINGS, **ast.literal_eval(f"{{{settings}}}")})
    with pytest.raises(BadModel) as caught:
        backbones.view(families.tiny_model(name))
    assert "adapler.backbones.BACKBONES.add(MODEL_TYPE, " in str(caught.value)
    shown = re.search(r"as adapler/(\S+\.py) is", str(caught.value))
    assert shown is not None and (Path(backbones.__file__).parents[1] / shown[1]).is_file()  # so every wheel has it
    (tmp_path / f"{target.partition(':')[0]}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries))
    BACKBONES.add(name, target)
    check_engine_equals_transformers(family_setup(name, dtype=torch.float32))
    families.tiny_classifier_of(name, layers=2).save_pretrained(tmp_path / "model")
    assert Classifier.from_pretrained(tmp_path / "model")("a good film").label


def test_leaving_out_a_step_would_be_noticed(newcomer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BACKBONES[newcomer], "part", lambda self, path: torch.nn.Identity() if path == "LayerNorm" else _part(self, path)
    )
    with pytest.raises(AssertionError):
        check_engine_equals_transformers(family_setup(newcomer, dtype=torch.float32))


def _part(self: object, path: str) -> object:
    from adapler.backbones.bert import Bert

    return Bert.part(self, path)  # type: ignore[arg-type]
