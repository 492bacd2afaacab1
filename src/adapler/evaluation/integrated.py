"""Integrated gradients of the embedded tokens, by captum. One explanation of the whole model, so every layer is given it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapler.data.text import EncodedText
from adapler.engine import encode, pack
from adapler.errors import MissingExtra
from adapler.evaluation.explainers import Explainer, Seen
from adapler.layout import padded

STEPS = 50
"""Places on the way from a text of padding to the text at which gradients are taken."""
_AT_ONCE = 10


def integrated_gradients(seen: Seen) -> Tensor:
    """(layers, T): L2 norm over the hidden axis, text by text; captum lays the steps beside each other as rows."""
    method = _captum()
    device, rows = seen.backbone.model.device, []
    for text, target in zip(seen.texts, seen.target.tolist(), strict=True):
        with torch.no_grad():
            alone, _ = pack(seen.backbone, [text], device)
            empty, _ = pack(seen.backbone, [_padding(seen, text)], device)

        def answer(x: Tensor, position: Tensor = alone.position) -> Tensor:
            real = torch.ones(x.shape[:2], device=x.device)
            return encode(seen.backbone, padded(position.expand(x.shape[:2]), real, x))[0]

        found = method(answer).attribute(
            alone.x.unsqueeze(0),
            baselines=empty.x.unsqueeze(0),
            target=target,
            n_steps=STEPS,
            internal_batch_size=_AT_ONCE,
        )
        rows.append(torch.linalg.vector_norm(found.detach().squeeze(0), dim=-1))
    return torch.cat(rows).expand(len(seen.backbone.blocks), -1)


def _padding(seen: Seen, text: EncodedText) -> EncodedText:
    """Nothing was written: padding behind the same first token. Not zeros, from which norms make a leap."""
    ids = np.full_like(text.ids, seen.backbone.model.config.pad_token_id or 0)
    ids[0] = text.ids[0]
    return replace(text, ids=ids)


def _captum() -> Any:
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise MissingExtra("integrated gradients need captum, which is not installed; pip install 'adapler[captum]'") from error
    return IntegratedGradients


INTEGRATED_GRADIENTS = Explainer("integrated gradients", integrated_gradients, layer=0)
