"""The dial of a real (tiny) model: every point says what running at its scale gives."""

from __future__ import annotations

import pytest

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, TextEncoder
from adapler.dial import measure
from adapler.evaluation.outcome import run, score
from adapler.methods.adapler import AdapLeR
from tests.tiny import tiny_bert, tiny_reducer, tiny_texts, tiny_tokenizer

Parts = tuple[Backbone, AdapLeR, list[EncodedText], list[int]]


@pytest.fixture(scope="module")
def parts() -> Parts:
    backbone = view(tiny_bert())
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(60))
    return backbone, tiny_reducer(backbone, eta=0.4), texts, run(backbone, None, texts).predictions.tolist()


def test_points_are_what_running_at_their_scale_gives(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    dial, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", grid=(0.5, 1.0, 2.0))
    assert [p.scale for p in points] == [0.0, 0.5, 1.0, 2.0] and set(dial.points) <= set(points)
    assert points[0].name == "full" and points[0].score == 1.0 and points[0].flops_speedup == 1.0
    for point in points[1:]:
        outcome = run(backbone, reducer, texts, scale=point.scale)
        assert point.score == score("accuracy", labels, outcome.predictions)
        assert point.flops_speedup == outcome.speedups.flops_speedup
    speeds = [p.flops_speedup for p in points[1:]]
    assert speeds == sorted(speeds) and speeds[-1] > 1.2 * speeds[0]  # the dial turns


def test_losses_count_from_the_reference(parts: Parts) -> None:
    backbone, reducer, texts, labels = parts
    reference = ("another", 0.9)
    dial, points = measure(backbone, reducer, texts, labels, "accuracy", data="made", reference=reference, grid=(1.0,))
    assert dial.reference == "another"
    assert points[0].loss_points == pytest.approx(-10.0)
