"""A study as data: which tasks, methods and seeds, with which settings; and the cells it consists of. No torch."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from adapler.config import Settings, TrainConfig, build_config, parse_assignments, read_config
from adapler.errors import BadConfig

Method = Literal["words", "full", "distilled", "power", "trbert", "adapler"]
STATIC: tuple[Method, ...] = ("words", "full", "distilled")
"""Methods that remove nothing: an encoder fine-tuned at full length, or none at all."""


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
    method: Method
    seed: int
    knob: dict[str, Any]
    """Settings that set this run apart from others of its task, method and seed."""
    config: TrainConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        knob = "".join(f"-{key.split('.')[-1]}-{value:g}" for key, value in self.knob.items())
        return f"{self.task}-{self.method}{knob}-{self.seed}"


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
    if "distilled" in plan.methods and plan.distilled is None:
        raise BadConfig(f"{path}: the method `distilled` needs the folder or id of a half-depth encoder as `distilled`")
    cells(plan)  # refuses settings that are not
    return plan


def joined(before: Plan, now: Plan, where: Path) -> Plan:
    """A study's plan together with the one it goes on by. It may grow by tasks, methods, seeds and knobs, and the paths of
    data and models may be others; nothing else may change, nor the settings of a task or method that has any."""
    moves = {"tasks", "methods", "seeds", "knobs", "data", "distilled"}
    changed = []
    found: dict[str, Any] = {}
    for key in Plan.model_fields:
        one, other = getattr(before, key), getattr(now, key)
        if key in ("tasks", "methods", "seeds"):
            found[key] = tuple(dict.fromkeys((*one, *other)))
        elif key in ("by_task", "by_method"):
            changed += [f"{key}.{name}" for name in one if name in other and one[name] != other[name]]
            found[key] = {**one, **other}
        elif key not in moves and one != other:
            changed.append(key)
    if changed:
        raise BadConfig(f"{where} holds a study with other {', '.join(changed)}; choose another --out")
    return now.model_copy(update=found)


def cells(plan: Plan) -> list[Cell]:
    """Every run, task by task; within one the full-length model first, since the others are held against it."""
    made = []
    for task, seed in itertools.product(plan.tasks, plan.seeds):
        for method in sorted(plan.methods, key=lambda method: method != "full"):
            made += [_cell(plan, task, method, seed, knob) for knob in _knobs(plan, method)]
    return made


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
        fixed["method"] = method
    layers = (plan.settings, plan.by_task.get(task, {}), plan.by_method.get(method, {}))
    turned = parse_assignments(f"{key}={json.dumps(value)}" for key, value in knob.items())
    return Cell(task, method, seed, knob, build_config(*layers, turned, fixed))
