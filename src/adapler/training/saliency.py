"""Phase 2: gradient-times-input saliency of every token, the teacher of the contribution predictors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import Want, encode, pack
from adapler.methods.losses import evidence
from adapler.problems import Label
from adapler.tokens import Tokens
from adapler.training.processes import Processes
from adapler.training.snapshot import write_tensors

PART_TEXTS = 1024
BATCH_TOKENS = 2048


def gradient_times_input(backbone: Backbone, tokens: Tokens, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Elementwise product of each embedded token with the gradient of its text's evidence, in the shape of `tokens.x`.

    Also returns the logits. One backward for the whole batch: texts do not touch each other.
    """
    with torch.enable_grad():
        x = tokens.x.detach().requires_grad_()
        logits, _ = encode(backbone, replace(tokens, x=x))
        (gradient,) = torch.autograd.grad(evidence(logits, labels).sum(), x)
    return gradient * x.detach(), logits.detach()


def saliency(backbone: Backbone, tokens: Tokens, labels: Tensor) -> Tensor:
    """L2 norm over the hidden axis of gradient times input; 0 on padding. Not normalised."""
    product, _ = gradient_times_input(backbone, tokens, labels)
    length: Tensor = torch.linalg.vector_norm(product, dim=-1)
    return length * tokens.weight


@torch.no_grad()
def attention_received(backbone: Backbone, tokens: Tokens, labels: Tensor) -> Tensor:
    """Attention each token gets from the others of its text, mean over heads and layers; `labels` are not looked at."""
    _, trace = encode(backbone, tokens, want=Want(attentions=True))
    return torch.stack([tokens.layout.received(tokens, found) for found in trace.attentions]).mean(dim=0) * tokens.weight


MEASURES: dict[str, Callable[[Backbone, Tokens, Tensor], Tensor]] = {"saliency": saliency, "attention": attention_received}
"""What the predictors may learn, by name."""


def extract(
    backbone: Backbone,
    texts: Sequence[EncodedText],
    labels: Sequence[Label],
    checkpoints: Sequence[Callable[[], None]],
    folder: Path,
    after_part: Callable[[int], None],
    processes: Processes | None = None,
    measure: str = "saliency",
) -> list[NDArray[np.float32]]:
    """Saliency (or another measure) of each text's tokens, averaged over `checkpoints`, each a function that puts its weights
    into the model.

    Written once, in parts; a part that is there is read instead of computed, so a stopped extraction goes on. Processes
    take turns. `after_part` is called, by all of them together, with the number of parts just done.
    """
    processes = processes or Processes()
    starts = range(0, len(texts), PART_TEXTS)
    files = [folder / f"part-{number:05d}.safetensors" for number in range(len(starts))]
    for first in range(0, len(starts), processes.count):
        turn = list(range(first, min(first + processes.count, len(starts))))
        for number in processes.own(turn):
            if not files[number].exists():
                part = slice(starts[number], starts[number] + PART_TEXTS)
                average = _average(backbone, texts[part], labels[part], checkpoints, MEASURES[measure])
                write_tensors(files[number], {"saliency": torch.from_numpy(average)})
        after_part(len(turn))
    processes.wait()
    ends = np.cumsum([len(text.ids) for text in texts])[:-1]
    return np.split(np.concatenate([load_file(file)["saliency"].numpy() for file in files]), ends)


def _average(
    backbone: Backbone,
    texts: Sequence[EncodedText],
    labels: Sequence[Label],
    checkpoints: Sequence[Callable[[], None]],
    measure: Callable[[Backbone, Tokens, Tensor], Tensor],
) -> NDArray[np.float32]:
    """Plain mean of the checkpoints' raw values, texts end to end."""
    counts = [len(text.ids) for text in texts]
    ends = np.cumsum(counts)
    total = np.zeros(ends[-1], dtype=np.float32)
    for load_weights in checkpoints:
        load_weights()
        backbone.model.eval()
        for batch in budget_batches(counts, BATCH_TOKENS):
            tokens, _ = pack(backbone, [texts[index] for index in batch], backbone.model.device)
            gold = torch.tensor([labels[index] for index in batch], device=backbone.model.device)
            values = measure(backbone, tokens, gold)
            for index, row in zip(batch, tokens.layout.per_text(values), strict=True):
                total[ends[index] - counts[index] : ends[index]] += row.cpu().numpy() / len(checkpoints)
    return total
