"""A few texts with the whole story: every token's contribution at every layer it reached. For reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapler.backbones.base import Backbone
from adapler.data.text import Text, TextEncoder, cleaned
from adapler.explain import Explanation
from adapler.methods.base import Reducer
from adapler.prediction import predictions
from adapler.runtimes.torch_packed import TorchPacked


def stories(backbone: Backbone, reducer: Reducer, encoder: TextEncoder, texts: Sequence[Text]) -> list[Explanation]:
    """Run the texts as one packed batch and tell each one's story."""
    if not texts:
        return []
    runtime = TorchPacked(backbone, reducer, backbone.model.device)
    encoded = encoder(texts, places=True)
    answers = predictions(encoded, runtime(encoded), runtime, runtime.cost.full, full=False)
    return [Explanation(cleaned(text), answer) for text, answer in zip(texts, answers, strict=True)]


def story_dict(story: Explanation, label: str, predicted: str, predicted_full: str) -> dict[str, Any]:
    """A story with what it should have been, what the full-length model said, and what was said: as JSON holds it."""
    told = story.to_dict()
    return {
        "tokens": told["tokens"],
        "pieces": told["pieces"],
        "words": [word["tokens"] for word in told["words"]],
        "scores": told["contributions"],
        "kept": told["kept"],
        "label": label,
        "predicted": predicted,
        "predicted_full": predicted_full,
    }
