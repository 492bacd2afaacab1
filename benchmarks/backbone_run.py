"""A finished run on another backbone, as a record: `python -m benchmarks.backbone_run RUN`, after `adapler train --out RUN`.

Its loss is against the fine-tuning it started from, as its report says; how fast it is, `adapler bench RUN` measures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from adapler.records import Record, write_records

RESULTS = Path(__file__).parent / "results"


def main(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]) -> None:
    """Write benchmarks/results/backbone-TASK-BACKBONE.json."""
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    test, config = report["splits"]["test"], report["config"]
    backbone = Path(config["model"]).name
    record = Record(
        kind="train",
        task=report["task"],
        method="adapler",
        variant="against its own fine-tuning",
        backbone=backbone,
        seed=config["run"]["seed"],
        split="test",
        n=test["n"],
        n_train=report["n_train"],
        metric=report["metric"],
        score=test["score"],
        score_full=test["score_full"],
        loss_points=test["loss_points"],
        flops_speedup=test["flops_speedup"],
        flops_speedup_executed=test["flops_speedup_executed"],
        flops_speedup_padded=test["flops_speedup_padded"],
        flops_speedup_authors=test["flops_speedup_authors"],
        threads=report["threads"],
        config={**config, "model": backbone, "data": {**config["data"], "source": report["task"]}},
        commit=report["commit"],
    )
    write_records(RESULTS / f"backbone-{report['task']}-{re.sub(r'[^0-9a-zA-Z]+', '-', backbone)}.json", [record])
    typer.echo(report["account"])


if __name__ == "__main__":
    typer.run(main)
