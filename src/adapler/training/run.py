"""A whole run: fine-tune, then the method's own phases, choose, write.

Resumes by itself; ends in a model folder with its account.

A run folder holds the model itself (so `Classifier.from_pretrained(out)` opens it), `train.json` (the settings as resolved),
`report.json`, `report.html`, and `work/` with snapshots, checkpoints and saliencies.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from adapler.config import TrainConfig, build_config
from adapler.errors import BadConfig
from adapler.report.page import write_report
from adapler.training.borrow import CONFIG_FILE, DATA_FILE, FINETUNED, data_seen, take_finetuned
from adapler.training.finetune import Finetune
from adapler.training.finish import REPORT_FILE, REPORT_PAGE, WORK, finish, finish_steps
from adapler.training.processes import join
from adapler.training.progress import Silent
from adapler.training.recipes import RECIPES, Recipe
from adapler.training.reducing import Given
from adapler.training.session import Progress, Session
from adapler.training.setup import Prepared, prepare
from adapler.training.snapshot import Snapshots, read_json, write_json

GIVEN = "given"
"""Where a run folder keeps a model and data that came from memory."""
TAKING = "work.part"
"""What is to become `work`, while another run's phase 1 is copied: a run killed meanwhile has not started."""
MAY_CHANGE = ("keep", "snapshot_seconds")
"""Settings of `run` that another start of the same run may change: nothing it learns depends on them."""


def train(
    config: TrainConfig, out: str | Path, progress: Progress | None = None, *, finetuned_from: str | Path | None = None
) -> dict[str, Any]:
    """Run all phases into the folder `out`, or go on where a stopped run left it; returns the report.

    `finetuned_from`: another run's folder, whose fine-tuning (and saliencies) are taken over instead of done again.
    """
    out = Path(out)
    progress = progress or Silent()
    torch.set_flush_denormal(True)  # denormal floats make a CPU crawl
    processes = join(config.run.device, config.run.tracker)
    if not processes.leads:
        progress = Silent()
    finished = processes.first(lambda: _claim(config, out, progress, finetuned_from))
    if finished is not None:
        return finished
    prepared = prepare(config, processes.device)
    for note in prepared.notes:
        progress.say(note)
    work = out / WORK
    processes.first(lambda: _check_data(prepared, out, finetuned_from))
    snapshots = Snapshots(work / "snapshots", config.run.keep, progress.say)
    session = Session(snapshots, progress, config.run.snapshot_seconds, processes=processes)
    with session.signals(), processes.tracking(config.run.tracker, work / "tracker", config.model_dump()):
        return _run_phases(config, out, prepared, session, work)


def _run_phases(config: TrainConfig, out: Path, prepared: Prepared, session: Session, work: Path) -> dict[str, Any]:
    dataset, weights = prepared.dataset, prepared.class_weights(config.data)
    given = Given(config, prepared, session, work, weights)
    recipe: Recipe = RECIPES[config.method]()
    session.processes.part_ways()
    snapshot = session.resume()
    finetune = Finetune(prepared, config.finetune, config.run, session, work / "finetuned", weights)
    session.total_steps = (
        finetune.total + recipe.steps(config, len(dataset.train), len(dataset.unlabelled)) + finish_steps(prepared, config)
    )
    if recipe.passed(finetune.name, snapshot) or (snapshot is None and (work / FINETUNED).exists()):
        before = read_json(work / FINETUNED)
        finetune.load_state(before)
        session.history = session.history or before["history"]
        session.progress.advance(finetune.total / session.total_steps)
        session.logged = finetune.total
    else:
        if prepared.trained:
            finetune.take_as_it_is()
        else:
            session.run(finetune, snapshot)
        if session.processes.leads:
            write_json(work / FINETUNED, {**finetune.state(), "history": session.history})
    reduced = recipe.run(given, finetune, snapshot)
    if session.processes.leads:
        finish(given, out, finetune, reduced)
    session.processes.wait()
    return read_json(out / REPORT_FILE)


def _claim(config: TrainConfig, out: Path, progress: Progress, finetuned_from: str | Path | None) -> dict[str, Any] | None:
    """Write the settings into a new run folder; in an old one check that they are the same. The report, if it is finished."""
    file = out / CONFIG_FILE
    resolved = json.loads(config.model_dump_json())
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        started = (out / WORK).exists() or (out / REPORT_FILE).exists()
        may_change = {"run": {name: before["run"].get(name) for name in MAY_CHANGE if name in before.get("run", {})}}
        if started and build_config(before) != build_config(resolved, may_change):
            raise BadConfig(f"{out} holds a run with other settings ({difference(before, resolved)}); choose another --out")
        if (out / REPORT_FILE).exists():
            progress.say(f"{out} is finished; nothing to do")
            report: dict[str, Any] = json.loads((out / REPORT_FILE).read_text(encoding="utf-8"))
            if not (out / REPORT_PAGE).exists():  # killed between the two
                write_report(report, out / REPORT_PAGE, examples=config.run.report_examples)
            return report
        if started:
            write_json(file, resolved)
            return None  # else it was refused before it began, its model or data being wrong: the settings may change
    if out.exists() and any(entry.name not in (GIVEN, CONFIG_FILE, TAKING) for entry in out.iterdir()):
        raise BadConfig(f"{out} exists and holds no run of adapler; choose an empty or a new folder")
    shutil.rmtree(out / TAKING, ignore_errors=True)
    if finetuned_from is not None:
        take_finetuned(config, Path(finetuned_from), out / TAKING)
        progress.say(f"phase 1 is that of {finetuned_from}")
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, resolved)
    if finetuned_from is not None:  # from here on the run has started
        (out / TAKING).rename(out / WORK)
    return None


def _check_data(prepared: Prepared, out: Path, finetuned_from: str | Path | None) -> None:
    """Remember what the data is; refuse to go on, or to take another run's phase 1 over, with other data."""
    found = data_seen(prepared)
    whole = {**found, "unlabelled": prepared.unlabelled_digest()} if prepared.unlabelled else found
    own = out / WORK / DATA_FILE
    for folder in (out, None if finetuned_from is None else Path(finetuned_from)):
        file = None if folder is None else folder / WORK / DATA_FILE
        wanted = whole if folder is out else found
        before = read_json(file) if file is not None and file.is_file() else wanted
        if (before if folder is out else {key: before[key] for key in found}) != wanted:
            raise BadConfig(
                f"the data is not what it was in {folder}: {before['train']} texts of train and {before['dev']} of dev then, "
                f"{found['train']} and {found['dev']} now, or other ones; restore it, or choose another --out"
            )
    own.parent.mkdir(parents=True, exist_ok=True)
    write_json(own, whole)


def difference(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> str:
    """Settings that are not the same, as a user reads them."""
    changed = []
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            changed.append(difference(old, value, f"{prefix}{key}."))
        elif old != value:
            changed.append(f"{prefix}{key}: {old} -> {value}")
    return ", ".join(filter(None, changed))
