"""Which tokens an answer came from: one table of explainers, each a score per layer and token of a text.

All read what `encode` says of one pass over a batch; what several of them need is computed once. They explain the model at
full length, but for `cp` and `kept`, which read what the reducer decided.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import Want, encode, pack
from adapler.errors import BadConfig, BadModel
from adapler.evaluation.rollout import rollout
from adapler.methods.base import Reducer
from adapler.registry import Registry
from adapler.tokens import Tokens, Trace

EXPLAINERS = Registry(
    "explainer",
    {
        "cp": "adapler.evaluation.explainers:CONTRIBUTION",
        "kept": "adapler.evaluation.explainers:KEPT",
        "saliency": "adapler.evaluation.explainers:SALIENCY",
        "attention": "adapler.evaluation.explainers:ATTENTION",
        "attention_cls": "adapler.evaluation.explainers:ATTENTION_CLS",
        "rollout": "adapler.evaluation.explainers:ROLLOUT",
        "rollout_cls": "adapler.evaluation.explainers:ROLLOUT_CLS",
        "random": "adapler.evaluation.explainers:RANDOM",
        "integrated_gradients": "adapler.evaluation.integrated:INTEGRATED_GRADIENTS",
    },
)
DEFAULT = tuple(name for name in EXPLAINERS if name != "integrated_gradients")
"""All but the one that needs an extra and some fifty passes a text."""
EXPLAINING_BUDGET = 1024
"""Tokens a batch: attention of every layer is held, with what its gradient needs."""


@dataclass(frozen=True)
class Explained:
    """One text."""

    scores: dict[str, NDArray[np.float32]]
    """By explainer: (layers, tokens), not negative, of any scale."""
    predicted: int
    """What the model at full length answers."""


class Seen:
    """A batch as the models read it, each pass over it made when first asked for."""

    def __init__(
        self,
        backbone: Backbone,
        texts: Sequence[EncodedText],
        *,
        reduced: tuple[Backbone, Reducer] | None = None,
        scale: float | None = None,
        labels: Sequence[int] | None = None,
        gradient: bool = True,
        seed: int = 0,
    ) -> None:
        """`backbone` is the model at full length, `reduced` the one that removes tokens, its thresholds times
        `scale`. The explained class is that of `labels`, or the predicted one. Without `gradient` the pass leaves nothing to
        differentiate."""
        self.backbone, self.texts, self.reduced, self.scale, self.seed = backbone, texts, reduced, scale, seed
        self._labels, self._gradient = labels, gradient

    @cached_property
    def tokens(self) -> Tokens:
        """Embedded, at full length; their vectors can be differentiated by."""
        with torch.no_grad():
            tokens, _ = pack(self.backbone, self.texts, self.backbone.model.device)
        return replace(tokens, x=tokens.x.requires_grad_(self._gradient))

    @property
    def counts(self) -> list[int]:
        """Tokens of each text."""
        return [len(text.ids) for text in self.texts]

    @cached_property
    def passed(self) -> tuple[Tensor, Trace]:
        """The one pass at full length: logits and trace."""
        with torch.set_grad_enabled(self._gradient):
            return encode(self.backbone, self.tokens, want=Want(attentions=True, hidden=True))

    @cached_property
    def predicted(self) -> Tensor:
        """(B,): the likeliest class at full length."""
        return self.passed[0].detach().argmax(dim=-1)

    @property
    def target(self) -> Tensor:
        """(B,): the class that is explained."""
        return self.predicted if self._labels is None else torch.tensor(self._labels, device=self.predicted.device)

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Of each text's target logit by the input of every layer, from one backward: texts do not touch each other."""
        logits, trace = self.passed
        wanted = logits.gather(1, self.target.unsqueeze(1)).sum()
        return list(torch.autograd.grad(wanted, trace.hidden[:-1]))

    @cached_property
    def attentions(self) -> list[Tensor]:
        """Per layer (B, Q, K), the mean over heads."""
        return [attention.detach().mean(dim=1) for attention in self.passed[1].attentions]

    @cached_property
    def rolled(self) -> list[Tensor]:
        """Per text (layers, n, n): attention rollout up to each layer."""
        return [rollout(torch.stack([layer[text, :n, :n] for layer in self.attentions])) for text, n in enumerate(self.counts)]

    @cached_property
    def removal(self) -> Trace:
        """Of the pass that removes tokens."""
        if self.reduced is None:
            raise BadModel("the model holds no reduction, so `cp` and `kept` have nothing to read; leave them out")
        backbone, reducer = self.reduced
        with torch.no_grad():
            device = backbone.model.device
            tokens, _ = pack(backbone, self.texts, device)
            scales = None if self.scale is None else torch.full((len(self.texts),), self.scale, device=device)
            return encode(backbone, tokens, reducer, scale=scales)[1]


