"""The benchmark on a tiny real model: every contender answers the same texts, and the records say what was done."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adapler import checkpoint
from adapler.bench import peers
from adapler.bench.ceiling import gemm_ceiling, layer_shapes
from adapler.bench.contenders import PADDED, worth_timing
from adapler.bench.singles import GROUPS, deciles, long_ones
from adapler.cli import app
from adapler.data.text import EncodedText
from adapler.errors import BadInput, BadModel
from adapler.folder import check_folder
from tests.tiny import saved_with_answers, tiny_classifier, tiny_texts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with its dial, and labelled texts."""
    folder = tmp_path_factory.mktemp("bench")
    saved_with_answers(folder, 64)
    done = CliRunner().invoke(app, ["dial", str(folder / "model"), "--data", str(folder / "data.jsonl"), "--quiet"])
    assert done.exit_code == 0, done.output
    return folder


def test_peers_answer_as_the_model_does(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    opened = checkpoint.load(place / "model")
    texts = tiny_texts(64, seed=3)
    model, tokenizer = opened.backbone.model, opened.tokenizer
    expected = tiny_classifier(reduced=False)(texts)
    wanted = [list(p.scores).index(p.label) for p in expected]
    made = [peers.in_transformers(model, tokenizer, 64)]
    made += [peers.in_onnxruntime(model, tokenizer, 64, tmp_path, int8=int8, threads=1) for int8 in (False, True)]
    for number, peer in enumerate(made):
        for batch, by_length in ((32, False), (32, True), (1, False)):
            answers = peer.run(texts, batch, by_length=by_length)
            same = sum(a == b for a, b in zip(answers, wanted, strict=True))
            assert same >= (0.9 if number == 2 else 1.0) * len(texts)  # the quantised one may differ


def test_the_command_times_everyone_and_writes_records(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    command = ["bench", str(place / "model"), "--data", str(place / "data.jsonl"), "--count", "32", "--seconds", "1"]
    answer = CliRunner().invoke(
        app, [*command, "--threads", "1", "--out", str(tmp_path / "records.json"), "--chart", str(tmp_path / "c.html")]
    )
    assert answer.exit_code == 0, answer.output
    records = json.loads((tmp_path / "records.json").read_text())
    names = {record["variant"] for record in records}
    timed = {record["variant"] for record in records if record["unit"] == "texts/s"}
    assert all(name in (tmp_path / "c.html").read_text() for name in timed)
    point = worth_timing(check_folder(place / "model").reduction.dial)[-1].name  # type: ignore[union-attr, arg-type]
    assert {PADDED, "onnxruntime int8, sorted 32", "torch, full", f"onnx-int8, {point}", "torch, full, batch 1"} <= names
    reduced = next(record for record in records if record["variant"] == f"torch, {point}")
    assert reduced["wall_vs"] == "torch, full" and reduced["wall_speedup"] > 0 and reduced["threads"] == 1
    assert reduced["flops_speedup_executed"] > 1 and reduced["method"] == "adapler" and reduced["batch"] == "token budget"
    deciles = [record for record in records if "length decile" in record["variant"]]
    families = {record["variant"].partition(",")[0] for record in deciles}
    assert len(deciles) == GROUPS * len(families) and families >= {"torch", "onnx", "onnx-int8"}
    assert all(record["unit"] == "ms/text" and record["wall_speedup"] > 0 for record in deciles)
    share = next(record for record in records if record["unit"] == "share")
    assert 0 < share["value"] < 1 and "GFLOP/s" in answer.stdout


def test_contenders_can_be_left_out_but_not_what_they_are_held_against(place: Path) -> None:
    command = ["bench", str(place / "model"), "--data", str(place / "data.jsonl"), "--count", "32", "--seconds", "1", "--json"]
    answer = CliRunner().invoke(app, [*command, "--threads", "1", "--only", "torch, full, batch 8", "--only", "sorted 32"])
    assert answer.exit_code == 0, answer.output
    names = {record["variant"] for record in json.loads(answer.stdout) if record["unit"] == "texts/s"}
    assert {PADDED, "torch, full", "torch, full, batch 8", "transformers, sorted 32"} <= names
    assert all(name in (PADDED, "torch, full", "torch, full, batch 8") or "sorted 32" in name for name in names)
    refused = CliRunner().invoke(app, [*command, "--only", "no such runtime"])
    assert refused.exit_code == BadInput.exit_code and "torch, full" in refused.stderr


def test_a_model_without_a_dial_is_told_what_to_do(place: Path, tmp_path: Path) -> None:
    tiny_classifier().save_pretrained(tmp_path / "bare")
    refused = CliRunner().invoke(app, ["bench", str(tmp_path / "bare"), "--data", str(place / "data.jsonl")])
    assert refused.exit_code == BadModel.exit_code and "adapler dial" in refused.stderr


def test_deciles_go_from_short_to_long_and_take_the_same_number_of_each() -> None:
    counts = list(range(3, 103))
    texts = [EncodedText(np.zeros(n, np.int64), np.zeros(n, np.int64), [], False) for n in reversed(counts)]
    groups = deciles(texts, 4)
    assert [len(group.texts) for group in groups] == [4] * GROUPS
    assert groups[0].counts == [3, 6, 9, 12] and groups[-1].counts == [93, 96, 99, 102]
    assert min(long_ones(texts, 4).counts) == 65 and len(long_ones(texts, 4).texts) == 8
    assert long_ones(texts[-10:], 4).texts == []


def test_the_ceiling_is_a_speed() -> None:
    assert 1e8 < gemm_ceiling(layer_shapes(64, 128), rows=256) < 1e14
