"""Every method trained to the end on the planted task, by the same loop: worth having, resumable to the same weights."""

from __future__ import annotations

import hashlib
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.engine import encode
from adapler.errors import Interrupted
from adapler.methods import METHODS
from adapler.methods.adapler import AdapLeR
from adapler.training.power import Retrain
from adapler.training.progress import Silent
from adapler.training.recipes import RECIPES
from adapler.training.run import train
from tests.planted import planted_settings, write_planted_data

OWN: dict[str, dict[str, Any]] = {
    "power": {"power": {"epochs": 3, "lr": 1e-3, "retention_lr": 3e-2, "penalty": 3e-3}},
    "trbert": {"trbert": {"policy_epochs": 4, "joint_epochs": 2, "lr": 1e-3, "policy_lr": 1e-2, "alpha": 2.0, "copies": 4}},
}


OWN_AND_SETTLES: dict[str, Any] = {**OWN["trbert"]["trbert"], "settle_epochs": 2, "settle_lr": 1e-3}
SETTLES: dict[str, Any] = {"reduce": {"epochs": 3, "settle_epochs": 3, "lr": 1e-3, "predictor_lr": 1e-2}}


class StopsAfter(Silent):
    """Asks the run to stop, as a user would, when so many steps are done."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def advance(self, share: float) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def weights(out: Path) -> str:
    files = (out / name for name in ("model.safetensors", "reduction.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_every_method_has_a_recipe() -> None:
    assert set(RECIPES) == set(METHODS) == {"adapler", *OWN}


@pytest.mark.parametrize("method", OWN)
def test_a_method_trains_to_a_faster_model_that_opens(method: str, tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), "method": method, **OWN[method]}
    report = train(build_config(settings), tmp_path / "run", Silent())
    test = report["splits"]["test"]
    assert report["method"] == method and test["score_full"] >= 0.98
    assert test["loss_points"] <= 3.0 and test["flops_speedup"] > 1.3, report["history"]
    opened = Classifier.from_pretrained(tmp_path / "run")
    assert opened.reducer is not None and opened.reducer.name == method
    page = (tmp_path / "run" / "report.html").read_text()
    assert report["account"] in page and f"{report['history'][-1]['phase']} ▸" in page


@pytest.mark.parametrize("method", OWN)
def test_a_method_comes_to_the_speed_that_is_asked_for(method: str, tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), "method": method, **OWN[method]}
    settings["steer"] = {"target_speedup": 2.0, "distill": 0.5, "hint": 0.5}
    report = train(build_config(settings), tmp_path / "run", Silent())
    last = report["history"][-1]
    assert 1.5 < last["flops_speedup"] < 2.7, report["history"]  # not by the scale that is chosen afterwards alone
    assert 1.7 < report["splits"]["dev"]["flops_speedup"] < 2.4 and report["splits"]["dev"]["loss_points"] <= 3.0


def test_a_network_settles_under_the_reduction_that_was_learnt(tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), **SETTLES, "steer": {"target_speedup": 4.0, "distill": 0.5, "hint": 0.5}}
    report = train(build_config(settings), tmp_path / "run", Silent())
    rows = {phase: [row for row in report["history"] if row["phase"] == phase] for phase in ("reduce", "settle")}
    assert [len(some) for some in rows.values()] == [3, 3]
    before = kept(tmp_path / "run" / "work" / "best.safetensors")
    after = kept(tmp_path / "run" / "work" / "settled.safetensors")
    assert all(before[name].equal(after[name]) for name in before if name.startswith("reducer.predictors."))
    assert not before["model.classifier.weight"].equal(after["model.classifier.weight"])
    scales = after["reducer.eta"] / before["reducer.eta"]
    assert scales.allclose(scales[0].expand_as(scales))
    begun = next(row for row in rows["reduce"] if row["eta"] == [round(value, 5) for value in before["reducer.eta"].tolist()])
    speeds = [begun["flops_speedup"], *(row["flops_speedup"] for row in rows["settle"])]
    assert abs(math.log(speeds[1] ** 2 / speeds[0] / 4.0)) < 0.4 and 3.5 < speeds[2] < 4.7, speeds  # half-way, then there
    test = report["splits"]["test"]
    assert test["loss_points"] <= 3.0 and test["flops_speedup"] > 3.0, report["history"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "of settling, after reduction" in page and "steepness of soft removal" in page


def test_tokens_that_leave_early_are_learnt_and_cost_less(tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), "steer": {"target_speedup": 2.5}}
    settings["reduce"] = {**settings.get("reduce", {}), "site": "after_attention"}
    report = train(build_config(settings), tmp_path / "run", Silent())
    test = report["splits"]["test"]
    assert test["loss_points"] <= 3.0 and test["flops_speedup"] > 1.8, report["history"]
    opened = Classifier.from_pretrained(tmp_path / "run")
    assert isinstance(opened.reducer, AdapLeR) and opened.reducer.early
    answer = opened("film " * 20)
    late = replace(opened.cost, early=False)
    assert answer.flops < late.reduced(len(answer.tokens), answer.lengths)


def test_a_policy_holds_still_while_its_network_settles(tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), "method": "trbert", "trbert": OWN_AND_SETTLES, "steer": {"target_speedup": 50.0}}
    report = train(build_config(settings), tmp_path / "run", Silent())
    assert [row["phase"] for row in report["history"][-2:]] == ["settle", "settle"]
    before = kept(tmp_path / "run" / "work" / "best.safetensors")
    after = kept(tmp_path / "run" / "work" / "settled.safetensors")
    policy = [name for name in before if name.startswith("reducer.")]
    moved = [name for name in policy if not before[name].equal(after[name])]
    assert policy and all(name.endswith("dense_out.bias") for name in moved), "thresholds alone, on their way to the target"
    assert not before["model.classifier.weight"].equal(after["model.classifier.weight"])
    # Three layers, of which the first sees every token: fifty times as fast it cannot be.
    assert 1.3 < report["history"][-1]["flops_speedup"] < 3.0


def test_without_a_target_a_network_settles_where_it_is(tmp_path: Path) -> None:
    settings = {**planted_settings(tmp_path), **SETTLES}
    train(build_config(settings), tmp_path / "run", Silent())
    work = tmp_path / "run" / "work"
    assert kept(work / "best.safetensors")["reducer.eta"].equal(kept(work / "settled.safetensors")["reducer.eta"])


def kept(file: Path) -> dict[str, torch.Tensor]:
    """What a phase kept."""
    tensors: dict[str, torch.Tensor] = load_file(file)
    return tensors


@pytest.mark.parametrize("method", [*OWN, "adapler"])
def test_a_stopped_run_ends_in_the_same_weights(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    own = SETTLES if method == "adapler" else {"trbert": OWN_AND_SETTLES} if method == "trbert" else OWN[method]
    settings = {**planted_settings(tmp_path), "method": method, **own}
    settings["data"]["source"] = str(write_planted_data(tmp_path / "few", train=96, dev=30, test=0))
    (tmp_path / "few" / "test.jsonl").unlink()
    settings["finetune"]["epochs"] = 2
    settings["run"] = {"snapshot_seconds": 0}
    settings["steer"] = {"target_speedup": 1.5, "distill": 0.3, "hint": 0.5, "settle_low": 0.3, "settle_from": 1.2}
    config = build_config(settings)
    train(config, tmp_path / "whole", Silent())
    phases = [6, *(3 * epochs for group in own.values() for key, epochs in group.items() if key.endswith("epochs"))]
    if method == "power":
        phases.append(phases[-1])
    before = 0
    for number, steps in enumerate(phases):
        out = tmp_path / f"stopped-{number}"
        with pytest.raises(Interrupted):
            train(config, out, StopsAfter(before + steps // 2 + 1))
        train(config, out, Silent())
        assert weights(out) == weights(tmp_path / "whole"), f"stopped in phase {number}"
        before += steps


def test_a_network_settles_over_slower_speeds_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor | None] = []

    def spied(*args: Any, **named: Any) -> Any:
        seen.append(named["scale"])
        return encode(*args, **named)

    monkeypatch.setattr("adapler.training.labelled.encode", spied)
    settings = {**planted_settings(tmp_path), **SETTLES, "steer": {"target_speedup": 4.0, "settle_low": 0.25}}
    train(build_config(settings), tmp_path / "run", Silent())
    drawn = torch.cat([scale for scale in seen if scale is not None])
    assert len(drawn) == 3 * 600 and 0.25 <= drawn.min() < 0.35 and drawn.max() == 1.0
    assert 0.4 < (drawn == 1.0).double().mean() < 0.6 and ((drawn > 0.5) & (drawn < 1.0)).any()


def test_settling_comes_to_its_target_from_a_slow_speed(tmp_path: Path) -> None:
    speeds = {}
    for begin in (None, 1.5):
        settings = {**planted_settings(tmp_path), **SETTLES, "steer": {"target_speedup": 4.0, "settle_from": begin}}
        report = train(build_config(settings), tmp_path / f"from-{begin}", Silent())
        speeds[begin] = [row["flops_speedup"] for row in report["history"] if row["phase"] == "settle"]
    halfway = math.sqrt(1.5 * 4.0)  # the thresholds move at the beginning of two passes of three
    assert speeds[None][0] > 1.2 * halfway > speeds[1.5][0] > halfway / 1.2
    assert all(speed > 4.0 / 1.2 for speed in speeds[1.5][1:])


def test_of_epochs_that_are_equally_fast_the_best_is_kept() -> None:
    retrain = object.__new__(Retrain)
    retrain.kept, kept = None, []
    for epoch, reached in enumerate((0.892, 0.912, 0.905)):
        if retrain.improves(reached, 2.0, epoch):
            retrain.kept = {"score": reached}
            kept.append(epoch)
    assert kept == [0, 1]
