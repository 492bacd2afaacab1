"""A study as data: which tasks, methods and seeds, with which settings; and the cells it consists of. No torch."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from adapler.config import Settings, TrainConfig, build_config, parse_assignments, read_config
from adapler.data.tasks import TASKS
from adapler.errors import BadConfig

Method = Literal["words", "full", "distilled", "power", "trbert", "adapler", "adapler_paper"]
STATIC: tuple[Method, ...] = ("words", "full", "distilled")
"""Methods that remove nothing: an encoder fine-tuned at full length, or none at all."""
PAPER_SETTINGS: Method = "adapler_paper"
"""AdapLeR with phase 3 as the paper set it for a task, and with no dial: reported beside, not instead."""
SHARED = ("data", "finetune", "run", "model", "head")
"""Settings that all methods of a task have in common."""


class Plan(Settings):
    """What a study runs."""

    tasks: tuple[str, ...] = Field(min_length=1, description="Named tasks, or folders of splits.")
    methods: tuple[Method, ...] = Field(("full", "adapler"), min_length=1, description="In the order of the table.")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="Every cell is run with each.")
    data: str | None = Field(None, description="Folder in which the tasks' folders of splits lie; else they are named tasks.")
    model: str = Field("minilm", description="Backbone of every method but `distilled`.")
    distilled: str | None = Field(None, description="The half-depth encoder of the `distilled` method.")
    full_epochs: int | None = Field(
        None, ge=1, description="Epochs of `full` and `distilled`; by default those of AdapLeR's phases together."
    )
    full_rates: tuple[float, ...] = Field((5e-5, 1e-4), min_length=1, description="Learning rates of both; dev chooses.")
    max_loss: float = Field(1.0, ge=0, description="Points of dev score a method may lose against `full`.")
    test_limit: int | None = Field(None, ge=1, description="Score only so many test texts (the first ones, in file order).")
    settings: dict[str, Any] = Field({}, description="Settings of training for every cell.")
    by_task: dict[str, dict[str, Any]] = Field({}, description="And for the cells of a task.")
    by_method: dict[str, dict[str, Any]] = Field({}, description="And for the cells of a method.")
    knobs: dict[str, dict[str, list[Any]]] = Field(
        {}, description="By method: a setting and its values. Each is a model of its own; dev chooses."
    )


@dataclass(frozen=True)
class Cell:
    """One training run of a study."""

    task: str
    """Its name: the last part of its path, where it is one."""
    method: Method
    seed: int
    knob: dict[str, Any]
    """Settings that set this run apart from others of its task, method and seed."""
    config: TrainConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        knob = "".join(f"-{key.split('.')[-1]}-{_shown(value)}" for key, value in self.knob.items())
        return f"{self.task}-{self.method}{knob}-{self.seed}"

    @property
    def variant(self) -> str | None:
        """What sets it apart, as records tell it."""
        return ", ".join(f"{key} {_shown(value)}" for key, value in self.knob.items()) or None


def read_plan(path: Path) -> Plan:
    """A plan from a YAML or JSON file."""
    found = read_config(path)
    try:
        plan = Plan.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(Plan.model_fields) if first["type"] == "extra_forbidden" else ""
        hint = f"; known: {known}" if known else ""
        raise BadConfig(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}{hint}") from error
    for key, group in (("by_task", plan.by_task), ("by_method", plan.by_method), ("knobs", plan.knobs)):
        unknown = set(group) - set(plan.tasks if key == "by_task" else plan.methods)
        if unknown:
            raise BadConfig(f"{path}: {key} names {sorted(unknown)[0]!r}, which is not in the study")
    try:
        check(plan)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from error
    return plan


def check(plan: Plan) -> None:
    """Refuse what is a mistake, before anything is trained."""
    if "full" not in plan.methods:
        raise BadConfig("a study needs the method `full`: every other is held against it")
    if "distilled" in plan.methods and plan.distilled is None:
        raise BadConfig("the method `distilled` needs the folder or id of a half-depth encoder as `distilled`")
    if PAPER_SETTINGS in plan.methods:
        without = [task for task in plan.tasks if task_name(task) not in TASKS]
        if without:
            raise BadConfig(f"the paper has no settings for {without[0]!r} ({PAPER_SETTINGS}); it has for {', '.join(TASKS)}")
    for method, settings in plan.by_method.items():
        shared = [key for key in settings if key in SHARED]
        if shared:
            raise BadConfig(f"by_method.{method} sets `{shared[0]}`, which all methods of a task share; use by_task")
    for method, turned in plan.knobs.items():
        for key, values in turned.items():
            if key.split(".")[0] in SHARED:
                raise BadConfig(f"knobs.{method} turns `{key}`, which all methods of a task share; use by_task")
            if not values:
                raise BadConfig(f"knobs.{method}: `{key}` has no values; leave it out or give some")
    names = [cell.name for cell in cells(plan)]  # which refuses settings that are not
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise BadConfig(f"two runs would have the name {doubled[0]}; tasks, seeds and values of a knob have to differ")


def joined(before: Plan, now: Plan, where: Path) -> Plan:
    """A study's plan together with the one it goes on by. It may grow by tasks, methods, seeds and knobs, and the paths of
    data and models may be others; nothing else may change, nor the settings of a task or method that has any."""
    moves = {"data", "distilled"}
    changed = []
    found: dict[str, Any] = {}
    for key in Plan.model_fields:
        one, other = getattr(before, key), getattr(now, key)
        if key in ("tasks", "methods", "seeds"):
            found[key] = tuple(dict.fromkeys((*one, *other)))
        elif key in ("by_task", "by_method"):
            changed += [f"{key}.{name}" for name in one if name in other and one[name] != other[name]]
            found[key] = {**one, **other}
        elif key == "knobs":
            found[key] = _grown(one, other)
        elif key not in moves and one != other:
            changed.append(key)
    if before.distilled and now.distilled and Path(before.distilled).name != Path(now.distilled).name:
        changed.append("distilled")
    if changed:
        raise BadConfig(f"{where} holds a study with other {', '.join(changed)}; choose another --out")
    return now.model_copy(update={**found, "distilled": now.distilled or before.distilled})


def task_name(task: str) -> str:
    """What a task is called in file names, records and tables."""
    return Path(task).name or task


def cells(plan: Plan) -> list[Cell]:
    """Every run, task by task; within one the full-length model first, since the others are held against it."""
    made = []
    for task, seed in itertools.product(plan.tasks, plan.seeds):
        for method in sorted(plan.methods, key=lambda method: method != "full"):
            made += [_cell(plan, task, method, seed, knob) for knob in _knobs(plan, method)]
    return made


def _grown(one: dict[str, dict[str, list[Any]]], other: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Knobs of both, and of those both turn the values of both."""
    grown = {method: dict(turned) for method, turned in one.items()}
    for method, turned in other.items():
        own = grown.setdefault(method, {})
        for key, values in turned.items():
            own[key] = [*own.get(key, []), *(value for value in values if value not in own.get(key, []))]
    return grown


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).replace("/", "_")


