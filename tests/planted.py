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
