"""Real training runs, recorded: a reduced model against a full-length one that was given every chance.

    python -m benchmarks.train_runs --data PATH/TO/sst2 --seed 0 --work runs/bench

The full-length model is fine-tuned on the same examples with as many epochs as all phases together, at two learning
rates; dev chooses. The reduced model is the one dev chose during training. Both then see test once.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from adapler.config import TrainConfig, build_config, parse_assignments
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.records import Record, write_records
from adapler.study.static import best_full_length
from adapler.training.progress import Silent, progress_for
from adapler.training.run import train

RESULTS = Path(__file__).parent / "results"
FULL_RATES = (5e-5, 1e-4)


def main(
    data: Annotated[str, typer.Option(help="Folder of splits.")],
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    work: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs/bench"),
    variant: Annotated[str, typer.Option(help="Name of the settings tried.")] = "default",
    assign: Annotated[list[str] | None, typer.Option("--set", help="Settings, key=value.")] = None,
) -> None:
    """Train reduced and full, evaluate both on test, write benchmarks/results/train-TASK-SEED.json."""
    console = Console(stderr=True)
    base = {"data": {"source": data, "train_limit": 6000}, "run": {"seed": seed}}
    config = build_config(base, parse_assignments(assign or []))
    name = f"{Path(data).name}-{variant}-{seed}"
    with progress_for(console, quiet=False) as progress:
        report = train(config, work / name, progress)
    console.print(report["account"])
    full = _full(config, work / f"{Path(data).name}-full-{seed}", console)
    test = report["splits"]["test"]
    record = Record(
        kind="train",
        task=report["task"],
        method="adapler",
        variant=variant,
        backbone=config.model,
        seed=seed,
        split="test",
        n=test["n"],
        n_train=report["n_train"],
        metric=report["metric"],
        score=test["score"],
        score_full=full["score"],
        loss_points=100 * (full["score"] - test["score"]),
        flops_speedup=test["flops_speedup"],
        flops_speedup_executed=test["flops_speedup_executed"],
        flops_speedup_padded=test["flops_speedup_padded"],
        flops_speedup_authors=test["flops_speedup_authors"],
        threads=torch.get_num_threads(),
        config={**report["config"], "data": {**report["config"]["data"], "source": Path(data).name}},
    )
    baseline = replace(
        record,
        method="full",
        variant=f"{full['epochs']} epochs at {full['lr']:g}",
        score=full["score"],
        loss_points=0.0,
        flops_speedup=1.0,
        flops_speedup_executed=None,
        flops_speedup_padded=None,
        flops_speedup_authors=None,
        config=full,
    )
    slug = re.sub(r"\W+", "-", variant)
    write_records(RESULTS / f"train-{report['task']}-{slug}-{seed}.json", [record, baseline])
    console.print(
        f"{report['task']} seed {seed}: {report['metric']} {100 * test['score']:.2f} at {test['flops_speedup']:.2f}x, "
        f"full {100 * full['score']:.2f}, loss {record.loss_points:.2f}"
    )


def _full(config: TrainConfig, folder: Path, console: Console) -> dict[str, Any]:
    """The better of two full-length fine-tunings by dev score; computed once per task, seed and settings."""
    asked = {"epochs": config.epochs, "n_train": config.data.train_limit, "seed": config.run.seed}
    file = folder / "full.json"
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        if all(found.get(key) == value for key, value in asked.items()):
            return found
    lines = Silent(console)
    full = best_full_length(config, folder, epochs=config.epochs, rates=FULL_RATES, progress=lines)
    prepared = full.prepared
    test = prepared.dataset.test
    if test is None or prepared.test is None:
        raise SystemExit("the data has no test split")
    predictions = run(prepared.backbone, None, prepared.test).predictions
    best = {**asked, "lr": full.lr, "dev": full.dev, "score": score(prepared.dataset.metric, test.labels, predictions)}
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(best))
    return best


if __name__ == "__main__":
    typer.run(main)
