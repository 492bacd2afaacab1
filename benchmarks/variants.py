"""Phase 3 again and again from one fine-tuned model: with and without a teacher, with and without random scales.

    python -m benchmarks.variants RUN --data PATH/TO/sst2

RUN is a finished run of `adapler train`; its fine-tuned checkpoints and saliencies are taken as they are, so that the
variants differ in phase 3 alone. Writes benchmarks/results/curve-variants-TASK.json: each variant's kept epoch at every
scale of its thresholds, on test. None of these points was chosen on dev: they are curves, not results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from adapler.config import build_config
from adapler.dial import GRID
from adapler.evaluation.outcome import run, score
from adapler.records import Record, write_records
from adapler.training.adapler import AdapLeRRecipe
from adapler.training.finetune import Finetune
from adapler.training.progress import Lines
from adapler.training.reducing import Given
from adapler.training.run import CONFIG_FILE
from adapler.training.session import Session
from adapler.training.setup import prepare
from adapler.training.snapshot import Snapshots

RESULTS = Path(__file__).parent / "results"
VARIANTS: dict[str, dict[str, float]] = {
    "labels alone": {"distill": 0.0, "hint": 0.0},
    "teacher's answers": {"distill": 0.5, "hint": 0.0},
    "teacher's answers and vectors": {"distill": 0.5, "hint": 1.0},
    "teacher's answers and vectors, random scales": {"distill": 0.5, "hint": 1.0, "scale_low": 0.7, "scale_high": 1.4},
}


def main(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[str, typer.Option(help="Folder of splits the run was trained on.")],
    work: Annotated[Path, typer.Option(help="Where the variants are kept.")] = Path("runs/variants"),
) -> None:
    """Train every variant, measure its curve on test, write the records."""
    before = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    console = Console(stderr=True)
    records = []
    for name, steer in VARIANTS.items():
        console.print(name)
        config = build_config(before, {"data": {"source": data}, "steer": steer})
        records += _variant(name, config, source, work / name.replace(" ", "-"), Lines(console))
        write_records(RESULTS / f"curve-variants-{Path(data).name}.json", records)


def _variant(name: str, config: Any, source: Path, folder: Path, progress: Lines) -> list[Record]:
    prepared = prepare(config)
    session = Session(Snapshots(folder / "snapshots", 1, progress.say), progress, snapshot_seconds=60)
    finetune = Finetune(prepared, config.finetune, config.run, session, source / "work" / "finetuned", None)
    finetune.load_state(json.loads((source / "work" / "finetuned.json").read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "saliency").exists():
        (folder / "saliency").symlink_to((source / "work" / "saliency").resolve())
    torch.set_flush_denormal(True)
    reduced = AdapLeRRecipe().run(Given(config, prepared, session, folder), finetune, session.resume())
    reduced.load_best()
    test = prepared.dataset.test
    if test is None or prepared.test is None:
        raise SystemExit("the data has no test split")
    finetune_scores, kept = max(finetune.scores), reduced.kept or {}
    made = []
    for scale in GRID:
        outcome = run(prepared.backbone, reduced.reducer if scale else None, prepared.test, scale=scale or None)
        made.append(
            Record(
                kind="curve",
                task=prepared.dataset.name,
                method="adapler",
                variant=name,
                backbone=config.model,
                point=f"scale {scale:g}",
                seed=config.run.seed,
                split="test",
                n=len(test),
                n_train=len(prepared.dataset.train),
                metric=prepared.dataset.metric,
                score=score(prepared.dataset.metric, test.labels, outcome.predictions),
                flops_speedup=outcome.speedups.flops_speedup,
                flops_speedup_executed=outcome.speedups.flops_speedup_executed,
                threads=torch.get_num_threads(),
                config={
                    "steer": config.steer.model_dump(),
                    "reduce": config.reduce.model_dump(),
                    "dev_finetuned": finetune_scores,
                    "dev_kept": kept.get("score"),
                    "dev_kept_flops_speedup": kept.get("flops_speedup"),
                },
            )
        )
    return made


if __name__ == "__main__":
    typer.run(main)
