"""Losses that every method shares. What the labels are tells the problem: whole numbers (B,) one label a text, a table
(B, labels) of 0 and 1 any number of labels, fractions (B,) a quantity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adapler.problems import MULTI, REGRESSION, Problem


def label_losses(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Of each text (B,): cross-entropy, weighted by class where asked; its mean over labels that are independent; or the
    squared distance of a quantity."""
    if labels.ndim == 2:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(dim=-1)
    if labels.is_floating_point():
        return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="none")
    return F.cross_entropy(logits, labels, weight=class_weights, reduction="none")


def label_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Averaged over the batch (not over the weights)."""
    return label_losses(logits, labels, class_weights).sum() / len(labels)


def evidence(logits: Tensor, labels: Tensor) -> Tensor:
    """What saliency is the gradient of, one number a text (B,): the true label's logit; where labels are independent, the
    logits of those given less the logits of the others (the log-odds of the whole answer); a quantity itself."""
    if labels.ndim == 2:
        return (logits * (2 * labels.to(logits.dtype) - 1)).sum(dim=-1)
    if labels.is_floating_point():
        return logits.squeeze(-1)
    return logits.gather(1, labels.unsqueeze(1)).squeeze(1)


def answer_distances(logits: Tensor, wanted: Tensor, problem: Problem) -> Tensor:
    """How far answers are from a teacher's `wanted` logits, one number a text (B,): KL of the probabilities (their mean over
    independent labels), or the squared distance of a quantity."""
    if problem == REGRESSION:
        return F.mse_loss(logits, wanted, reduction="none").squeeze(-1)
    if problem == MULTI:
        given = torch.stack((F.logsigmoid(logits), F.logsigmoid(-logits)))
        right = torch.stack((F.logsigmoid(wanted), F.logsigmoid(-wanted)))
        return F.kl_div(given, right, log_target=True, reduction="none").sum(dim=0).mean(dim=-1)
    return F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="none").sum(dim=-1)
