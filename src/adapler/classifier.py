"""Classifier: text in; label, score, kept tokens and cost out. What users hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from adapler import checkpoint
from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, Text, TextEncoder, as_text, budget_batches, windows
from adapler.engine import encode, model_cost, pack
from adapler.errors import BadConfig
from adapler.folder import Folder
from adapler.methods.base import Reducer
from adapler.safefile import reason

TOKEN_BUDGET = 4096


@dataclass(frozen=True)
class Prediction:
    """The answer for one text, with the account of how it was reached."""

    label: str
    score: float
    scores: dict[str, float]
    """Probability of every label (raw values for a regression)."""
    tokens: list[str]
    kept: list[list[int]]
    """Per layer, the positions in `tokens` that entered it."""
    flops: int
    """Matrix-product FLOPs with every layer complete, predictors included, no padding."""
    flops_full: int
    """The same at full length, without predictors; `flops_full / flops` is this text's `flops_speedup`."""
    truncated: bool
    """Whether the text was longer than the model's limit and its end was not read."""

    @property
    def lengths(self) -> list[int]:
        """Per layer, how many tokens entered it."""
        return [len(layer) for layer in self.kept]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "lengths": self.lengths}


class Classifier:
    """A sequence classifier that runs packed, without padding, and reduced where it has a reducer.

    May be shared between threads. Runs on any torch `device`; only the CPU has been tested.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        reducer: Reducer | None = None,
        *,
        max_length: int | None = None,
        token_budget: int = TOKEN_BUDGET,
        device: str | torch.device = "cpu",
    ) -> None:
        """`model` is a transformers sequence classifier (or a view of one), `tokenizer` its fast tokenizer."""
        backbone: Backbone = model if isinstance(model, Backbone) else view(model)
        limit = min(backbone.max_length, int(tokenizer.model_max_length))
        self.max_length = limit if max_length is None else max_length
        if not 2 < self.max_length <= backbone.max_length:
            raise BadConfig(f"max_length must lie in 3 to {backbone.max_length}, got {max_length}")
        if token_budget < 1:
            raise BadConfig(f"token_budget must be at least 1, got {token_budget}")
        self.device = usable_device(device)
        self.backbone = backbone
        self.model = backbone.model.to(self.device).eval()
        self.tokenizer = tokenizer
        self.reducer = None if reducer is None else reducer.to(self.device).eval()
        self.token_budget = token_budget
        self.labels = [str(self.model.config.id2label[i]) for i in range(self.model.config.num_labels)]
        self.cost = model_cost(backbone, reducer)
        self._encoder = TextEncoder(tokenizer, self.max_length)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | Folder,
        *,
        max_length: int | None = None,
        token_budget: int = TOKEN_BUDGET,
        device: str | torch.device = "cpu",
    ) -> Classifier:
        """Open a model folder (checked already or not) or hub id: reduced where it holds a reduction, else at full length."""
        opened = checkpoint.load(path, device=str(usable_device(device)))
        return cls(
            opened.backbone,
            opened.tokenizer,
            opened.reducer,
            max_length=opened.max_length if max_length is None else max_length,
            token_budget=token_budget,
            device=device,
        )

    def save_pretrained(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that both transformers (at full length) and adapler (reduced) open. Whole or not at all."""
        checkpoint.save(path, self.backbone, self.tokenizer, self.reducer, self.max_length, overwrite=overwrite)

    @overload
    def __call__(self, texts: Text) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Sequence[Text]) -> list[Prediction]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[Text]) -> Iterator[Prediction]: ...
    def __call__(self, texts: Any) -> Any:
        """One text or one pair (a tuple) gives a `Prediction`, a list gives a list in order, an iterator an iterator.

        An iterator is read in windows of a few thousand texts, so memory does not grow with its length.
        """
        if isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(t, str) for t in texts)):
            return self._predict_window([as_text(texts, 0)])[0]
        if not isinstance(texts, Iterable):
            as_text(texts, 0)  # neither a text nor a collection of texts: the same typed error
        predictions = self._stream(texts)
        return list(predictions) if hasattr(texts, "__len__") else predictions

    def _stream(self, texts: Iterable[object]) -> Iterator[Prediction]:
        for window in windows(texts):
            yield from self._predict_window(window)

    def _predict_window(self, window: Sequence[Text]) -> list[Prediction]:
        encoded = self._encoder(window)
        answers: list[Prediction | None] = [None] * len(encoded)
        for batch in budget_batches([len(text.ids) for text in encoded], self.token_budget):
            for index, prediction in zip(batch, self._predict_batch([encoded[i] for i in batch]), strict=True):
                answers[index] = prediction
        return [answer for answer in answers if answer is not None]

    def _predict_batch(self, batch: Sequence[EncodedText]) -> Iterator[Prediction]:
        with torch.inference_mode():
            tokens, counts = pack(self.backbone, batch, self.device)
            logits, trace = encode(self.backbone, tokens, self.reducer)
            probabilities = _probabilities(logits, self.model.config.problem_type).double().cpu().numpy()
            depths = trace.depths(counts).cpu().numpy()
        ends = np.cumsum([len(text.ids) for text in batch])[:-1]
        for text, row, depth in zip(batch, probabilities, np.split(depths, ends), strict=True):
            kept = [np.flatnonzero(depth > layer).tolist() for layer in range(len(self.backbone.blocks))]
            best = int(row.argmax())
            yield Prediction(
                label=self.labels[best],
                score=float(row[best]),
                scores=dict(zip(self.labels, row.tolist(), strict=True)),
                tokens=text.tokens,
                kept=kept,
                flops=self.cost.reduced(len(depth), [len(layer) for layer in kept]),
                flops_full=self.cost.full(len(depth)),
                truncated=text.truncated,
            )


def usable_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadConfig(f"device {str(device)!r} cannot be used here ({reason(error)[:200]}); cpu always can") from error


def _probabilities(logits: Tensor, problem_type: str | None) -> Tensor:
    """As transformers' pipeline: sigmoid for several or a single label, raw values for a regression, else softmax."""
    if problem_type == "regression":
        return logits
    if problem_type == "multi_label_classification" or logits.shape[-1] == 1:
        return logits.sigmoid()
    return logits.softmax(dim=-1)
