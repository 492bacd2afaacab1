"""The pilot of the paper's Table 2 as data: which words a model is fine-tuned and tested on, for which tasks and seeds. No
torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from adapler.config import Settings, TrainConfig, build_config, read_config
from adapler.data.annotated import Positions, Rule
from adapler.errors import BadConfig

RowName = Literal["full", "human", "saliency", "attention_all", "attention_cls", "random"]
ROWS: tuple[RowName, ...] = ("full", "human", "saliency", "attention_all", "attention_cls", "random")
CHOSEN_BY: dict[str, str] = {
    "saliency": "saliency",
    "attention_all": "rollout",
    "attention_cls": "rollout_cls",
    "random": "random",
}
"""Rows whose words an explainer of the full-length model chooses: its name in the table of explainers."""


class RationalePlan(Settings):
    """What a pilot runs."""

    tasks: tuple[str, ...] = Field(min_length=1, description="Folders of annotated splits (train, dev, test).")
    data: str | None = Field(None, description="Folder in which the tasks' folders lie.")
    rows: tuple[RowName, ...] = Field(ROWS[:5], min_length=1, description="In the order of the table.")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="Every row is run with each.")
    model: str = Field("minilm", description="Backbone of every row.")
    rates: tuple[float, ...] = Field((1e-4,), min_length=1, description="Learning rates tried; dev chooses.")
    window: Rule = Field("whole", description="How long documents are cut.")
    max_windows: int | None = Field(None, ge=1, description="Windows taken of a document, from its beginning; all by default.")
    positions: Positions = Field("original", description="Of chosen words: where they stood in the window, or closed up.")
    target: Literal["predicted", "gold"] = Field("predicted", description="The class whose saliency chooses words.")
    dev_limit: int | None = Field(None, ge=1, description="Only so many dev documents, drawn by the seed.")
    test_limit: int | None = Field(None, ge=1, description="Only so many test documents, spread over the file.")
    settings: dict[str, Any] = Field({}, description="Settings of training: finetune.*, data.max_length, data.train_limit.")
    by_task: dict[str, dict[str, Any]] = Field({}, description="And for the cells of a task.")


@dataclass(frozen=True)
class RationaleCell:
    """One training run of a pilot."""

    task: str
    row: RowName
    seed: int
    config: TrainConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.task}-{self.row}-{self.seed}"


def read_rationale_plan(path: Path) -> RationalePlan:
    """A plan from a YAML or JSON file."""
    try:
        plan = RationalePlan.model_validate(read_config(path))
    except ValidationError as error:
        first = error.errors()[0]
        known = f"; known: {', '.join(RationalePlan.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise BadConfig(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}{known}") from error
    unknown = set(plan.by_task) - set(plan.tasks)
    if unknown:
        raise BadConfig(f"{path}: by_task names {sorted(unknown)[0]!r}, which is not in the study")
    if "full" not in plan.rows:
        raise BadConfig(f"{path}: rows must hold `full`: it chooses the words of others, and all are held against it")
    for key, given in (("settings", plan.settings), *((f"by_task.{task}", own) for task, own in plan.by_task.items())):
        unused = [name for name in given if name not in ("data", "finetune", "run")]
        if unused:
            raise BadConfig(f"{path}: {key} sets `{unused[0]}`, which a pilot does not use; it fine-tunes: data, finetune, run")
        if "lr" in given.get("finetune", {}):
            raise BadConfig(f"{path}: {key} sets finetune.lr; a pilot tries `rates`")
    names = [cell.name for cell in rationale_cells(plan)]  # which refuses settings that are not
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise BadConfig(f"{path}: two runs would have the name {doubled[0]}; tasks, rows and seeds have to differ")
    return plan


def rationale_cells(plan: RationalePlan) -> list[RationaleCell]:
    """Every run, task by task; within one the full-length model first."""
    made = []
    for task, seed in itertools.product(plan.tasks, plan.seeds):
        source = task if plan.data is None else str(Path(plan.data) / task)
        fixed: dict[str, Any] = {"model": plan.model, "data": {"source": source, "test": False}, "run": {"seed": seed}}
        config = build_config(plan.settings, plan.by_task.get(task, {}), fixed)
        rows = sorted(plan.rows, key=lambda row: row != "full")
        made += [RationaleCell(Path(task).name, row, seed, config) for row in rows]
    return made
