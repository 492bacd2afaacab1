"""A trained model in every runtime, on real texts: the same answers as `encode`; and a dial that holds on data it never saw.

    python -m benchmarks.agreement MODEL --data PATH/TO/ag_news

Writes benchmarks/results/prove-runtimes-TASK.json: per runtime, how many of 500 test texts get the label that `encode` gives
each of them alone, how many of their tokens go exactly as deep, and the score on all of test beside torch's. Writes
curve-dial-TASK.json: every operating point that
was measured on dev, measured again on test, with a 95% interval of its loss.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.classifier import Classifier
from adapler.config import DataSettings, build_config
from adapler.data.labels import Examples
from adapler.data.load import read_split
from adapler.data.text import EncodedText, Text, TextEncoder
from adapler.engine import encode, pack
from adapler.evaluation.evaluate import paired_bootstrap
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.export import EXPORTS
from adapler.export.write import export
from adapler.folder import check_folder
from adapler.points import Dial
from adapler.prediction import Prediction
from adapler.records import Record, write_records

RESULTS = Path(__file__).parent / "results"
TEXTS = 500
CALIBRATE = 256


def main(
    model: Annotated[Path, typer.Argument(help="Folder of a reduced model with a dial.")],
    data: Annotated[str, typer.Option(help="Folder of splits.")],
) -> None:
    """Compare the runtimes, then the dial's promises, on test."""
    folder = check_folder(model)
    if folder.reduction is None or folder.reduction.dial is None:
        raise SystemExit(f"{model} has no dial; measure it: adapler dial MODEL --data DEV")
    opened = checkpoint.load(folder)
    settings = build_config({"data": {"source": data}}).data
    task = Path(data).name
    test, metric = read_split(settings, "test", opened.backbone.labels, opened.backbone.problem)
    encoder = TextEncoder(opened.tokenizer, opened.max_length)
    shared = Record(kind="prove", task=task, split="test", threads=torch.get_num_threads())
    compared = _runtimes(shared, opened, test, metric, encoder, _calibration(settings, opened, encoder))
    write_records(RESULTS / f"prove-runtimes-{task}.json", compared)
    texts, labels = encoder(test.texts), np.asarray(test.labels)
    write_records(RESULTS / f"curve-dial-{task}.json", _dial(shared, opened, folder.reduction.dial, metric, texts, labels))


def _some(texts: Sequence[Text]) -> list[Text]:
    chosen = np.random.default_rng(0).permutation(len(texts))[:TEXTS]
    return [texts[index] for index in chosen]


def _calibration(settings: DataSettings, opened: checkpoint.Checkpoint, encoder: TextEncoder) -> list[EncodedText]:
    return encoder(read_split(settings, "train", opened.backbone.labels)[0].texts[:CALIBRATE])


def _runtimes(
    shared: Record,
    opened: checkpoint.Checkpoint,
    test: Examples,
    metric: str,
    encoder: TextEncoder,
    seen: list[EncodedText],
) -> list[Record]:
    texts = _some(test.texts)
    expected = [_alone(opened, text) for text in encoder(texts)]
    labels, depths = [label for label, _ in expected], [depth for _, depth in expected]
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        classifiers = {"torch": Classifier(opened.backbone, opened.tokenizer, opened.reducer, max_length=opened.max_length)}
        for name, calibrated in (*((name, None) for name in EXPORTS), ("onnx-int8", seen)):
            shown = name if calibrated is None else f"{name} calibrated"
            export(opened, Path(scratch) / shown, to=name, texts=calibrated)
            classifiers[shown] = Classifier.from_pretrained(Path(scratch) / shown, point="trained")
        numbers = {label: number for number, label in enumerate(opened.backbone.labels)}
        scores = {
            shown: score(metric, test.labels, np.asarray([numbers[answer.label] for answer in classifier(test.texts)]))
            for shown, classifier in classifiers.items()
        }
        for shown, classifier in classifiers.items():
            answers: list[Prediction] = classifier(texts)
            same_labels = sum(a.label == label for a, label in zip(answers, labels, strict=True))
            pairs = [(a.depths, depth) for a, depth in zip(answers, depths, strict=True)]
            tokens = sum(len(depth) for depth in depths)
            same_tokens = sum(one == other for ours, theirs in pairs for one, other in zip(ours, theirs, strict=True))
            records.append(
                Record(
                    kind="prove",
                    task=shared.task,
                    split="test",
                    variant=f"{shown} as encode, {shared.task}",
                    runtime=classifier.runtime.name,
                    n=len(texts),
                    value=100 * same_labels / len(texts),
                    unit="% of labels the same",
                    metric=metric,
                    score=scores[shown],
                    loss_points=100 * (scores["torch"] - scores[shown]),
                    threads=shared.threads,
                    config={"tokens": tokens, "tokens_as_deep": same_tokens, "scored": len(test.texts)},
                )
            )
    return records


def _alone(opened: checkpoint.Checkpoint, text: EncodedText) -> tuple[str, list[int]]:
    """Label and depths by `encode`, one text at a time."""
    with torch.inference_mode():
        tokens, counts = pack(opened.backbone, [text], torch.device("cpu"))
        logits, trace = encode(opened.backbone, tokens, opened.reducer)
    depths: list[int] = trace.depths(counts).tolist()
    return opened.backbone.labels[int(logits[0].argmax())], depths


def _dial(
    shared: Record,
    opened: checkpoint.Checkpoint,
    dial: Dial,
    metric: str,
    texts: list[EncodedText],
    labels: NDArray[np.int64],
) -> list[Record]:
    """Each point on test; losses, on both splits, from this model at full length."""
    full = run(opened.backbone, None, texts).predictions
    on_dev = next((point.score for point in dial.points if point.scale == 0), None)
    records = []
    for point in [point for point in dial.points if point.escalate is None]:
        outcome = run(opened.backbone, opened.reducer if point.scale else None, texts, scale=point.scale or None)
        low, high = paired_bootstrap(metric, labels, full, outcome.predictions)
        reached = score(metric, labels, outcome.predictions)
        promised: dict[str, Any] = {
            "dev_score": point.score,
            "dev_flops_speedup": point.flops_speedup,
            "loss_points_95": [low, high],
        }
        if on_dev is not None:
            promised["dev_loss_points"] = 100 * (on_dev - point.score)
        records.append(
            Record(
                kind="curve",
                task=shared.task,
                method="adapler",
                split="test",
                point=point.name,
                n=len(texts),
                metric=metric,
                score=reached,
                score_full=score(metric, labels, full),
                loss_points=100 * (score(metric, labels, full) - reached),
                flops_speedup=outcome.speedups.flops_speedup,
                flops_speedup_executed=outcome.speedups.flops_speedup_executed,
                threads=shared.threads,
                config=promised,
            )
        )
    return records


if __name__ == "__main__":
    typer.run(main)
