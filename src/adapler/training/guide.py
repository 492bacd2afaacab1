"""TR-BERT's guide: how much the loss would change, to first order, if a token stopped being computed at a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import Want, encode, pack
from adapler.methods.losses import label_losses
from adapler.problems import Label
from adapler.training.saliency import BATCH_TOKENS


@dataclass(frozen=True)
class Guide:
    """Importance of every token of the training texts at each site."""

    importance: dict[int, Tensor]
    """By site: (tokens of all texts,), end to end."""
    start: Tensor
    """(examples,): where each text begins."""

    def of(self, batch: Sequence[int], site: int, text: Tensor, position: Tensor) -> Tensor:
        """Importance of tokens given by their text's place in the batch and their original position."""
        start = self.start[list(batch)].to(text.device)
        return self.importance[site].to(text.device)[start[text] + position]


def guide_scores(backbone: Backbone, sites: Sequence[int], texts: Sequence[EncodedText], labels: Sequence[Label]) -> Guide:
    """|gradient of the loss at a late layer's output . what the layers since the site added to the token|."""
    late = 2 * len(backbone.blocks) // 3 + 1  # the output of layer 8 of 12, 4 of 6, counted from 0
    counts = [len(text.ids) for text in texts]
    ends = torch.tensor(counts).cumsum(0)
    start = ends - torch.tensor(counts)
    importance = {site: torch.zeros(int(ends[-1])) for site in sites}
    training = backbone.model.training
    backbone.model.eval()
    for batch in budget_batches(counts, BATCH_TOKENS):
        tokens, _ = pack(backbone, [texts[index] for index in batch], backbone.model.device)
        logits, trace = encode(backbone, tokens, want=Want(hidden=True))
        gold = torch.tensor([labels[index] for index in batch], device=logits.device)
        (gradient,) = torch.autograd.grad(label_losses(logits, gold).sum(), trace.hidden[late])
        for site in sites:
            change = trace.hidden[late].detach() - trace.hidden[site].detach()
            values = (gradient * change).sum(dim=-1).abs()
            for index, row in zip(batch, tokens.layout.per_text(values), strict=True):
                importance[site][int(start[index]) : int(ends[index])] = row.cpu()
    backbone.model.train(training)
    return Guide(importance, start)
