"""`adapler train` before anything is loaded: where settings come from, and what is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adapler.cli.train import train
from adapler.config import TrainConfig
from adapler.errors import BadConfig, UnknownName


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The settings that training was started with."""
    found: list[TrainConfig] = []

    def started(config: TrainConfig, *_: Any, **__: Any) -> dict[str, Any]:
        found.append(config)
        return {"account": "done"}

    monkeypatch.setattr("adapler.training.run.train", started)
    return found


@pytest.mark.parametrize("given", ["flag", "file", "short name", "assignment", "folder"])
def test_a_preset_is_for_the_data_wherever_it_was_named(tmp_path: Path, asked: list[TrainConfig], given: str) -> None:
    file = tmp_path / "run.yaml"
    named = {"file": "data: {source: mrpc}\n", "short name": "source: mrpc\n"}.get(given, "")
    file.write_text(f"{named}reduce: {{epochs: 7}}\n")
    data = {"flag": "mrpc", "folder": "some/where/mrpc"}.get(given)
    assign = ["data.source=mrpc"] if given == "assignment" else None
    train(tmp_path / "out", data, preset="paper", config=file, assign=assign, quiet=True)
    assert asked[0].reduce.lambda_growth == 3.0 and asked[0].reduce.start == "pretrained"  # the paper's for MRPC alone
    assert asked[0].reduce.epochs == 7  # the file's own go above


@pytest.mark.parametrize(("preset", "data"), [("paper", None), ("paper", "mine"), ("papers", "sst2")])
def test_an_unknown_preset_is_answered_with_those_known(tmp_path: Path, preset: str, data: str | None) -> None:
    with pytest.raises(UnknownName, match=f"preset '{preset}' for data '{data or ''}': known is `paper`, for sst2, imdb"):
        train(tmp_path / "out", data, preset=preset)


@pytest.mark.parametrize(
    "device",
    [pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")), "nonsense"],
)
def test_a_device_that_is_not_here_is_refused_before_anything_is_loaded_or_written(tmp_path: Path, device: str) -> None:
    for given in ({"device": device}, {"assign": [f"run.device={device}"]}):
        with pytest.raises(BadConfig, match=f"device '{device}' cannot be used here .*; cpu always can"):
            train(tmp_path / "out", "nowhere", model="nothing", **given)
    assert not (tmp_path / "out").exists()
