"""A pair task's training pairs changed a little, as pairs without labels for a teacher to answer.

    python -m benchmarks.pairs ../shared/data/mrpc --out runs/mrpc-pairs.jsonl
    adapler train --data ../shared/data/mrpc --set data.unlabelled=runs/mrpc-pairs.jsonl --set reduce.settle_epochs=4 ...

A small task leaves no texts over to settle on, and passes over the same few are learnt by heart. So every pair is given with
its sides swapped, and with words left out at random in either order: near enough to the task for the teacher's answer to be
worth learning. (Sentences of different pairs, even the nearest, have so little in common that its answer is always the same.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from adapler.data.files import PAIR_COLUMN, read_texts
from adapler.data.load import split_files


def changed(pairs: list[tuple[str, str]], share: float, random: np.random.Generator) -> list[tuple[str, str]]:
    """Every pair swapped, with words left out, and both; none that was given, none twice."""

    def fewer(sentence: str) -> str:
        words = sentence.split()
        stay = random.random(len(words)) >= share
        return " ".join(word for word, stays in zip(words, stay, strict=True) if stays) or sentence

    made: list[tuple[str, str]] = []
    for first, second in pairs:
        made += [(second, first), (fewer(first), fewer(second)), (fewer(second), fewer(first))]
    given = set(pairs)
    return [pair for pair in dict.fromkeys(made) if pair not in given]


def main(
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of splits of a pair task.")],
    out: Annotated[Path, typer.Option(help="JSON lines file to write.")],
    share: Annotated[float, typer.Option(min=0, max=1, help="Of words left out.")] = 0.1,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Write the changed pairs."""
    pairs = [text for text in read_texts(split_files(source)["train"]) if isinstance(text, tuple)]
    made = changed(pairs, share, np.random.default_rng(seed))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for first, second in made:
            file.write(json.dumps({"text": first, PAIR_COLUMN: second}, ensure_ascii=False) + "\n")
    typer.echo(f"{len(made)} new pairs of {len(pairs)}")


if __name__ == "__main__":
    typer.run(main)
