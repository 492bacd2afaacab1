"""Exported tiny models, and the engine's own answers to compare them with. Exporting takes seconds, so pieces are reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from adapler.backbones.base import Backbone
from adapler.checkpoint import Checkpoint
from adapler.classifier import Classifier
from adapler.data.text import EncodedText, TextEncoder
from adapler.engine import encode, pack
from adapler.export import encode as graph_module
from adapler.export.pieces import export_pieces
from adapler.export.write import export
from adapler.runtimes.base import Answer, Runtime
from adapler.runtimes.exported import check_exported, seal_exported
from adapler.runtimes.onnx_runtime import OnnxFloat
from tests.tiny import tiny_texts

NEAR = 1e-4
"""How close to its threshold, relative to it, a score may be for rounding to decide."""
FLOAT_LOGITS = 1e-5
"""Allowed difference of a float runtime's logits, relative to the largest: float32, other kernels and summation order."""


@dataclass(frozen=True)
class Case:
    """Texts with the factors of their thresholds, and what `encode` answers, each text by itself."""

    texts: list[EncodedText]
    scale: NDArray[np.float32]
    answers: list[Answer]


def checkpoint_of(made: Classifier) -> Checkpoint:
    """A classifier as if it had been opened from its folder."""
    return Checkpoint(made.backbone, made.tokenizer, made.reducer, made.max_length)


def case_for(made: Classifier, count: int, seed: int = 0, keep: float = 0.0) -> Case:
    """Random texts without near-ties, with factors between 0.5 and 1.5, some of them 0.

    Of two texts in three the share `keep` of the tokens must stay, the first of a text sometimes named among them.
    """
    random = np.random.default_rng(seed)
    texts = TextEncoder(made.tokenizer, made.max_length)(tiny_texts(count, seed))
    if keep:
        texts = [
            replace(text, keep=random.random(len(text.ids)) < keep) if number % 3 else text for number, text in enumerate(texts)
        ]
    scale = random.uniform(0.5, 1.5, count).astype(np.float32)
    scale[::17] = 0
    answered = [_answer(made, text, float(factor)) for text, factor in zip(texts, scale, strict=True)]
    sound = [i for i, answer in enumerate(answered) if answer is not None]
    return Case([texts[i] for i in sound], scale[sound], [answer for answer in answered if answer is not None])


def run_batches(runtime: Runtime, case: Case, size: int) -> list[Answer]:
    """Every text's answer out of batches of `size`."""
    answers: list[Answer] = []
    for first in range(0, len(case.texts), size):
        texts = case.texts[first : first + size]
        answers += split(runtime(texts, scale=case.scale[first : first + size]), [len(text.ids) for text in texts])
    return answers


def split(answer: Answer, counts: Sequence[int]) -> list[Answer]:
    """A batch's answer as one of each text."""
    assert answer.depths is not None and answer.scores is not None
    depths = np.split(answer.depths, np.cumsum(counts)[:-1])
    judged = [np.asarray(counts), *answer.lengths.T[:-1]]
    scores = [np.split(layer, np.cumsum(count)[:-1]) for layer, count in zip(answer.scores, judged, strict=False)]
    return [
        Answer(answer.logits[i : i + 1], answer.lengths[i : i + 1], depths[i], tuple(layer[i] for layer in scores))
        for i in range(len(counts))
    ]


def check_agrees(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """The same labels, tokens and scores, and logits within rounding."""
    top = max(float(np.abs(answer.logits).max()) for answer in expected)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.depths is not None and other.depths is not None and one.scores is not None and other.scores is not None
        assert one.depths.tolist() == other.depths.tolist(), f"text {number} keeps other tokens"
        assert one.lengths.tolist() == other.lengths.tolist(), f"text {number} has other lengths"
        assert one.logits.argmax() == other.logits.argmax(), f"text {number} has another label"
        assert np.abs(one.logits - other.logits).max() <= FLOAT_LOGITS * top, f"text {number} has other logits"
        for mine, theirs in zip(one.scores, other.scores, strict=True):
            assert np.allclose(mine, theirs, rtol=1e-4, atol=1e-7), f"text {number} has other scores"


def reusing_pieces(patch: pytest.MonkeyPatch) -> None:
    """Export the pieces of a model once, however many graphs are made of it."""
    made: dict[int, Any] = {}

    def once(backbone: Backbone, judge: Any) -> Any:
        if id(backbone) not in made:
            made[id(backbone)] = export_pieces(backbone, judge)
        return made[id(backbone)]

    patch.setattr(graph_module, "export_pieces", once)


def exported_runtime(made: Classifier, folder: Path) -> OnnxFloat:
    """A classifier exported in float and opened again."""
    export(checkpoint_of(made), folder, to="onnx")
    return OnnxFloat.open(folder)


def altered_runtime(folder: Path, out: Path, alter: Callable[[onnx.ModelProto], None]) -> OnnxFloat:
    """The float export of `folder` with its graph changed, and sealed as if it had been written so."""
    sound = check_exported(folder)
    model = onnx.load(sound.model)
    alter(model)
    out.mkdir()
    forged = replace(sound, path=out)
    forged.model.write_bytes(model.SerializeToString())
    seal_exported(forged)
    return OnnxFloat.open(out)


def _answer(made: Classifier, text: EncodedText, factor: float) -> Answer | None:
    with torch.inference_mode():
        tokens, counts = pack(made.backbone, [text], made.device)
        logits, trace = encode(made.backbone, tokens, made.reducer, scale=torch.tensor([factor]))
    for step in trace.steps:
        margin = (step.decision.score - step.decision.threshold).abs()
        if factor and bool((margin <= NEAR * step.decision.threshold).any()):
            return None
    return Answer(
        logits.numpy(),
        torch.stack(trace.lengths, dim=1).long().numpy(),
        trace.depths(counts).numpy(),
        tuple(step.decision.score.numpy() for step in trace.steps),
    )
