"""Comprehensiveness and sufficiency as ERASER defines them: what an answer loses without the top words, or with them alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adapler.backbones.base import Backbone
from adapler.data.annotated import Window, only_words
from adapler.data.text import EncodedText
from adapler.evaluation.outcome import run
from adapler.evaluation.rationale import Scores, budget, top

THRESHOLDS = (0.01, 0.05, 0.10, 0.20, 0.50)
"""Shares of a text's words, over which both are averaged."""


def probabilities(backbone: Backbone, texts: Sequence[EncodedText]) -> NDArray[np.float64]:
    """(texts, labels) at full length."""
    return torch.from_numpy(run(backbone, None, texts).logits).double().softmax(dim=-1).numpy()


def faithfulness(
    backbone: Backbone, windows: Sequence[Window], scores: Sequence[Scores], whole: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(windows, thresholds) each: probability of the predicted class lost without the words of the highest scores, and lost
    with them alone. `scores` has a number a word, `whole` the probabilities of the whole windows.

    Words are taken out of the text, which is then read like any other: what is left closes up.
    """
    without, alone = [], []
    for window, words in zip(windows, scores, strict=True):
        for threshold in THRESHOLDS:
            chosen = top(words, budget(threshold, len(words)))
            without.append(only_words(window, ~chosen, "consecutive"))
            alone.append(only_words(window, chosen, "consecutive"))
    predicted = np.repeat(whole.argmax(axis=1), len(THRESHOLDS))
    before = np.repeat(whole.max(axis=1), len(THRESHOLDS))
    found = probabilities(backbone, without + alone)
    rows = np.arange(len(without))
    lost = [(before - part[rows, predicted]).reshape(len(windows), -1) for part in np.split(found, 2)]
    return lost[0], lost[1]
