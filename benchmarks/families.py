"""Every family at base size with random weights: the packed engine beside transformers, and what removal makes of it.

    python -m benchmarks.families --data ../shared/data/ag_news

Speed does not depend on what weights have learnt. Texts are random tokens, as many as real texts have; predictors are random,
and one scale of their thresholds is sought that saves about `--speedup` times the FLOPs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from adapler.backbones import BACKBONES, view
from adapler.backbones.base import Backbone
from adapler.config import DataSettings
from adapler.data.load import read_split
from adapler.data.tasks import TASKS
from adapler.data.text import EncodedText
from adapler.engine import model_cost
from adapler.evaluation.outcome import run
from adapler.methods.adapler import AdapLeR, ContributionPredictor
from adapler.records import Record, write_records
from adapler.runtimes.base import all_logits
from adapler.runtimes.torch_packed import TorchPacked
from adapler.timing import race

OUT = Path(__file__).parent / "results" / "families.json"
BASE: dict[str, dict[str, Any]] = {
    "electra": {"hidden_size": 768, "embedding_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    "deberta-v2": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
}
"""What makes a base-sized model of a family whose default config is of another size."""
VOCABULARY = 1000
_LIKE_WORDS = 1.3  # tokens a word


def main(
    data: Annotated[Path, typer.Option(help="Folder of splits whose test texts have the lengths wanted.")],
    count: Annotated[int, typer.Option(help="Texts.")] = 128,
    speedup: Annotated[float, typer.Option(help="FLOPs to save, about.")] = 3.0,
    seconds: Annotated[float, typer.Option(help="For each family.")] = 30.0,
    families: Annotated[list[str] | None, typer.Option("--family", help="Only these; repeat.")] = None,
    out: Annotated[Path, typer.Option(help="Where the records go.")] = OUT,
) -> None:
    """Time every family; write the records."""
    torch.set_flush_denormal(True)
    texts = _texts(data, count)
    records = []
    for family in families or list(BACKBONES):
        records += _timed(family, texts, speedup, seconds)
        for record in records[-3:]:
            typer.echo(f"{family}: {record.variant} {record.value:.1f} texts/s, {record.wall_speedup or 1:.2f}x")
    write_records(out, records)


def _texts(data: Path, count: int) -> list[EncodedText]:
    read, _ = read_split(DataSettings(source=str(data)), "test", TASKS[data.name].labels)
    random = np.random.default_rng(0)
    made = []
    for text in read.texts[:count]:
        words = len((text if isinstance(text, str) else " ".join(text)).split())
        ids = random.integers(10, VOCABULARY, min(128, 2 + round(_LIKE_WORDS * words)))
        made.append(EncodedText(ids, np.zeros_like(ids), [], False))
    return made


def _timed(family: str, texts: Sequence[EncodedText], speedup: float, seconds: float) -> list[Record]:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, num_labels=4, pad_token_id=1, **BASE.get(family, {}))
    model = AutoModelForSequenceClassification.from_config(config).eval()
    backbone = view(model)
    reducer = _reducer(backbone)
    scale = _scale(backbone, reducer, texts[:32], speedup)
    reducer.rescale(scale)
    saved = run(backbone, reducer, texts).speedups
    runtime, plain = TorchPacked(backbone, reducer), TorchPacked(backbone, None)
    names = ("transformers, sorted by length, batches of 32", "adapler, full length", "adapler, reduced")
    timings = race(
        dict(
            zip(
                names,
                (lambda: _in_rows(model, texts), lambda: all_logits(plain, texts), lambda: all_logits(runtime, texts)),
                strict=True,
            )
        ),
        seconds=seconds,
        settle=0.1,
    )
    made = []
    for name, other in zip(names, (None, names[0], names[1]), strict=True):
        rates = [len(texts) / value for value in timings[name].seconds]
        ratios = None if other is None else [b / a for a, b in zip(timings[name].seconds, timings[other].seconds, strict=True)]
        made.append(
            Record(
                kind="bench",
                task="random tokens",
                method="adapler" if name == names[2] else "full",
                variant=name,
                backbone=f"{family} base, random weights",
                runtime="torch",
                n=len(texts),
                value=statistics.median(rates),
                unit="texts/s",
                spread=max(rates) - min(rates),
                repeats=len(rates),
                wall_speedup=None if ratios is None else statistics.median(ratios),
                wall_vs=other,
                threads=torch.get_num_threads(),
                flops_speedup_executed=saved.flops_speedup_executed if name == names[2] else None,
                config={
                    "layers": len(backbone.blocks),
                    "hidden": backbone.hidden_size,
                    "tokens_mean": float(np.mean([len(text.ids) for text in texts])),
                    "gflops_a_text": sum(model_cost(backbone, None).full(len(t.ids)) for t in texts) / len(texts) / 1e9,
                },
            )
        )
    return made


@torch.no_grad()
def _reducer(backbone: Backbone) -> AdapLeR:
    """Random predictors, unlike enough that a threshold parts their scores."""
    reducer = AdapLeR.for_backbone(backbone)
    for predictor in reducer.predictors.children():
        assert isinstance(predictor, ContributionPredictor)
        for dense in (predictor.dense_in, predictor.dense_out):
            dense.weight.normal_(std=dense.in_features**-0.5)
    return reducer.eval()


def _scale(backbone: Backbone, reducer: AdapLeR, texts: Sequence[EncodedText], speedup: float) -> float:
    """The scale of all thresholds nearest to the wish, by halving."""
    low, high = 0.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        reached = run(backbone, reducer, texts, scale=middle).speedups.flops_speedup
        low, high = (middle, high) if reached < speedup else (low, middle)
    return (low + high) / 2


def _in_rows(model: Any, texts: Sequence[EncodedText]) -> None:
    order = sorted(texts, key=lambda text: len(text.ids))
    for first in range(0, len(order), 32):
        batch = order[first : first + 32]
        longest = max(len(text.ids) for text in batch)
        ids = torch.ones(len(batch), longest, dtype=torch.int64)
        real = torch.zeros_like(ids)
        for row, text in enumerate(batch):
            ids[row, : len(text.ids)], real[row, : len(text.ids)] = torch.from_numpy(text.ids), 1
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=real)


if __name__ == "__main__":
    typer.run(main)
