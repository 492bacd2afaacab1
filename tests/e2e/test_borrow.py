"""A run that takes another's fine-tuning over ends where it would have ended by itself; a wrong one is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from adapler.attention import fused
from adapler.config import build_config
from adapler.errors import BadConfig
from adapler.training import run
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.e2e.test_recipes import OWN, StopsAfter, weights
from tests.planted import planted_settings


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run and its settings."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("borrow")
    settings = planted_settings(folder)
    settings["finetune"]["epochs"] = 3
    settings["reduce"]["epochs"] = 1
    train(build_config(settings), folder / "first", Silent())
    return folder, settings


@pytest.mark.parametrize(
    "change",
    [
        {"reduce": {"phi": 0.05, "epochs": 1}},
        {"finetune": {"checkpoints": 1}},  # fewer than are there
        {"method": "power", **OWN["power"]},
    ],
    ids=str,
)
def test_the_end_is_the_same_as_without(first: tuple[Path, dict[str, Any]], change: dict[str, Any], tmp_path: Path) -> None:
    folder, settings = first
    config = build_config(settings, change)
    alone = train(config, tmp_path / "alone", Silent())
    taken = train(config, tmp_path / "taken", Silent(), finetuned_from=folder / "first")
    assert weights(tmp_path / "taken") == weights(tmp_path / "alone")
    assert taken["splits"] == alone["splits"]
    assert taken["history"] == alone["history"]


def test_a_stopped_run_goes_on_with_what_it_took(first: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = first
    config = build_config(settings, {"reduce": {"phi": 0.05, "epochs": 1}, "run": {"snapshot_seconds": 0}})
    with pytest.raises(Exception, match="SIGTERM"):
        train(config, tmp_path / "run", StopsAfter(8), finetuned_from=folder / "first")
    train(config, tmp_path / "run", Silent())
    train(config, tmp_path / "whole", Silent(), finetuned_from=folder / "first")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["finetuned.json", "train.json"])
def test_a_run_killed_while_it_takes_goes_on(
    first: tuple[Path, dict[str, Any]], lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = first
    config = build_config(settings, {"reduce": {"phi": 0.05, "epochs": 1}})

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*((shutil, "copy") if lost == "finetuned.json" else (run, "write_json")), killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", Silent(), finetuned_from=folder / "first")
    assert (tmp_path / "run").exists()  # something was there already
    train(config, tmp_path / "run", Silent(), finetuned_from=folder / "first")
    train(config, tmp_path / "whole", Silent(), finetuned_from=folder / "first")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_another_fine_tuning_is_refused_and_nothing_written(first: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = first
    other = build_config(settings, {"run": {"seed": 7}})
    with pytest.raises(BadConfig, match="another seed"):
        train(other, tmp_path / "run", Silent(), finetuned_from=folder / "first")
    with pytest.raises(BadConfig, match="phase 1 is done"):
        train(build_config(settings), tmp_path / "run", Silent(), finetuned_from=folder)
    more = build_config(settings, {"finetune": {"checkpoints": 5}})
    with pytest.raises(BadConfig, match="other data, settings"):
        train(more, tmp_path / "run", Silent(), finetuned_from=folder / "first")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("asked", "seen"), [(None, 0.1), (0.0, 0.0)])
def test_attention_drops_as_it_was_asked_to(
    first: tuple[Path, dict[str, Any]], asked: float | None, seen: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = first
    drops = set()

    def attention(*args: Any, dropout: float, **others: Any) -> torch.Tensor:
        drops.add(dropout)
        return fused(*args, dropout=dropout, **others)

    monkeypatch.setattr("adapler.layout.fused_attention", attention)
    own = {"finetune": {"epochs": 1}, "power": {"epochs": 1}, "method": "power", "data": {"train_limit": 64}}
    config = build_config(settings, own, {"run": {"attention_dropout": asked}})
    train(config, tmp_path / "run", Silent())
    assert drops == {0.0, seen}  # none while it is judged
