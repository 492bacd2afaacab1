"""The pilot of Table 2 on a planted task: rows that read only chosen words; stopped and resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from adapler.cli import app
from adapler.errors import BadConfig, BadInput, Interrupted
from adapler.study import rationale as pilot
from adapler.study import rationale_texts
from adapler.study.places import read_results
from adapler.study.rationale import paired, run_pilot
from adapler.study.rationale_plan import RationalePlan, rationale_cells, read_rationale_plan
from adapler.study.rationale_texts import choosing_scores, gather, texts_of
from adapler.training.finetune import Finetune
from adapler.training.progress import Silent
from benchmarks.rationale_tables import pilot as pilot_page
from benchmarks.reader import main as write_reader_pairs
from tests.planted import write_annotated_data, write_tiny_encoder

ROWS = ["full", "human", "saliency", "attention_all", "attention_cls", "random"]


def plan_of(folder: Path, **changes: Any) -> dict[str, Any]:
    if not (folder / "encoder").exists():
        write_tiny_encoder(folder / "encoder")
        write_annotated_data(folder / "annotated")
    settings = {"data": {"max_length": 64}, "finetune": {"epochs": 5}}
    plan = {"tasks": ["annotated"], "data": str(folder), "rows": ROWS, "model": str(folder / "encoder"), "rates": [3e-3]}
    return {**plan, "settings": settings, **changes}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder around the pilot, and what the command printed."""
    folder = tmp_path_factory.mktemp("pilot")
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan_of(folder)))
    answer = CliRunner().invoke(app, ["study", "rationale", str(folder / "plan.yaml"), "--out", str(folder / "out")])
    assert answer.exit_code == 0, answer.output
    return folder, answer.stdout


def record(folder: Path, row: str) -> dict[str, Any]:
    (only,) = json.loads((folder / "out" / "results" / f"rationale-annotated-{row}-0.json").read_text())
    return dict(only)


def test_rows_are_records_on_the_same_documents_held_against_full_input(done: tuple[Path, str]) -> None:
    folder, _ = done
    full = record(folder, "full")
    for row in ROWS:
        found = record(folder, row)
        assert (found["kind"], found["variant"], found["n"], found["n_train"]) == ("rationale", row, 80, 300)
        assert found["score_full"] == full["score"]
        assert found["loss_points"] == pytest.approx(100 * (full["score"] - found["score"]))
        low, high = found["config"]["loss_points_95"]
        assert low <= found["loss_points"] <= high
        assert found["config"]["data"]["source"] == "annotated", "no path of this machine"
    assert full["flops_speedup"] == 1 and all(record(folder, row)["flops_speedup"] > 2 for row in ROWS[1:])
    speeds = [record(folder, row)["flops_speedup"] for row in ROWS[1:]]
    assert max(speeds) < 1.1 * min(speeds), "all of them read as many words"
    assert full["config"]["texts"] <= 80 and 1 / 3 <= full["config"]["majority"] < 0.5


def test_the_planted_word_is_found_by_people_and_saliency_not_by_lot(done: tuple[Path, str]) -> None:
    folder, _ = done
    score = {row: record(folder, row)["score"] for row in ROWS}
    assert score["full"] > 0.6 and score["human"] > 0.95, score  # a third by chance
    assert score["random"] < 0.65 < 0.8 < score["saliency"], score


def test_pairs_carry_their_interval(done: tuple[Path, str]) -> None:
    folder, _ = done
    pairs = json.loads((folder / "out" / "results" / "rationale-annotated-pairs.json").read_text())
    found = {row["variant"]: row for row in pairs}
    assert found["saliency - full"]["value"] == pytest.approx(-record(folder, "saliency")["loss_points"])
    low, high = found["saliency - random"]["config"]["interval_95"]
    assert 0 < low < found["saliency - random"]["value"] < high and found["saliency - random"]["n"] == 80


