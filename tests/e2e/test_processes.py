"""Two real processes train as one does: same sums, same weights in both, and a stopped pair goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from adapler.classifier import Classifier
from adapler.errors import MissingExtra
from adapler.points import Operating
from adapler.training import processes
from adapler.training.processes import Processes, join
from tests.planted import planted_settings, write_planted_data, write_tiny_encoder


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A short run without dropout, whose every update is the same however its texts are dealt out."""
    folder = tmp_path_factory.mktemp("processes")
    settings = planted_settings(folder)
    settings["model"] = str(write_tiny_encoder(folder / "dry", dropout=0.0))
    settings["data"]["source"] = str(write_planted_data(folder / "few", train=97, dev=30, test=30))  # a last batch of one
    settings["finetune"] = {"epochs": 2, "lr": 1e-3}
    settings["reduce"] |= {"epochs": 2, "lr": 1e-3}
    settings["run"] = {"snapshot_seconds": 1000, "accumulate": 2}
    return settings


def start(settings: dict[str, Any], out: Path, count: int) -> subprocess.Popen[str]:
    """`adapler train` in `count` processes, as torchrun starts them."""
    config = out.with_suffix(".json")
    config.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [] if count == 1 else ["torch.distributed.run", "--nproc-per-node", str(count), "--master-port", str(port), "-m"]
    command = [sys.executable, "-m", *launcher, "adapler", "train", "--config", str(config), "--out", str(out), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return output


def tensors(out: Path) -> dict[str, torch.Tensor]:
    return {**load_file(out / "model.safetensors"), **load_file(out / "reduction.safetensors")}


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in found.items():
        if name.endswith("dense_out.bias"):
            continue  # a softmax does not see it: its gradient is rounding, which Adam makes a step of full size
        torch.testing.assert_close(tensor, expected[name], rtol=2e-3, atol=2e-3)


def dev_texts(settings: dict[str, Any]) -> list[str]:
    lines = (Path(settings["data"]["source"]) / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


@pytest.fixture(scope="module")
def pair(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and output of a run in two processes."""
    out = tmp_path_factory.mktemp("pair") / "run"
    return out, finish(start(settings, out, 2))


def test_two_processes_train_as_one(settings: dict[str, Any], pair: tuple[Path, str], tmp_path: Path) -> None:
    out, output = pair
    assert len(output.strip().splitlines()) == 1  # one of them speaks
    alone = json.loads(finish(start(settings, tmp_path / "alone", 1)))
    losses = 0
    for mine, theirs in zip(alone["history"], json.loads(output)["history"], strict=True):
        assert mine["score"] == pytest.approx(theirs["score"], abs=0.04)
        for name in ("label_loss", "contribution_loss", "length_loss"):
            if name in mine:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-3), name  # float32, sums in another order
                losses += 1
    assert losses == 8
    close(tensors(out), tensors(tmp_path / "alone"))
    depths = []
    for folder in (tmp_path / "alone", out):
        opened = Classifier.from_pretrained(folder)
        # So short a run hardly moves the predictors: at its own thresholds nothing leaves, a little below the mean share much.
        opened.operating = Operating(0.9975 / float(load_file(out / "reduction.safetensors")["eta"].mean()))
        depths.append([depth for answer in opened(dev_texts(settings)) for depth in answer.depths])
    kept = [mine == theirs for mine, theirs in zip(*depths, strict=True)]
    assert 0.1 < sum(depth == min(depths[0]) for depth in depths[0]) / len(kept) < 1 and len(set(depths[0])) > 1
    assert sum(kept) >= 0.98 * len(kept)  # a near-tie may fall either way


def test_a_stopped_pair_goes_on_to_the_same_weights(settings: dict[str, Any], pair: tuple[Path, str], tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    process = start({**settings, "run": {**settings["run"], "snapshot_seconds": 0}}, out, 2)
    deadline = time.monotonic() + 120
    while not list((out / "work" / "snapshots").glob("0*")):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0 and not (out / "report.json").exists()
    finish(start({**settings, "run": {**settings["run"], "snapshot_seconds": 0}}, out, 2))
    expected = tensors(pair[0])
    for name, tensor in tensors(out).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_killed_pair_goes_on_as_a_pair_or_alone(settings: dict[str, Any], pair: tuple[Path, str], tmp_path: Path) -> None:
    out = tmp_path / "killed"
    often = {**settings, "run": {**settings["run"], "snapshot_seconds": 0}}
    process = start(often, out, 2)
    deadline = time.monotonic() + 120
    while len(list((out / "work" / "snapshots").glob("0*"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        each.kill()
    process.communicate(timeout=120)
    assert not (out / "report.json").exists()
    shutil.copytree(out, tmp_path / "alone")
    finish(start(often, out, 2))
    expected = tensors(pair[0])
    for name, tensor in tensors(out).items():
        assert torch.equal(tensor, expected[name]), name
    # In other company every text still counts once: a lost or doubled one would end elsewhere.
    finish(start(often, tmp_path / "alone", 1))
    close(tensors(tmp_path / "alone"), expected)


def test_an_unsummed_gradient_would_be_seen(
    settings: dict[str, Any], pair: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above has teeth: one process that trains on its share alone ends elsewhere."""
    monkeypatch.setattr(Processes, "own", lambda self, items: list(items[::2]))
    from adapler.config import build_config
    from adapler.training.run import train

    train(build_config(settings), tmp_path / "half")
    expected = tensors(pair[0])
    assert any((tensor - expected[name]).abs().max() > 1e-2 for name, tensor in tensors(tmp_path / "half").items())


def test_figures_go_to_the_tracker_by_name(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked = {**settings, "run": {**settings["run"], "tracker": "tensorboard"}}
    finish(start(tracked, tmp_path / "run", 1))
    folder = next((tmp_path / "run" / "work" / "tracker").rglob("events.out.*")).parent
    events = EventAccumulator(str(folder)).Reload()
    assert {"finetune/loss", "finetune/score", "reduce/loss", "reduce/flops_speedup"} <= set(events.Tags()["scalars"])
    steps = [event.step for event in events.Scalars("finetune/score")] + [e.step for e in events.Scalars("reduce/score")]
    assert steps == sorted(steps) and len(set(steps)) == 4


def test_a_missing_tracker_gives_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(processes.TRACKERS, "wandb", "no_such_package")
    with pytest.raises(MissingExtra, match="pip install"):
        join("cpu", "wandb")
