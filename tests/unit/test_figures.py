"""The drawn figures and the cost of explanations: made by the project's own functions, the same bytes twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adapler.records import Record
from benchmarks.explain_cost import EXPLAIN, PREDICT, READ, cost_records, page_record
from benchmarks.figures import DELTA, app, soft_removal_curves
from tests.tiny import saved_with_answers, tiny_classifier, tiny_texts


def test_soft_removal_is_steeper_with_lambda_and_meets_at_the_threshold() -> None:
    score, curves = soft_removal_curves()
    at = int(np.argmin(abs(score - DELTA)))
    assert list(curves) == [3.0, 9.0, 27.0, 81.0]
    for steepness, curve in curves.items():
        assert curve[at] == pytest.approx(-0.1 / steepness, abs=1e-6)  # both branches, the paper's beta of 0.1
        assert curve[0] == pytest.approx(-steepness - 0.1 / steepness, rel=1e-6)
        assert curve[-1] == 0 and (np.diff(curve) > -1e-12).all()


def test_the_figure_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        assert CliRunner().invoke(app, ["soft-removal", "--out", str(tmp_path / name)]).exit_code == 0
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert "<dc:date>" not in drawn and "<script" not in drawn


def test_layers_are_drawn_from_a_model_and_data(tmp_path: Path) -> None:
    saved_with_answers(tmp_path, 3)
    given = ["layers", str(tmp_path / "model"), "--data", str(tmp_path / "data.jsonl"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*given, "--first", "1", "--count", "2"])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["layers-data-1.svg", "layers-data-2.svg"]


def test_costs_are_of_the_same_texts_and_ratios_of_the_same_repeat() -> None:
    classifier = tiny_classifier()
    found = cost_records(Record(kind="explain", task="tiny"), classifier, tiny_texts(6), 0.1)
    assert [record.variant for record in found] == [PREDICT, EXPLAIN, READ]
    assert (found[0].config or {})["time_of_predicting"] == 1.0
    assert all(record.n == 6 and record.unit == "texts/s" and (record.value or 0) > 0 for record in found)


def test_a_page_is_of_texts_of_the_stated_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.explain_cost.TOKENS", 20)
    found = page_record(Record(kind="explain"), tiny_classifier(max_length=20), tiny_texts(20), 5, 0.1)
    assert found.variant == "page of 5 explanations of 20 tokens" and found.unit == "s" and (found.value or 0) > 0
