"""`adapler rationale` end to end on a tiny model and generated documents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from adapler import checkpoint
from adapler.backbones import view
from adapler.cli import app
from adapler.data.annotated import Cutter, Document, only_words, read_documents, text_groups
from adapler.data.text import TextEncoder
from adapler.engine import encode, pack
from adapler.errors import AdaplerError, BadConfig, BadInput, BadModel, MissingExtra, UnknownName
from adapler.evaluation.agreement import Agreement, Question, measure, records
from adapler.evaluation.explainers import DEFAULT
from adapler.evaluation.faithfulness import THRESHOLDS, faithfulness, probabilities
from adapler.evaluation.rationale import MEASURES
from adapler.methods.adapler import AdapLeR
from adapler.records import Record
from adapler.report.agreement import tallies, verdicts
from benchmarks.rationale_tables import agreement, pilot
from benchmarks.windows import main as write_windows
from tests.planted import write_annotated_data, write_tiny_encoder
from tests.tiny import WORDS, tiny_bert, tiny_reducer, tiny_tokenizer

LAYERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reduced model, a plain one of another seed, and annotated documents."""
    made = tmp_path_factory.mktemp("rationale")
    backbone = view(tiny_bert(layers=LAYERS))
    checkpoint.save(made / "model", backbone, tiny_tokenizer(), tiny_reducer(backbone, spread=2.0), 32)
    checkpoint.save(made / "plain", view(tiny_bert(layers=LAYERS, seed=1)), tiny_tokenizer(), None, 32)
    checkpoint.save(made / "shallow", view(tiny_bert(layers=2)), tiny_tokenizer(), None, 32)
    write_annotated_data(made / "data", train=2, dev=2, test=10, words=60)
    return made


def told(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["rationale", *arguments])


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    answer = told(str(folder / "model"), "--data", str(folder / "data"), "--out", str(folder / "out"), "--json", "--quiet")
    assert answer.exit_code == 0, answer.output
    return list(json.loads(answer.stdout))


def test_every_explainer_layer_and_measure_is_a_record_with_its_interval(rows: list[dict[str, Any]]) -> None:
    found = {(row["method"], row["layer"], row["metric"]): row for row in rows}
    whole = [name for name in MEASURES if name not in ("comprehensiveness", "sufficiency")]
    for name in DEFAULT:
        for layer in range(1, LAYERS + 1):
            assert all((name, layer, metric) in found for metric in whole)
        assert sum((name, layer, "sufficiency") in found for layer in range(1, LAYERS + 1)) == 1
    for row in rows:
        low, high = row["config"]["interval_95"]
        assert row["kind"] == "rationale" and row["n"] == 10 and low <= row["value"] + 1e-6 and row["value"] <= high + 1e-6
        assert row["spread"] == pytest.approx(high - low, abs=1e-5)
    assert all("counted" in row["config"] for row in rows if row["metric"] == "fpr_above_cp")
    for layer in range(1, LAYERS + 1):
        gap = found["attention", layer, "fpr"]["value"] - found["cp", layer, "fpr"]["value"]
        assert found["attention", layer, "fpr_above_cp"]["value"] == pytest.approx(gap, abs=1e-5)


def test_a_point_of_the_dial_is_measured_where_it_is_asked_for(folder: Path, rows: list[dict[str, Any]]) -> None:
    asked = (str(folder / "model"), "--data", str(folder / "data"), "--no-faithfulness", "--json", "--quiet")
    answer = told(*asked, "--point", "full")
    assert answer.exit_code == 0, answer.output
    found = {(row["method"], row["layer"], row["metric"]): row for row in json.loads(answer.stdout)}
    before = {(row["method"], row["layer"], row["metric"]): row["value"] for row in rows}
    last = "kept", LAYERS, "recall"
    assert found[last]["value"] == 1 > before[last]  # at full length nothing leaves
    assert found[last]["config"]["scale"] == 0 and "scale" not in rows[0]["config"]
    others = [key for key in found if key[0] in ("saliency", "rollout") and "cp" not in key[2]]
    assert others and all(found[key]["value"] == before[key] for key in others)
    refused = told(*asked, "--speedup", "2")
    assert refused.exit_code == 2 and "no operating points" in refused.output