@dataclass(frozen=True)
class Explainer:
    """A line of the table."""

    name: str
    """As tables and figures show it."""
    scores: Callable[[Seen], Tensor]
    """(layers, T): texts end to end. Tokens that are gone score 0."""
    layer: int
    """The layer that speaks for all where only one is wanted: the first, where scores are of the input, else the last."""
    gradient: bool = False
    reduced: bool = False


def _contribution(seen: Seen) -> Tensor:
    trace, layers = seen.removal, len(seen.removal.lengths)
    if [step.in_front for step in trace.steps] != list(range(layers)):
        raise BadModel("`cp` reads a score in front of every layer, which the model's method does not give; leave it out")
    scores = torch.zeros(layers, sum(seen.counts))
    starts = np.cumsum([0, *seen.counts])
    for step in trace.steps:
        found = zip(step.layout.per_text(step.decision.score), step.layout.per_text(step.position), strict=True)
        for start, (values, places) in zip(starts, found, strict=False):
            scores[step.in_front, places.cpu() + int(start)] = values.float().cpu()
    return scores


def _kept(seen: Seen) -> Tensor:
    depths = seen.removal.depths(torch.tensor(seen.counts, device=seen.removal.kept[0][0].device))
    return (depths.cpu() > torch.arange(len(seen.removal.lengths)).unsqueeze(1)).float()


def _saliency(seen: Seen) -> Tensor:
    inputs = seen.passed[1].hidden
    products = [gradient * x.detach() for gradient, x in zip(seen.gradients, inputs, strict=False)]
    return torch.stack([torch.linalg.vector_norm(product, dim=-1) for product in products])


def _attention(seen: Seen) -> Tensor:
    return torch.stack([seen.tokens.layout.received(seen.tokens, layer.unsqueeze(1)) for layer in seen.attentions])


def _attention_cls(seen: Seen) -> Tensor:
    return torch.stack([seen.tokens.layout.unrows(layer[:, 0]) for layer in seen.attentions])


def _rollout(seen: Seen) -> Tensor:
    return torch.cat([rolled.sum(dim=1) - rolled.diagonal(dim1=1, dim2=2) for rolled in seen.rolled], dim=1)


def _rollout_cls(seen: Seen) -> Tensor:
    return torch.cat([rolled[:, 0] for rolled in seen.rolled], dim=1)


def _random(seen: Seen) -> Tensor:
    # Drawn from the text itself, so that it does not matter which texts it runs with.
    layers = len(seen.backbone.blocks)
    drawn = [
        np.random.default_rng((seen.seed, zlib.crc32(text.ids.tobytes()))).random((layers, len(text.ids)))
        for text in seen.texts
    ]
    return torch.from_numpy(np.concatenate(drawn, axis=1))


CONTRIBUTION = Explainer("CP", _contribution, layer=-1, reduced=True)
KEPT = Explainer("kept", _kept, layer=-1, reduced=True)
SALIENCY = Explainer("saliency", _saliency, layer=0, gradient=True)
ATTENTION = Explainer("attention", _attention, layer=-1)
ATTENTION_CLS = Explainer("attention [CLS]", _attention_cls, layer=-1)
ROLLOUT = Explainer("rollout", _rollout, layer=-1)
ROLLOUT_CLS = Explainer("rollout [CLS]", _rollout_cls, layer=-1)
RANDOM = Explainer("random", _random, layer=0)


def explain(
    names: Sequence[str],
    backbone: Backbone,
    texts: Sequence[EncodedText],
    *,
    reduced: tuple[Backbone, Reducer] | None = None,
    scale: float | None = None,
    labels: Sequence[int] | None = None,
    seed: int = 0,
) -> Iterator[tuple[int, Explained]]:
    """Every text's place and scores, in batches of like length: one pass forward each, one backward if an explainer needs
    it, and one that removes tokens."""
    if not names:
        raise BadConfig(f"no explainer named; known: {', '.join(EXPLAINERS)}")
    chosen: dict[str, Explainer] = {name: EXPLAINERS[name] for name in names}
    if reduced is not None and len(reduced[0].blocks) != len(backbone.blocks):
        raise BadModel(
            f"the full-length model has {len(backbone.blocks)} layers, the reduced one {len(reduced[0].blocks)}; "
            f"they can be compared layer by layer only where they have as many"
        )
    backbone.model.eval()
    gradient = any(explainer.gradient for explainer in chosen.values())
    for batch in budget_batches([len(text.ids) for text in texts], EXPLAINING_BUDGET):
        seen = Seen(
            backbone,
            [texts[index] for index in batch],
            reduced=reduced,
            scale=scale,
            labels=None if labels is None else [labels[index] for index in batch],
            gradient=gradient,
            seed=seed,
        )
        found = {name: explainer.scores(seen).detach().float().cpu() for name, explainer in chosen.items()}
        parts = {name: scores.split(seen.counts, dim=1) for name, scores in found.items()}
        for place, index in enumerate(batch):
            scores = {name: part[place].numpy() for name, part in parts.items()}
            yield index, Explained(scores, int(seen.predicted[place]))
