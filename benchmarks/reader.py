"""Pairs that teach an encoder to read a text beside a question or a claim about it: QNLI and MNLI as one task of two labels.

    python -m benchmarks.reader ../shared/data --out runs/reader-pairs
    adapler study run benchmarks/reader.yaml --out runs/reader

The pilot on questions starts from the model that comes of it. The text stands first, as a passage does there; a pair is true
where the text answers the question, or the claim follows from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from adapler.data.files import PAIR_COLUMN, open_table
from adapler.data.load import split_files

TRUE = 0
"""Number of the label in both tasks: `entailment`."""
SIDES = {"qnli": (PAIR_COLUMN, "text"), "mnli": ("text", PAIR_COLUMN)}
"""Where the text stands, and what is asked or claimed."""


def main(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder in which the tasks' folders lie.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    limit: Annotated[int, typer.Option(min=1, help="Training pairs of each task.")] = 10000,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Write the pairs as splits."""
    out.mkdir(parents=True, exist_ok=True)
    for split, most in (("train", limit), ("dev", 500), ("test", 1000)):
        made = []
        for task, (text, asked) in SIDES.items():
            with open_table(split_files(data / task)[split]) as table:
                rows = [row for _, row in table.rows([text, asked, "label"])]
            for index in np.random.default_rng(seed).permutation(len(rows))[:most]:
                first, second, label = rows[index]
                made.append({"text": first, PAIR_COLUMN: second, "label": "true" if label == TRUE else "false"})
        with (out / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
        typer.echo(f"{split}: {len(made)} pairs")


if __name__ == "__main__":
    typer.run(main)
