"""The probe of a machine: what it times, how it is remembered, and what follows from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapler import checkpoint, doctor
from adapler.classifier import Classifier
from adapler.cli import app
from adapler.doctor import Cost, Diagnosis, digest_of, recall, remember
from adapler.errors import BadConfig
from adapler.export.write import export
from adapler.folder import check_folder, write_dial
from adapler.points import Dial, Point, opening
from tests.tiny import tiny_classifier, tiny_texts


def dial(**scores: float) -> Dial:
    """Points `full` (scale 0), `slow` (0.5) and `own` (1) with these scores."""
    scales, speeds = {"full": 0.0, "slow": 0.5, "own": 1.0}, {"full": 1.0, "slow": 1.3, "own": 1.8}
    points = tuple(
        Point(
            name=name,
            scale=scales[name],
            score=score,
            loss_points=100 * (0.9 - score),
            flops_speedup=speeds[name],
            flops_speedup_executed=speeds[name],
        )
        for name, score in scores.items()
    )
    return Dial(data="made", n=10, metric="accuracy", reference="full", reference_score=0.9, points=points)


def diagnosis(**rates: float) -> Diagnosis:
    points = {name: Cost(texts_per_second=rate, latency_ms=1000 / rate) for name, rate in rates.items()}
    return Diagnosis(machine="here", runtime="torch", threads=1, texts="given", points=points)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model with a dial, of which nothing is remembered here yet."""
    monkeypatch.setenv(doctor.CACHE_VARIABLE, str(tmp_path / "cache"))
    tiny_classifier(eta=0.4).save_pretrained(tmp_path / "model")
    write_dial(check_folder(tmp_path / "model"), dial(full=0.90, slow=0.89, own=0.88))
    return tmp_path / "model"