def test_tables_show_rows_and_pairs(done: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, printed = done
    assert "| annotated | human rationale | 1 |" in printed and "| annotated | saliency - full | 1 |" in printed
    monkeypatch.setattr(pilot, "best_full_length", lambda *_: pytest.fail("trained again"))
    again = ["study", "rationale", str(folder / "plan.yaml"), "--out", str(folder / "out")]
    assert CliRunner().invoke(app, again).stdout == printed
    assert "attention [CLS]" in CliRunner().invoke(app, [*again, "--format", "latex"]).stdout
    assert len(json.loads(CliRunner().invoke(app, [*again, "--json"]).stdout)) == len(ROWS) + len(pilot.PAIRS)
    listed = CliRunner().invoke(app, [*again, "--dry-run"]).stdout
    assert listed.count("done") == len(ROWS) and "to do" not in listed
    (folder / "other.yaml").write_text(yaml.safe_dump(plan_of(folder, positions="consecutive")))
    refused = CliRunner().invoke(app, ["study", "rationale", str(folder / "other.yaml"), "--out", str(folder / "out")])
    assert refused.exit_code == BadConfig.exit_code and "positions" in refused.stderr


def test_the_pages_table_is_made_of_the_records(done: tuple[Path, str]) -> None:
    folder, printed = done
    made = pilot_page(read_results(folder / "out", "rationale"))
    assert all(line in made for line in printed.splitlines() if line.startswith("| annotated"))
    assert made.splitlines()[-1].startswith("annotated: encoder, 300 training documents, ")


def test_a_cell_that_is_done_keeps_neither_snapshots_nor_weights(done: tuple[Path, str]) -> None:
    folder, _ = done
    left = {path.name for path in (folder / "out" / "cells" / "annotated-full-0").iterdir()}
    assert left == {"cell.json", "model", "scores"}
    assert {path.name for path in (folder / "out" / "cells" / "annotated-human-0").iterdir()} == {"cell.json"}


def test_a_pilot_that_was_stopped_goes_on_to_the_same_answers(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = done
    plan = RationalePlan.model_validate(plan_of(folder, rows=["full", "saliency"]))
    steps, step = 0, Finetune.step

    def stopping(self: Any, *args: Any) -> float:
        nonlocal steps
        steps += 1
        if steps in (20, 70):  # inside the first cell, then inside the second
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args)

    monkeypatch.setattr(Finetune, "step", stopping)
    for _ in range(2):
        with pytest.raises(Interrupted, match="goes on from here"):
            run_pilot(plan, tmp_path, Silent, lambda line: None)
    assert steps == 70 and (tmp_path / "cells" / "annotated-full-0" / "cell.json").exists()
    monkeypatch.setattr(rationale_texts, "explain", lambda *_: pytest.fail("scores computed again"))
    run_pilot(plan, tmp_path, Silent, lambda line: None)
    for row in ("full", "saliency"):
        own, other = (
            json.loads((out / "cells" / f"annotated-{row}-0" / "cell.json").read_text()) for out in (tmp_path, folder / "out")
        )
        assert own == other, row


def test_only_passage_words_are_chosen_as_many_as_people_marked(done: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = done
    write_annotated_data(tmp_path / "pairs", train=20, dev=4, test=4, pair=True)
    changes = {"tasks": ["pairs"], "data": str(tmp_path), "settings": {"data": {"max_length": 64, "train_limit": 12}}}
    plan = RationalePlan.model_validate(plan_of(folder, **changes))
    cells = {cell.row: cell for cell in rationale_cells(plan)}
    material = gather(plan, cells["full"])
    assert len(material.windows["train"]) == 12
    assert gather(plan, cells["saliency"]).windows["train"][3].text.tokens == material.windows["train"][3].text.tokens
    scores = choosing_scores(plan, material, folder / "out" / "cells" / "annotated-full-0" / "model", tmp_path / "scores")
    for row, explainer in (("human", None), ("saliency", "saliency"), ("attention_all", "rollout")):
        given = None if explainer is None else scores["test"][explainer]
        texts = texts_of(plan, cells[row], material.windows["test"], given)  # type: ignore[index]
        for window, text in zip(material.windows["test"], texts, strict=True):
            assert text.tokens[-5:] == ["what", "is", "it", "?", "[SEP]"], "question and answer stay"
            assert len(text.ids) == int(window.annotated.sum()) + 7, "special tokens, question, and as many words as marked"
            assert text.position is not None and (window.text.ids[text.position] == text.ids).all()


def test_a_limit_of_test_documents_leaves_none_of_the_passages_out(done: tuple[Path, str]) -> None:
    folder, _ = done
    whole, some = (
        gather(plan, rationale_cells(plan)[0])
        for plan in (RationalePlan.model_validate(plan_of(folder, **change)) for change in ({}, {"test_limit": 20}))
    )
    assert (whole.documents["test"], some.documents["test"]) == (80, 20)
    every = [window.text.tokens for window in whole.windows["test"]]
    places = [every.index(window.text.tokens) for window in some.windows["test"]]
    assert places == sorted(places) and places[0] == 0 and places[-1] == 79
    assert max(np.diff(places)) <= 5, "spread over the file"


def test_the_interval_of_a_pair_by_hand() -> None:
    one, other = np.array([[1.0, 1, 1, 0], [1, 1, 0, 0]]), np.array([[0.0, 1, 1, 0], [0, 1, 0, 0]])
    value, low, high = paired(one, other, range(4))
    assert value == 25.0 and low == 0.0 and 50 <= high <= 75  # one document of four, drawn 0 to 3 times
    assert paired(one, one, range(4)) == (0.0, 0.0, 0.0)
    # Documents that share a text are no more evidence than one of them: two texts, of which one makes the difference.
    assert paired(one, other, [0, 0, 1, 1])[1:] == (0.0, 50.0) and paired(one, other, [0] * 4) == (25.0, 25.0, 25.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": ["human"]}, "full"),
        ({"rows": ["full", "magic"]}, "rows"),
        ({"row": ["full"]}, "known: tasks"),
        ({"by_task": {"other": {}}}, "other"),
        ({"settings": {"finetune": {"epoch": 3}}}, "epochs"),
        ({"settings": {"finetune": {"lr": 1e-4}}}, "rates"),
        ({"settings": {"reduce": {"epochs": 3}}}, "sets `reduce`"),
        ({"rows": ["full", "human", "human"]}, "annotated-human-0"),
    ],
)
def test_a_wrong_plan_is_told(done: tuple[Path, str], tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan_of(done[0], **change)))
    with pytest.raises(BadConfig, match=words):
        read_rationale_plan(file)


