"""Phase 3 again and again from one fine-tuned model, changed in one thing at a time.

    python -m benchmarks.variants RUN                        with and without a teacher, with and without random scales
    python -m benchmarks.variants RUN --what ablations       without one idea of the method each; and a grid of phi and gamma

RUN is a finished run of `adapler train`; its fine-tuned checkpoints and saliencies are taken as they are, so that the
variants differ in phase 3 alone. Writes benchmarks/results/curve-WHAT-TASK.json: each variant's kept epoch at every scale of
its thresholds, on test. None of these points was chosen on dev: they are curves, not results.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from adapler import checkpoint
from adapler.config import TrainConfig, build_config
from adapler.data.load import read_split
from adapler.data.text import TextEncoder
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.records import Record, write_records
from adapler.training.borrow import CONFIG_FILE, same_finetuning
from adapler.training.progress import Lines
from adapler.training.run import train

RESULTS = Path(__file__).parent / "results"


class What(StrEnum):
    """Which variants."""

    variants = "variants"
    ablations = "ablations"


TEACHERS: dict[str, dict[str, Any]] = {
    "labels alone": {"steer": {"distill": 0.0, "hint": 0.0}},
    "teacher's answers": {"steer": {"distill": 0.5, "hint": 0.0}},
    "teacher's answers and vectors": {"steer": {"distill": 0.5, "hint": 1.0}},
    "teacher's answers and vectors, random scales": {
        "steer": {"distill": 0.5, "hint": 1.0, "scale_low": 0.7, "scale_high": 1.4}
    },
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "exclusive KL": {"reduce": {"divergence": "exclusive"}},
    "Jensen-Shannon": {"reduce": {"divergence": "jensen_shannon"}},
    "theta fixed at 1": {"reduce": {"learn_theta": False}},
    "one loss for all": {"reduce": {"merged": True}},
    "hard removal from the start": {"reduce": {"lambda_base": 1e6, "lambda_growth": 1.001}},
    "saliency of one checkpoint": {"finetune": {"checkpoints": 1}},
    "attention as the target": {"reduce": {"target": "attention"}},
    "predictors that leave the network alone": {"reduce": {"apart": True}},
    "from pre-trained weights": {"reduce": {"start": "pretrained"}},
    "without a teacher": {"steer": {"distill": 0.0, "hint": 0.0}},
    **{
        f"phi {phi:g}, gamma {gamma:g}": {"steer": {"target_speedup": None}, "reduce": {"phi": phi, "gamma": gamma}}
        for phi in (0.005, 0.02, 0.08)
        for gamma in (0.03, 0.3)
    },
}
VARIANTS = {What.variants: TEACHERS, What.ablations: ABLATIONS}


def main(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    what: Annotated[What, typer.Option(help="Which variants.")] = What.variants,
    work: Annotated[Path, typer.Option(help="Where the variants are kept.")] = Path("runs/variants"),
) -> None:
    """Train every variant, measure its curve on test, write the records."""
    before = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    console = Console(stderr=True)
    records: list[Record] = []
    for name, changes in VARIANTS[what].items():
        console.print(name)
        config = build_config(before, changes)
        folder = work / re.sub(r"[^0-9a-zA-Z.]+", "-", name)
        borrowed = same_finetuning(build_config(before), config) and not folder.exists()
        report = train(config, folder, Lines(console), finetuned_from=source if borrowed else None)
        records += _curve(name, config, folder, report)
    write_records(RESULTS / f"curve-{what}-{Path(before['data']['source']).name}.json", records)


def _curve(name: str, config: TrainConfig, folder: Path, report: dict[str, Any]) -> list[Record]:
    """The variant at every scale, as its thresholds left training."""
    opened = checkpoint.load(folder)
    assert opened.reducer is not None
    test, metric = read_split(config.data, "test", opened.backbone.labels)
    texts = TextEncoder(opened.tokenizer, opened.max_length)(test.texts)
    made = []
    for scale in opened.reducer.scales:
        relative = scale / report["kept_scale"]
        outcome = run(opened.backbone, opened.reducer if scale else None, texts, scale=relative or None)
        made.append(
            Record(
                kind="curve",
                task=report["task"],
                method="adapler",
                variant=name,
                backbone=config.model,
                point=f"scale {scale:g}",
                seed=config.run.seed,
                split="test",
                n=len(texts),
                n_train=report["n_train"],
                metric=metric,
                score=score(metric, test.labels, outcome.predictions),
                flops_speedup=outcome.speedups.flops_speedup,
                flops_speedup_executed=outcome.speedups.flops_speedup_executed,
                threads=torch.get_num_threads(),
                config={"steer": config.steer.model_dump(), "reduce": config.reduce.model_dump()},
            )
        )
    return made


if __name__ == "__main__":
    typer.run(main)
