"""A generated task whose label depends on one of three known words among many that mean nothing; and a tiny model for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adapler.checkpoint import quiet
from tests.tiny import WORDS, tiny_bert, tiny_tokenizer

PLANTED = ("great", "boring", "sweet")
FILLERS = tuple(word for word in WORDS if len(word) > 1 and word not in PLANTED)


def write_planted_data(folder: Path, train: int = 600, dev: int = 120, test: int = 120, seed: int = 0) -> Path:
    """Splits of sentences of 10 to 24 fillers with one planted word, whose number is the label."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as stream:
            for _ in range(count):
                words = random.choice(FILLERS, int(random.integers(10, 25))).tolist()
                label = int(random.integers(len(PLANTED)))
                words.insert(int(random.integers(len(words) + 1)), PLANTED[label])
                stream.write(json.dumps({"text": " ".join(words), "label": PLANTED[label]}) + "\n")
    return folder


def write_tiny_encoder(folder: Path, layers: int = 3, dropout: float = 0.1) -> Path:
    """An encoder folder with random weights, to train from."""
    with quiet():
        model = tiny_bert(layers=layers, hidden=32, heads=4, labels=2, dropout=dropout, max_positions=64)
        model.base_model.save_pretrained(folder)
        tiny_tokenizer(64).save_pretrained(folder)
    return folder


def planted_settings(folder: Path) -> dict[str, Any]:
    """Settings of a run of a few seconds, with its data and encoder written below `folder`."""
    return {
        "model": str(write_tiny_encoder(folder / "encoder")),
        "data": {"source": str(write_planted_data(folder / "data")), "max_length": 64},
        "finetune": {"epochs": 6, "lr": 3e-3},
        "reduce": {"epochs": 5, "lr": 1e-3, "gamma": 0.1, "phi": 0.02, "predictor_lr": 1e-2},
    }


def write_annotated_data(
    folder: Path, train: int = 300, dev: int = 60, test: int = 80, seed: int = 0, pair: bool = False, words: int = 24
) -> Path:
    """The same task as documents in ERASER's form: the planted word and the one behind it are the rationale.

    With `pair` the planted word is one of two labels, which a second text asks for."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as stream:
            for number in range(count):
                text = random.choice(FILLERS, int(random.integers(words // 2, words))).tolist()
                label, place = int(random.integers(len(PLANTED))), int(random.integers(len(text)))
                text.insert(place, PLANTED[label])
                marks = [int(place <= index <= place + 1) for index in range(len(text))]
                row = {"text": " ".join(text), "label": label, "words": text, "rationale": marks, "id": str(number)}
                stream.write(json.dumps(row | ({"text_pair": "what is it ?"} if pair else {})) + "\n")
    return folder
