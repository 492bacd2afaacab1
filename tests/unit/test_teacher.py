"""The phase-1 model as a teacher: its own answers are no distance from it, others are, in units that mean something."""

from __future__ import annotations

import pytest
import torch

from adapler.backbones import view
from adapler.data.text import TextEncoder
from adapler.engine import encode, pack
from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import Losses
from adapler.training.teacher import teach
from tests.tiny import tiny_bert, tiny_texts, tiny_tokenizer


def test_a_teacher_is_no_distance_from_itself_and_some_from_a_reduced_model() -> None:
    backbone = view(tiny_bert())
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(24, seed=1))
    teacher = teach(backbone, texts)
    batch = [5, 3, 17]
    tokens, _ = pack(backbone, [texts[index] for index in batch], torch.device("cpu"))
    with torch.no_grad():
        logits, trace = encode(backbone, tokens)
    assert trace.pooled is not None
    with torch.no_grad():
        assert torch.equal(backbone.classify(trace.pooled), logits)  # the vector is the one the head reads
    assert float(teacher.answer_distance(batch, logits)) == pytest.approx(0, abs=1e-6)
    assert float(teacher.vector_distance(batch, trace.pooled)) == pytest.approx(0, abs=1e-6)

    reducer = AdapLeR.for_backbone(backbone)
    reducer.eta.data.fill_(1.0)
    with torch.no_grad():
        reduced, trace = encode(backbone, tokens, reducer)
    assert trace.pooled is not None
    assert float(teacher.answer_distance(batch, reduced)) > 1e-4
    assert float(teacher.vector_distance(batch, trace.pooled)) > 1e-3


def test_a_constant_in_the_midst_of_the_vectors_is_one_away() -> None:
    backbone = view(tiny_bert())
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(40, seed=2))
    teacher = teach(backbone, texts)
    everyone = list(range(len(texts)))
    middle = teacher.vectors.mean(dim=0).expand(len(texts), -1)
    assert float(teacher.vector_distance(everyone, middle)) == pytest.approx(1.0, rel=1e-5)


def test_asking_the_teacher_leaves_the_model_as_it_was() -> None:
    model = tiny_bert(dropout=0.1).train()
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(8))
    first, second = (teach(view(model), texts).logits for _ in range(2))
    assert model.training and torch.equal(first, second)


def test_both_objectives_follow_the_teacher_and_the_predictors_do_not() -> None:
    label, contribution, length, distance = (torch.tensor(value) for value in (2.0, 3.0, 5.0, 0.5))
    losses = Losses(label, contribution, length, total=label + 0.1 * contribution, combined=label + 0.01 * length)
    hinted = losses.hinted(distance, 4.0)
    assert [float(hinted.total - losses.total), float(hinted.combined - losses.combined)] == pytest.approx([2.0, 2.0])
    assert hinted.contribution is contribution and hinted.length is length
    distilled = losses.distilled(distance, 1.0)
    assert [float(distilled.label), float(losses.total - distilled.total)] == pytest.approx([0.5, 1.5])
