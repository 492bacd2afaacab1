"""Runs a study cell by cell; each method's operating point is chosen on dev, then looks at test once.

A study folder holds `plan.json` (the plan as resolved), `cells/NAME/` (the runs, each of which resumes by itself), and
`results/study-TASK-METHOD-SEED.json`: the record of the point that dev chose. What is there is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from adapler import checkpoint
from adapler.config import build_config
from adapler.data.load import has_test
from adapler.errors import BadConfig, BadInput
from adapler.records import write_records
from adapler.study.places import CELL_FILE, PLAN_FILE, cell_done, cell_folder, record_file
from adapler.study.plan import PAPER_SETTINGS, STATIC, Cell, Plan, cells, check, joined
from adapler.study.point import point_record, words_record
from adapler.study.static import best_full_length
from adapler.training.borrow import FINETUNED, give_finetuned, same_finetuning
from adapler.training.finish import WORK
from adapler.training.run import difference, train
from adapler.training.session import Progress
from adapler.training.snapshot import read_json, write_json

Say = Callable[[str], None]


def run_study(plan: Plan, out: Path, progress: Callable[[], AbstractContextManager[Progress]], say: Say) -> None:
    """Run what is not done yet, records as they come."""
    check(plan)
    for cell in {cell.task: cell for cell in cells(plan)}.values():
        if not has_test(cell.config.data):
            raise BadInput(
                f"{cell.config.data.source}: a study needs a folder with a test file, or a hub dataset whose test split has "
                f"labels; methods are compared on texts they have not seen"
            )
    plan = _claim(plan, out)
    every = cells(plan)
    for task in dict.fromkeys(cell.task for cell in every):
        for seed in plan.seeds:
            group = [cell for cell in every if (cell.task, cell.seed) == (task, seed)]
            for method in dict.fromkeys(cell.method for cell in group):
                own = [cell for cell in group if cell.method == method]
                done = method == "words" or all(cell_done(out, cell) for cell in own)
                if done and record_file(out, task, method, seed).exists():
                    continue
                if method == "words":
                    record = words_record(plan, out, own[0])
                else:
                    for cell in own:
                        say(f"{cell.name} ...")
                        with progress() as shown:
                            run_cell(plan, cell, out, shown)
                    record = point_record(plan, out, own)
                write_records(record_file(out, task, method, seed), [record])
                fast = "" if record.flops_speedup is None else f" at {record.flops_speedup:.2f}x"
                say(
                    f"{task} {method} seed {seed}: {record.metric} {100 * (record.score or 0):.2f}{fast}, "
                    f"loss {record.loss_points:.2f}"
                )


def run_cell(plan: Plan, cell: Cell, out: Path, progress: Progress) -> None:
    """Train one cell, if it is not done."""
    if cell_done(out, cell):
        return
    folder = cell_folder(out, cell)
    if cell.method in STATIC:
        made = _full_length(plan, cell, folder, progress)
    else:
        report = train(cell.config, folder / "run", progress, finetuned_from=_finetuned(plan, cell, out))
        points = [{key: point[key] for key in ("scale", "score", "flops_speedup")} for point in report["curve"]]
        if cell.method == PAPER_SETTINGS:  # as its thresholds left training
            points = [min(points, key=lambda point: abs(point["scale"] * report["kept_scale"] - 1))]
        made = {"points": [point for point in points if point["scale"]], "metric": report["metric"]}
        made |= {"n_train": report["n_train"]}
    write_json(folder / CELL_FILE, {**made, "config": _settings(cell)})


def _full_length(plan: Plan, cell: Cell, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fine-tune at full length. Where that is what phase 1 of the other methods would be, they need not do it again."""
    adapler = (other.config for other in cells(plan) if (other.task, other.method) == (cell.task, "adapler"))
    epochs, finetune = plan.full_epochs or next(adapler, cell.config).epochs, cell.config.finetune
    is_phase_1 = cell.method == "full" and (epochs, plan.full_rates) == (finetune.epochs, (finetune.lr,))
    kept = finetune.checkpoints if is_phase_1 else 1
    full = best_full_length(cell.config, folder, epochs=epochs, rates=plan.full_rates, progress=progress, checkpoints=kept)
    prepared = full.prepared
    checkpoint.save(folder / "model", prepared.backbone, prepared.tokenizer, None, prepared.max_length, overwrite=True)
    if is_phase_1:
        give_finetuned(cell.config, full.phase, full.history, folder / "run")
    made: dict[str, Any] = {"points": [{"scale": None, "score": full.dev, "flops_speedup": 1.0}]}
    made |= {"lr": full.lr, "epochs": epochs, "metric": prepared.dataset.metric, "max_length": prepared.max_length}
    return {**made, "n_train": len(prepared.dataset.train), "n_dev": len(prepared.dataset.dev)}


def _settings(cell: Cell) -> dict[str, Any]:
    """What a cell was trained with, without paths of this machine."""
    config: dict[str, Any] = json.loads(cell.config.model_dump_json())
    return {**config, "model": Path(config["model"]).name, "data": {**config["data"], "source": cell.task}}


def _check_settings(out: Path, cell: Cell) -> None:
    """Refuse to go on where a finished cell had other settings: its record would stand for what it is not."""
    file = cell_folder(out, cell) / CELL_FILE
    found = read_json(file).get("config") if file.exists() else None
    if found is None:
        return
    before, now = (build_config(settings).model_dump() for settings in (found, _settings(cell)))
    if before != now:
        raise BadConfig(
            f"{cell.name} in {out} was trained with other settings ({difference(before, now)}); choose another --out"
        )


def _finetuned(plan: Plan, cell: Cell, out: Path) -> Path | None:
    """A finished run of the study with the same phase 1, of this cell's own method where there is one."""
    others = [other for other in cells(plan) if (cell_folder(out, other) / "run" / WORK / FINETUNED).exists()]
    same = [other for other in others if cell_done(out, other) and same_finetuning(other.config, cell.config)]
    same.sort(key=lambda other: other.method != cell.method)
    return cell_folder(out, same[0]) / "run" if same else None


def _claim(plan: Plan, out: Path) -> Plan:
    """Write the plan into the study's folder; into an old one, together with what was planned there before. Returns what the
    plan asks for, by the settings of both."""
    file = out / PLAN_FILE
    whole = joined(Plan.model_validate(read_json(file)), plan, out) if file.exists() else plan
    for cell in cells(whole):
        _check_settings(out, cell)
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, json.loads(whole.model_dump_json()))
    return whole.model_copy(update={key: getattr(plan, key) for key in ("tasks", "methods", "seeds")})