def _knobs(plan: Plan, method: str) -> list[dict[str, Any]]:
    turned = plan.knobs.get(method, {})
    return [dict(zip(turned, values, strict=True)) for values in itertools.product(*turned.values())]


def _cell(plan: Plan, task: str, method: Method, seed: int, knob: dict[str, Any]) -> Cell:
    source = task if plan.data is None else str(Path(plan.data) / task)
    fixed: dict[str, Any] = {
        "model": plan.distilled if method == "distilled" else plan.model,
        "data": {"source": source, "test": False},
        "run": {"seed": seed, "report_examples": False},
        "steer": {"max_loss": plan.max_loss},
    }
    if method not in STATIC:
        fixed["method"] = "adapler" if method == PAPER_SETTINGS else method
    layers = [plan.settings, plan.by_task.get(task, {}), plan.by_method.get(method, {})]
    if method == PAPER_SETTINGS:
        fixed["data"] |= {"unlabelled": None, "unlabelled_limit": None}  # nothing settles, so nothing reads them
        preset = TASKS[task_name(task)].paper
        layers += [{"reduce": {**preset["reduce"], "settle_epochs": 0}, "steer": {**preset["steer"], "settle_from": None}}]
    turned = parse_assignments(f"{key}={json.dumps(value)}" for key, value in knob.items())
    return Cell(task_name(task), method, seed, knob, build_config(*layers, turned, fixed))
