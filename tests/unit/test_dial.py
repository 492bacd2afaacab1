"""The dial of a real (tiny) model: every point says what running at its scale gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.classifier import Classifier
from adapler.cli import app
from adapler.data.text import EncodedText, TextEncoder
from adapler.dial import measure
from adapler.doctor import digest_of
from adapler.errors import BadConfig, BadModel
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.folder import REDUCTION_JSON, check_folder
from adapler.methods.adapler import AdapLeR
from adapler.points import opening
from tests.tiny import saved_with_answers, tiny_bert, tiny_classifier, tiny_reducer, tiny_texts, tiny_tokenizer

Parts = tuple[Backbone, AdapLeR, list[EncodedText], list[int]]


@pytest.fixture(scope="module")
def parts() -> Parts:
    backbone = view(tiny_bert())
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(60))
    return backbone, tiny_reducer(backbone, eta=0.4), texts, run(backbone, None, texts).predictions.tolist()


def test_words_that_stay_are_measured_as_staying(tmp_path: Path) -> None:
    texts = saved_with_answers(tmp_path, 48)
    word = max(
        (word for text in texts for word in set(text.split())), key=lambda word: sum(word in text.split() for text in texts)
    )
    command = ["dial", str(tmp_path / "model"), "--data", str(tmp_path / "data.jsonl"), "--quiet", "--json", "--dry-run"]
    free, bound = (json.loads(CliRunner().invoke(app, [*command, *more]).stdout) for more in ([], ["--always-keep", word]))
    speeds = [{point["scale"]: point["flops_speedup"] for point in found["measured"]} for found in (free, bound)]
    assert speeds[1][2.0] < speeds[0][2.0] and speeds[1][0.0] == speeds[0][0.0]
    assert "always kept" in bound["data"] and "always kept" not in free["data"]
    judged = CliRunner().invoke(
        app, ["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / "data.jsonl"), "--json", "--always-keep", word]
    )
    assert json.loads(judged.stdout)["flops_speedup"] == pytest.approx(speeds[1][1.0])


def test_points_are_what_running_at_their_scale_gives(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    dial, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", grid=(0.5, 1.0, 2.0))
    assert [p.scale for p in points] == [0.0, 0.5, 1.0, 2.0] and {*dial.points, *dial.beaten} == set(points)
    assert dial.full == points[0] and dial.trained == points[2]
    assert points[0].name == "full" and points[0].score == 1.0 and points[0].flops_speedup == 1.0
    for point in points[1:]:
        outcome = run(backbone, reducer, texts, scale=point.scale)
        assert point.score == score("accuracy", labels, outcome.predictions)
        assert point.flops_speedup == outcome.speedups.flops_speedup
    speeds = [p.flops_speedup for p in points[1:]]
    assert speeds == sorted(speeds) and speeds[-1] > 1.2 * speeds[0]  # the dial turns


def test_the_model_as_trained_is_measured_whatever_else_is(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    dial, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", grid=(2.0,))
    assert [p.scale for p in points] == [0.0, 1.0, 2.0] and dial.trained == points[1]


def test_a_model_that_removes_nothing_worth_its_predictors_opens_at_full_length(parts: Parts) -> None:
    backbone, _, texts, labels = parts
    dial, points = measure(backbone, tiny_reducer(backbone, eta=0.01), texts, labels, "accuracy", data="made", grid=(1.0,))
    assert dial.points == (points[0],) and dial.trained == points[1] and points[1].flops_speedup_executed < 1
    assert opening(dial) == dial.full
    assert dial.rescaled(0.5).trained is None  # what was not measured is not guessed


def test_losses_count_from_the_reference(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    reference = ("another", 0.9)
    dial, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", reference=reference, grid=(1.0,))
    assert dial.reference == "another"
    assert points[0].loss_points == pytest.approx(-10.0)


def test_an_escalating_point_is_two_passes(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    _, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", grid=(1.0, 2.0), escalate=(0.4, 1.0))
    by_name = {point.name: point for point in points}
    fast = next(point for point in points if point.scale == 2.0 and point.escalate is None)
    always = next(point for point in points if point.scale == 2.0 and point.escalate == 1.0)
    assert len(by_name) == len(points)
    assert always.score == 1.0  # everything is answered again at full length, which the labels are from
    # Both passes are charged, the second with the predictors it asks on the way (none at a scale of 0).
    assert 1 / always.flops_speedup == pytest.approx(1 / fast.flops_speedup + 1.0, rel=1e-9)
    half = next(point for point in points if point.scale == 2.0 and point.escalate == 0.4)
    assert fast.score <= half.score <= 1.0 and always.flops_speedup < half.flops_speedup <= fast.flops_speedup


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model and labelled texts beside it, its dial measured by the command."""
    place = tmp_path_factory.mktemp("dial")
    saved_with_answers(place, 80)
    command = ["dial", str(place / "model"), "--data", str(place / "data.jsonl"), "--escalate", "0.6", "--json", "--quiet"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    assert len(json.loads(answer.stdout)["measured"]) > len(json.loads(answer.stdout)["points"]) >= 2
    (place / "told.json").write_text(answer.stdout, encoding="utf-8")
    return place


def test_the_dial_is_in_the_folder_and_chooses(folder: Path) -> None:
    dial = check_folder(folder / "model").reduction.dial  # type: ignore[union-attr]
    assert dial is not None
    texts = tiny_texts(80, seed=3)
    for point in dial.points:
        chosen = Classifier.from_pretrained(folder / "model", point=point.name)
        predictions = chosen(texts)
        assert chosen.operating.scale == point.scale
        saved = sum(p.flops_full for p in predictions) / sum(p.flops for p in predictions)
        assert saved == pytest.approx(point.flops_speedup, rel=1e-6)
    plain = Classifier.from_pretrained(folder / "model", point="trained")  # unasked, what is fastest here is opened
    fastest = max(dial.points, key=lambda point: point.flops_speedup)
    one = plain(texts, point=fastest.name)
    assert sum(p.flops for p in one) < sum(p.flops for p in plain(texts))  # for this call alone
    assert plain.operating.scale is None
    assert Classifier.from_pretrained(folder / "model", max_loss=100).operating.scale == fastest.scale


def test_every_point_is_timed_on_the_texts_it_was_scored_on(folder: Path, tmp_path: Path) -> None:
    found = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    assert found["timed"]["texts"] == "80 given texts" and found["timed"]["runtime"] == "torch"
    assert {point["name"] for point in found["measured"]} >= {point["name"] for point in found["points"]}
    assert all(point["texts_per_second"] > 0 and point["latency_ms"] > 0 for point in found["measured"])
    assert any(point["escalate"] is not None for point in found["measured"])
    opened = Classifier.from_pretrained(folder / "model", max_latency_ms=60_000)  # as after `adapler doctor`
    assert opened.diagnosis is not None and opened.dial is not None
    assert opened.diagnosis.latencies == {point["name"]: point["latency_ms"] for point in found["measured"]}
    shutil.copytree(folder / "model", tmp_path / "model")
    command = ["dial", str(tmp_path / "model"), "--data", str(folder / "data.jsonl"), "--quiet", "--seconds", "0.1"]
    before = digest_of(tmp_path / "model")
    dry = CliRunner().invoke(app, [*command, "--dry-run"])
    assert dry.exit_code == 0 and "texts/s" in dry.stdout and "80 given texts" in dry.stdout
    assert digest_of(tmp_path / "model") == before
    assert Classifier.from_pretrained(tmp_path / "model").diagnosis == opened.diagnosis  # of the dry run nothing is kept
    assert "will open" in CliRunner().invoke(app, command).stderr


def test_escalation_answers_the_unsure_again(folder: Path) -> None:
    plain = Classifier.from_pretrained(folder / "model")
    texts = tiny_texts(80, seed=3)
    dial = plain.dial
    assert dial is not None
    fastest = max((p for p in dial.points if p.escalate is None), key=lambda point: point.flops_speedup)
    before = plain(texts, point=fastest.name)
    sureness = sorted(prediction.score for prediction in before)[len(before) // 2]
    after = plain(texts, point=fastest.name, escalate=sureness)
    careful = plain(texts, point="careful")
    assert 0 < sum(p.escalated for p in after) < len(texts)
    for first, again, other in zip(before, after, careful, strict=True):
        assert again.escalated == (first.score < sureness)
        if again.escalated:
            assert again.scores == pytest.approx(other.scores) and again.flops == first.flops + other.flops
        else:
            assert again.label == first.label and again.flops == first.flops


def test_wishes_that_cannot_be_met(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="reachable"):
        Classifier.from_pretrained(folder / "model", speedup=1000)
    with pytest.raises(BadConfig, match=r"reachable: .* ms"):
        Classifier.from_pretrained(folder / "model", max_latency_ms=1e-6)
    tiny_classifier().save_pretrained(tmp_path / "bare")
    with pytest.raises(BadConfig, match="adapler dial"):
        Classifier.from_pretrained(tmp_path / "bare", max_loss=1)
    with pytest.raises(BadConfig, match="not both"):
        Classifier.from_pretrained(folder / "model", point="trained", max_loss=-99)
    with pytest.raises(BadConfig, match="not both"):
        tiny_classifier()("a good film", point="trained", speedup=1000)
    refused = CliRunner().invoke(app, ["predict", str(folder / "model"), str(folder / "data.jsonl"), "--speedup", "1000"])
    assert refused.exit_code == BadConfig.exit_code and "reachable" in refused.stderr


def test_a_changed_dial_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "changed")
    file = tmp_path / "changed" / REDUCTION_JSON
    file.write_text(file.read_text().replace('"escalate": null', '"escalate": 0.5', 1), encoding="utf-8")
    with pytest.raises(BadModel, match="changed after it was written"):
        Classifier.from_pretrained(tmp_path / "changed")
    plain = tmp_path / "plain"
    tiny_classifier(reduced=False).save_pretrained(plain)
    refused = CliRunner().invoke(app, ["dial", str(plain), "--data", str(folder / "data.jsonl")])
    assert refused.exit_code == BadModel.exit_code and "no reduction" in refused.stderr
