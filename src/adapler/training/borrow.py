"""Phase 1 of another run taken over: the same model, data, settings and seed give the same fine-tuning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from adapler.config import TrainConfig, build_config
from adapler.errors import BadConfig
from adapler.training.finetune import Finetune
from adapler.training.finish import WORK
from adapler.training.setup import Prepared
from adapler.training.snapshot import write_json

CONFIG_FILE = "train.json"
FINETUNED = "finetuned.json"
"""Says, in a run's work folder, which epochs of phase 1 there are and how they scored; the weights lie beside it."""
DATA_FILE = "data.json"
"""Says, in a run's work folder, what its data was when it began."""
_SALIENCY = "saliency"


def same_finetuning(before: TrainConfig, config: TrainConfig) -> bool:
    """Whether a run's phase 1 is what another would do, with as many of its checkpoints kept as that one needs."""

    def of(config: TrainConfig) -> tuple[object, ...]:
        run = config.run
        data = config.data.model_copy(update={"unlabelled": None, "unlabelled_limit": None})  # phase 1 does not read those
        finetune = config.finetune.model_copy(update={"checkpoints": 0})
        how = run.model_dump(include={"seed", "precision", "accumulate", "device", "attention_dropout"})
        return config.model, config.head, data, finetune, how

    return of(before) == of(config) and before.finetune.checkpoints >= config.finetune.checkpoints


def data_seen(prepared: Prepared) -> dict[str, Any]:
    """What tells the data of phase 1 from other data."""
    return {"train": len(prepared.train), "dev": len(prepared.dev), "sha256": prepared.digest()}


def give_finetuned(config: TrainConfig, finetune: Finetune, history: list[dict[str, Any]], folder: Path) -> None:
    """Lay a fine-tuning down as phase 1 of a run that went no further, for others to take over."""
    work = folder / WORK
    shutil.copytree(finetune.folder, work / "finetuned", dirs_exist_ok=True)
    write_json(folder / CONFIG_FILE, json.loads(config.model_dump_json()))
    write_json(work / DATA_FILE, data_seen(finetune.prepared))
    write_json(work / FINETUNED, {**finetune.state(), "history": history})


def take_finetuned(config: TrainConfig, source: Path, work: Path) -> None:
    """Copy phase 1 out of a run's folder into a new one, `work`; saliencies too, where they would be the same."""
    done = source / WORK / FINETUNED
    if not done.is_file():
        raise BadConfig(f"{source} is no run of adapler whose phase 1 is done, so there is nothing to take over")
    before = build_config(json.loads((source / CONFIG_FILE).read_text(encoding="utf-8")))
    if not same_finetuning(before, config):
        raise BadConfig(
            f"phase 1 of {source} had another model, other data, settings or another seed; what it learnt is not this run's. "
            f"Leave out --finetuned-from, or take the same settings"
        )
    shutil.copytree(source / WORK / "finetuned", work / "finetuned")
    same = [(each.method, each.reduce.target, each.finetune.checkpoints) for each in (before, config)]
    if same[0] == same[1] and config.method == "adapler":
        whole = source / WORK / _SALIENCY
        if whole.is_dir():
            shutil.copytree(whole, work / _SALIENCY)
    shutil.copy(done, work / FINETUNED)