def test_records_figure_and_page_are_written(folder: Path, rows: list[dict[str, Any]]) -> None:
    out = folder / "out"
    assert json.loads((out / "rationale.json").read_text()) == rows
    assert (out / "rationale.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "rationale.html").read_text()
    assert "<svg" in page and "<script" not in page and "does not count" in page
    assert all(f"{name}: " in page for name in MEASURES)


def test_the_pages_table_is_made_of_the_records(rows: list[dict[str, Any]]) -> None:
    table = agreement(rows)
    assert "| data | | layer 1 | layer 2 | layer 3 |" in table and "10 documents" in table
    value = next(row["value"] for row in rows if (row["method"], row["metric"], row["layer"]) == ("rollout", "map", 1))
    assert f"| rollout | mAP | {value:.3f} |" in table
    at_1_n = next(found for found in tallies(rows) if (found.name, found.level) == ("saliency", "fpr_above_cp"))
    held = f"{at_1_n.below} of {at_1_n.counted} ({at_1_n.sure})"
    assert f"| saliency | {held} |" in table
    again = [{**row, "seed": 1} for row in rows]
    faster = [{**row, "config": {**row["config"], "scale": 1.25}} for row in rows]
    assert f"| saliency | {held}, {held} |" in agreement([*rows, *again])
    assert agreement([*rows, *faster]) == f"{table}\n\n{table.replace('| data |', '| data, thresholds x 1.25 |', 1)}"
    assert agreement([]) == pilot([]) == "*not measured yet*"


def test_the_table_is_printed_and_says_what_was_cut(folder: Path) -> None:
    answer = told(
        str(folder / "model"), "--data", str(folder / "data"), "--explainers", "cp,saliency", "--window", "chunks",
        "--target", "gold", "--limit", "4", "--no-faithfulness", "--quiet",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    assert "4 documents" in answer.stdout and "chunks" in answer.stdout and "gold class" in answer.stdout
    assert "rollout" not in answer.stdout and "fpr_above_cp" in answer.stdout


def test_another_full_length_model_can_be_explained_and_a_plain_one_has_no_contributions(
    folder: Path, rows: list[dict[str, Any]]
) -> None:
    asked = ["--data", str(folder / "data"), "--no-faithfulness", "--json", "--quiet"]
    other = json.loads(told(str(folder / "model"), *asked, "--against", str(folder / "plain")).stdout)
    values = {(row["method"], row["layer"]): row["value"] for row in rows if row["metric"] == "map"}
    moved = {(row["method"], row["layer"]): row["value"] for row in other if row["metric"] == "map"}
    assert all(values["cp", layer] == moved["cp", layer] for layer in (1, 2, 3))
    assert values["saliency", 1] != moved["saliency", 1]
    plain = json.loads(told(str(folder / "plain"), *asked).stdout)
    assert {row["method"] for row in plain} == set(DEFAULT) - {"cp", "kept"}
    assert not any(row["metric"] in ("fpr_at_cp", "fpr_above_cp") for row in plain)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--window", "half"], BadConfig, "whole or chunks"),
        (["--target", "all"], BadConfig, "predicted or gold"),
        (["--explainers", "salience"], UnknownName, "saliency"),
        (["--explainers", ","], BadConfig, "no explainer"),
        (["--split", "other"], BadInput, "no other split"),
        (["--against", "nowhere"], BadModel, "nowhere"),
        (["--against", "{folder}/shallow"], BadInput, "has other layers than the model (2 instead of 3)"),
        (["--out", "{folder}/plain/config.json/x"], AdaplerError, "cannot write"),
        (["--explainers", "integrated_gradients"], MissingExtra, "adapler[captum]"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(folder: Path, arguments: list[str], error: Any, words: str) -> None:
    if error is MissingExtra:
        try:
            import captum  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("captum is installed")
    arguments = [argument.format(folder=folder) for argument in arguments]
    answer = told(str(folder / "model"), "--data", str(folder / "data"), "--quiet", *arguments)
    assert answer.exit_code == error.exit_code and words in answer.stderr, answer.output
    assert answer.stderr.count("\n") == 1


def test_the_claim_counts_only_layers_where_recall_is_enough() -> None:
    def row(layer: int, value: float, low: float, counted: bool) -> dict[str, Any]:
        about = {"interval_95": [low, 1.0], "counted": counted}
        return {"method": "saliency", "metric": "fpr_above_cp", "layer": layer, "value": value, "config": about}

    rows = [row(1, 0.2, 0.1, True), row(2, 0.2, -0.1, True), row(3, -0.2, -0.3, True), row(4, 0.5, 0.4, False)]
    line, *_ = verdicts(rows)
    assert "2 of 3 layers that count" in line and "interval in 1)" in line and "1 do not count" in line
    assert verdicts([{"method": "saliency", "metric": "fpr"}]) == []
    equal = [{**each, "metric": "fpr_at_annotated_above_cp"} for each in rows[:3]]
    assert "of as many words as people marked lies below that of saliency in 2 of 3" in verdicts(equal)[0]


def agreement_of(model: AdapLeR | None, documents: list[Document]) -> tuple[Agreement, Any]:
    backbone = view(tiny_bert(layers=LAYERS))
    cut = Cutter(tiny_tokenizer(), 32)(documents, [0] * len(documents))
    question = Question(("cp", "saliency") if model is not None else ("saliency",), faithful=False)
    return measure(backbone, None if model is None else (backbone, model), documents, cut, question), cut


def documents(count: int = 12) -> list[Document]:
    random = np.random.default_rng(4)
    made = []
    for number in range(count):
        words = tuple(random.choice(WORDS, 20).tolist())
        made.append(Document(str(number), words, tuple((random.random(20) < 0.3).astype(int).tolist()), 0))
    return [document for document in made if any(document.rationale)]


def test_a_model_that_removes_everything_does_not_win() -> None:
    backbone = view(tiny_bert(layers=LAYERS))
    greedy = tiny_reducer(backbone, eta=1.0, spread=60.0)  # at each layer nearly all score goes to one token
    given = documents()
    measured, _ = agreement_of(greedy, given)
    rows = records(measured, Record(kind="rationale"))
    last = {(row.method, row.metric): row for row in rows if row.layer == LAYERS}
    assert last["cp", "fpr"].value < 0.15 and last["cp", "recall"].value < 0.15, "it keeps next to nothing"  # type: ignore[operator]
    contest = last["saliency", "fpr_above_cp"]
    assert contest.value is not None and contest.value > 0.2, "by false positives alone it would look good"
    assert contest.config is not None and contest.config["counted"] is False
    chance = np.mean([np.mean(document.rationale) for document in given])
    assert last["cp", "map"].value == pytest.approx(chance, abs=0.1)
    assert last["cp", "fpr_at_annotated"].value == pytest.approx(chance, abs=0.1), "at equal numbers it is chance"
    assert last["saliency", "fpr_at_annotated_above_cp"].value == pytest.approx(0.0, abs=0.1)
    # Nor where there is no saliency to say that it finds too little.
    others = {"cp": measured.columns["cp"], "rollout": measured.columns["saliency"]}
    rows = records(replace(measured, columns=others), Record(kind="rationale"))
    assert not any((row.config or {})["counted"] for row in rows if row.metric == "fpr_above_cp")
    told = verdicts([row.to_dict() for row in rows])
    assert "0 of 0 layers that count" in told[0] and "saliency, which was not measured" in told[-1]


def test_means_leave_out_what_has_no_value() -> None:
    column = np.array([[0.5, np.nan, 0.25, np.nan]])
    (row,) = records(Agreement({"saliency": {"map": column}}, np.array([0, 1, 2, 2]), {}), Record(kind="rationale"))
    assert row.value == 0.375 and (row.config or {})["interval_95"] == [0.25, 0.5]


def test_questions_about_one_text_are_drawn_together() -> None:
    two = [Document("1", ("a", "b"), (1, 0), 0, "one?"), Document("2", ("a", "b"), (0, 1), 0, "another?")]
    assert text_groups([*two, Document("3", ("b", "a"), (1, 0), 0, "one?")]) == [0, 0, 1]


def test_intervals_are_over_texts_not_windows() -> None:
    one = {"ap": 0.0}
    column = np.array([[0.0] * 50 + [1.0] * 50])
    together = Agreement({"saliency": {"map": column}}, np.repeat([0, 1], 50), one)
    apart = Agreement({"saliency": {"map": column}}, np.arange(100), one)
    wide, narrow = (records(measured, Record(kind="rationale"))[0] for measured in (together, apart))
    assert wide.value == narrow.value == 0.5 and wide.spread == 1.0 and narrow.spread is not None and narrow.spread < 0.25


def test_comprehensiveness_and_sufficiency_by_hand(folder: Path) -> None:
    """Each by running the shortened texts one at a time."""
    backbone = view(tiny_bert(layers=LAYERS))
    found, _ = read_documents(str(folder / "data"), "test")
    windows = Cutter(tiny_tokenizer(), 32)(found, [0] * len(found)).windows[:3]
    random = np.random.default_rng(0)
    scores = [random.random(len(window.annotated)) for window in windows]
    whole = probabilities(backbone, [window.text for window in windows])
    without, alone = faithfulness(backbone, windows, scores, whole)

    def asked(text: Any) -> Any:
        with torch.no_grad():
            tokens, _ = pack(backbone, [text], torch.device("cpu"))
            return encode(backbone, tokens)[0][0].softmax(-1).numpy()

    for row, (window, words) in enumerate(zip(windows, scores, strict=True)):
        full = asked(window.text)
        kind = int(full.argmax())
        for column, threshold in enumerate(THRESHOLDS):
            k = max(1, int(np.ceil(threshold * len(words))))
            chosen = np.isin(np.arange(len(words)), np.argsort(-words)[:k])
            left, only = (only_words(window, marks, "consecutive") for marks in (~chosen, chosen))
            assert len(left.ids) + len(only.ids) == len(window.text.ids) + 2
            assert without[row, column] == pytest.approx(full[kind] - asked(left)[kind], abs=1e-5)
            assert alone[row, column] == pytest.approx(full[kind] - asked(only)[kind], abs=1e-5)
    # The same text with its words' original places would be read differently: what was taken out closes up.
    assert not np.allclose(
        asked(replace(only, position=np.flatnonzero(np.isin(window.word_of, [-1, *np.flatnonzero(chosen)])))), asked(only)
    )


def test_windows_are_written_to_train_on_as_they_are_measured(folder: Path, tmp_path: Path) -> None:
    write_tiny_encoder(tmp_path / "encoder")
    write_windows(folder / "data", tmp_path / "windows", model=str(tmp_path / "encoder"), max_length=32)
    documents, _ = read_documents(str(folder / "data"), "test")
    cut = Cutter(tiny_tokenizer(), 32)(documents, [0] * len(documents))
    rows = [json.loads(line) for line in (tmp_path / "windows" / "test.jsonl").read_text().splitlines()]
    assert len(rows) == len(cut.windows) and any(window.words != (0, window.words[1]) for window in cut.windows if window.words)
    for row, window in zip(rows, cut.windows, strict=True):
        assert TextEncoder(tiny_tokenizer(), 32)([row["text"]])[0].tokens == window.text.tokens
        assert row["label"] == documents[window.document].label
    assert {path.stem for path in (tmp_path / "windows").iterdir()} == {"train", "dev", "test"}


def test_faithfulness_of_a_model_that_counts_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier as sure as it has read of ten words: what it loses can be said without running it."""
    document = Document("1", ("the", "film", "was", "good") * 2 + ("and", "long"), (0, 0, 0, 1) * 2 + (0, 0), 0)
    (window,) = Cutter(tiny_tokenizer(), 32)([document], [0]).windows

    def sure(backbone: Any, texts: Any) -> Any:
        read = np.array([len(text.ids) - 2 for text in texts]) / 10
        return np.stack([read, 1 - read], axis=1)

    monkeypatch.setattr("adapler.evaluation.faithfulness.probabilities", sure)
    backbone = view(tiny_bert(layers=LAYERS))
    without, alone = faithfulness(backbone, [window], [np.arange(10.0)], sure(backbone, [window.text]))
    # 1, 5 and 10% of ten words are one word, 20% two, 50% five.
    assert without[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.5])
    assert alone[0].tolist() == pytest.approx([0.9, 0.9, 0.9, 0.8, 0.5])
