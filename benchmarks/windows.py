"""Annotated documents as the windows a rationale is measured on, written as texts to train on.

    python -m benchmarks.windows ../shared/data/eraser_movies --out runs/movies-windows
    adapler train --data runs/movies-windows --set max_length=512 --out runs/movies

A document is longer than a model reads; trained on its beginning alone, a model would be asked about parts it never saw the
like of. The rule is `adapler rationale`'s default: whole words, no rationale split, windows without a marked word left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from transformers import AutoTokenizer

from adapler.data.annotated import Cutter, read_documents
from adapler.data.files import PAIR_COLUMN
from adapler.data.load import split_files
from adapler.training.setup import model_folder


def main(
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of annotated splits.")],
    out: Annotated[Path, typer.Option(help="Folder to write: a JSON lines file a split.")],
    model: Annotated[str, typer.Option(help="Whose tokens are counted.")] = "minilm",
    max_length: Annotated[int, typer.Option(min=8, help="Tokens of a window.")] = 512,
    train_limit: Annotated[int | None, typer.Option(min=1, help="Documents of train, the first ones.")] = None,
) -> None:
    """Write the windows of every split."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder(model), local_files_only=True, trust_remote_code=False)
    cutter = Cutter(tokenizer, max_length)
    out.mkdir(parents=True, exist_ok=True)
    for split in split_files(source):
        documents, without = read_documents(str(source), split)
        if split == "train":
            documents = documents[:train_limit]
        cut = cutter(documents, [0] * len(documents))
        with (out / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for window in cut.windows:
                document = documents[window.document]
                assert window.words is not None
                first, last = window.words
                row = {"text": " ".join(document.words[first:last]), "label": document.label}
                if document.pair is not None:
                    row[PAIR_COLUMN] = document.pair
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        left_out = f"{without} documents not annotated, {cut.unmarked} windows without a mark left out"
        typer.echo(f"{split}: {len(documents)} documents in {len(cut.windows)} windows; {left_out}")


if __name__ == "__main__":
    typer.run(main)
