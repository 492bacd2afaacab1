"""A few texts with the whole story: every token's contribution at every layer it reached. For reports and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText
from adapler.engine import encode, pack
from adapler.methods.base import Reducer


@dataclass(frozen=True)
class Story:
    """One text on its way through the layers."""

    tokens: list[str]
    scores: list[list[float | None]]
    """Per layer and token: its contribution as the layer's predictor saw it; None for a token gone before."""
    kept: list[list[int]]
    """Per layer, positions of the tokens that entered it."""


@torch.no_grad()
def stories(backbone: Backbone, reducer: Reducer, texts: Sequence[EncodedText]) -> list[Story]:
    """Run the texts as one packed batch and tell each one's story."""
    if not texts:
        return []
    backbone.model.eval()
    tokens, counts = pack(backbone, texts, backbone.model.device)
    _, trace = encode(backbone, tokens, reducer)
    scores: list[list[list[float | None]]] = [[] for _ in texts]
    for step in trace.steps:
        layer = zip(step.layout.per_text(step.decision.score), step.layout.per_text(step.position), strict=True)
        for index, (values, places) in enumerate(layer):
            row: list[float | None] = [None] * len(texts[index].ids)
            for place, value in zip(places.tolist(), values.tolist(), strict=True):
                row[place] = round(value, 6)
            scores[index].append(row)
    depths = trace.depths(counts).split(counts.tolist())
    return [
        Story(
            tokens=text.tokens,
            scores=scores[index],
            kept=[torch.nonzero(depths[index] > layer).squeeze(-1).tolist() for layer in range(len(trace.lengths))],
        )
        for index, text in enumerate(texts)
    ]


def story_dict(story: Story, label: str, predicted: str, predicted_full: str) -> dict[str, Any]:
    """A story with what it should have been, what the full-length model said, and what was said: as JSON holds it."""
    return {
        "tokens": story.tokens,
        "scores": story.scores,
        "kept": story.kept,
        "label": label,
        "predicted": predicted,
        "predicted_full": predicted_full,
    }