def test_a_split_without_annotation_is_told(done: tuple[Path, str], tmp_path: Path) -> None:
    data = write_annotated_data(tmp_path / "bare", train=4, dev=2, test=2)
    rows = [json.loads(line) | {"rationale": None} for line in (data / "train.jsonl").read_text().splitlines()]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = RationalePlan.model_validate(plan_of(done[0], tasks=["bare"], data=str(tmp_path)))
    with pytest.raises(BadInput, match="no document of train is annotated"):
        run_pilot(plan, tmp_path / "out", Silent, lambda line: None)


def test_the_readers_pairs_have_the_text_first_and_two_labels(tmp_path: Path) -> None:
    given = {"qnli": ("who?", "she did", 1), "mnli": ("she did it", "somebody did", 0)}
    for task, (first, second, label) in given.items():
        (tmp_path / task).mkdir()
        row = json.dumps({"text": first, "text_pair": second, "label": label}) + "\n"
        for split in ("train", "dev", "test"):
            (tmp_path / task / f"{split}.jsonl").write_text(row)
    write_reader_pairs(tmp_path, tmp_path / "out", limit=5, seed=0)
    made = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert made == [
        {"text": "she did", "text_pair": "who?", "label": "false"},
        {"text": "she did it", "text_pair": "somebody did", "label": "true"},
    ]