def test_the_command_times_every_point_and_the_model_remembers(folder: Path) -> None:
    with pytest.raises(BadConfig, match="doctor"):
        Classifier.from_pretrained(folder, max_latency_ms=1000)
    answer = CliRunner().invoke(app, ["doctor", str(folder), "--seconds", "0.2", "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert set(found["points"]) == {"full", "slow", "own"} and found["trained"] == "own"
    opened = Classifier.from_pretrained(folder, max_latency_ms=60_000)
    assert opened.operating.scale == 0.0  # all are fast enough, so the best-scoring
    with pytest.raises(BadConfig, match="ms"):
        Classifier.from_pretrained(folder, max_latency_ms=1e-6)


def test_a_call_may_say_how_long_a_text_may_take(folder: Path, tmp_path: Path) -> None:
    texts, source = tiny_texts(5), tmp_path / "texts.txt"
    source.write_text("\n".join(texts), encoding="utf-8")
    unknown = Classifier.from_pretrained(folder)
    for ask in (unknown, unknown.explain):
        with pytest.raises(BadConfig, match="adapler doctor"):
            ask(texts, max_latency_ms=4)
    command = ["predict", str(folder), str(source), "--quiet", "--max-latency-ms", "4"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == BadConfig.exit_code and "adapler doctor" in refused.stderr
    digest = digest_of(folder)
    assert digest is not None
    remember(digest, diagnosis(full=100, slow=300, own=400).model_copy(update={"threads": unknown.runtime.threads}))
    opened = Classifier.from_pretrained(folder)
    slow = opened(texts, point="slow")
    assert opened(texts, max_latency_ms=4) == slow  # `full` takes 10 ms; of the others it scores best
    assert [told.prediction.flops for told in opened.explain(texts, max_latency_ms=4)] == [p.flops for p in slow]
    assert opened.operating.scale is None  # for those calls alone
    with pytest.raises(BadConfig, match=r"reachable: full .*10 ms"):
        opened(texts, max_latency_ms=1)
    told = [json.loads(row) for row in CliRunner().invoke(app, command).stdout.splitlines()]
    assert [row["flops"] for row in told] == [p.flops for p in slow]
    alike = CliRunner().invoke(app, ["explain", str(folder), "--file", str(source), "--json", "--max-latency-ms", "4"])
    assert [json.loads(row)["flops"] for row in alike.stdout.splitlines()] == [p.flops for p in slow]


def test_parts_are_answered_at_the_point_that_was_fast_enough_where_the_run_began(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "texts.txt").write_text("\n".join(tiny_texts(6)), encoding="utf-8")
    command = ["predict", str(folder), str(tmp_path / "in"), "--out", f"{tmp_path}/out/", "--quiet", "--max-latency-ms", "4"]
    assert "adapler doctor" in CliRunner().invoke(app, command).stderr
    threads, digest = Classifier.from_pretrained(folder).runtime.threads, digest_of(folder)
    assert digest is not None
    file = remember(digest, diagnosis(full=100, slow=300, own=400).model_copy(update={"threads": threads}))
    whole = tmp_path / "out"
    assert CliRunner().invoke(app, [*command, "--part-rows", "3"]).exit_code == 0
    manifest = json.loads((whole / "_adapler" / "manifest.json").read_text())
    assert manifest["scale"] == 0.5 and manifest["settings"]["max_latency_ms"] == 4
    file.unlink()  # as on another machine of a cluster, where nobody timed it
    (whole / "part-000001.jsonl").unlink()
    again = CliRunner().invoke(app, [*command, "--part-rows", "3"])
    assert again.exit_code == 0 and (whole / "part-000001.jsonl").is_file(), again.output


def test_made_up_texts_save_as_much_as_dev_texts_did(folder: Path) -> None:
    classifier = Classifier.from_pretrained(folder)
    sample = doctor._made_up(classifier.runtime, classifier.encoder.vocabulary)
    assert {int(text.ids.max()) for text in sample} <= set(range(classifier.encoder.vocabulary))
    for wanted in (1.3, 1.8):
        scale = doctor._scale_for(classifier.runtime, sample, wanted)
        predictions = classifier.at_scale([[text] for text in sample], scale)
        reached = sum(p.flops_full for p in predictions) / sum(p.flops for p in predictions)
        assert reached == pytest.approx(wanted, rel=0.15)


def test_what_does_not_pay_here_is_not_done_here_unless_insisted_on(folder: Path) -> None:
    opened = Classifier.from_pretrained(folder)
    digest = digest_of(folder)
    assert digest is not None and opened.operating.scale is None
    slow_here = diagnosis(full=300, slow=150, own=200).model_copy(update={"threads": opened.runtime.threads})
    file = remember(digest, slow_here)
    assert recall(digest, "torch", opened.runtime.threads) == slow_here
    assert Classifier.from_pretrained(folder).operating.scale == 0.0
    assert Classifier.from_pretrained(folder, point="trained").operating.scale is None
    texts = tiny_texts(5)
    assert all(p.flops == p.flops_full for p in Classifier.from_pretrained(folder)(texts))
    file.write_text("{broken", encoding="utf-8")
    assert Classifier.from_pretrained(folder).operating.scale is None  # a broken note is no note


def test_a_beaten_model_as_trained_is_timed_and_not_opened_at_where_full_length_is_faster(folder: Path) -> None:
    measured = dial(full=0.90, own=0.88)
    slower = measured.points[1].model_copy(update={"flops_speedup": 0.9, "flops_speedup_executed": 0.9})
    write_dial(check_folder(folder), measured.model_copy(update={"points": measured.points[:1], "beaten": (slower,)}))
    assert Classifier.from_pretrained(folder).operating.scale == 0.0  # FLOPs say so before anything is timed
    answer = CliRunner().invoke(app, ["doctor", str(folder), "--seconds", "0.1", "--json"])
    found = json.loads(answer.stdout)
    assert set(found["points"]) == {"full", "own"} and found["trained"] == "own"
    digest = digest_of(folder)
    assert digest is not None
    for rates, scale in (({"full": 300.0, "own": 200.0}, 0.0), ({"full": 200.0, "own": 300.0}, None)):
        remember(digest, diagnosis(**rates).model_copy(update={"threads": found["threads"]}))
        assert Classifier.from_pretrained(folder).operating.scale == scale
        assert Classifier.from_pretrained(folder, point="trained").operating.scale is None  # can be forced
        assert Classifier.from_pretrained(folder, point="full").operating.scale == 0.0


def test_points_that_escalate_are_timed_on_real_texts_alone(folder: Path) -> None:
    known = dial(full=0.90, own=0.89)
    both = known.points[1].model_copy(update={"name": "own+0.5", "escalate": 0.5, "careful": 0.0, "flops_speedup": 1.5})
    write_dial(check_folder(folder), known.model_copy(update={"points": (known.points[0], both, known.points[1])}))
    classifier = Classifier.from_pretrained(folder)
    assert set(classifier.examine(seconds=0.1).points) == {"full", "own"}
    assert set(classifier.examine(tiny_texts(9), seconds=0.1).points) == {"full", "own", "own+0.5"}
    assert classifier.dial is not None and opening(classifier.dial, {"full": 1, "own": 2, "own+0.5": 3}) is None


def test_a_sample_is_taken_from_everywhere() -> None:
    assert doctor.spaced(range(10), 3) == [0, 3, 6] and doctor.spaced("ab", 3) == ["a", "b"]


def info(folder: Path) -> tuple[dict[str, Any], str]:
    """As JSON, and as people read it."""
    told, shown = (CliRunner().invoke(app, ["info", str(folder), *options]) for options in (["--json"], []))
    return json.loads(told.stdout), " ".join(shown.stdout.split())


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_info_tells_where_a_model_opens_and_what_was_timed_here(folder: Path, tmp_path: Path, runtime: str) -> None:
    if runtime == "onnx":
        pytest.importorskip("onnxscript")
        export(checkpoint.load(folder), tmp_path / "graph", to="onnx")
        folder = tmp_path / "graph"
    told, shown = info(folder)
    assert list(told["points"]) == ["full", "slow", "own"] and told["points"]["own"]["also"] == ["trained"]
    assert told["opens_at"] == "trained" and "timings" not in told and "opens at │ trained" in shown
    digest = digest_of(folder)
    assert digest is not None
    for threads, rates, point in ((1, (100.0, 150.0, 200.0), "trained"), (3, (300.0, 150.0, 200.0), "full")):
        timed = diagnosis(**dict(zip(told["points"], rates, strict=True)))
        file = remember(digest, timed.model_copy(update={"runtime": runtime, "threads": threads}))
        os.utime(file, (threads, threads))
        told, shown = info(folder)
        assert told["opens_at"] == point and told["timings"]["threads"] == threads  # what was timed last
        assert told["timings"]["points"]["own"] == {"texts_per_second": 200.0, "latency_ms": 5.0}
        assert f"opens at │ {point}" in shown and f"{runtime}, {threads} threads" in shown
        assert "│ own, trained │ 1 │ 88.00 │ +2.00 │ 1.80x │ 200 │ 5.00 │ yes │" in shown


def test_info_tells_a_beaten_point_from_the_others(folder: Path) -> None:
    measured = dial(full=0.90, own=0.88)
    write_dial(check_folder(folder), measured.model_copy(update={"points": measured.points[:1], "beaten": measured.points[1:]}))
    told, shown = info(folder)
    assert {name: point["kept"] for name, point in told["points"].items()} == {"full": True, "own": False}
    assert "│ full, careful, fast │ 0 │ 90.00 │ +0.00 │ 1.00x │ yes │ │ own, trained │ 1 │ 88.00 │ +2.00 │ 1.80x │ │" in shown


def test_real_texts_can_be_timed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(tiny_texts(20)), encoding="utf-8")
    answer = CliRunner().invoke(app, ["doctor", str(folder), "--texts", str(tmp_path / "texts.txt"), "--seconds", "0.2"])
    assert answer.exit_code == 0 and "20 given texts" in answer.stdout
    bare = tmp_path / "bare"
    tiny_classifier().save_pretrained(bare)
    refused = CliRunner().invoke(app, ["doctor", str(bare)])
    assert refused.exit_code == BadConfig.exit_code and "adapler dial" in refused.stderr
