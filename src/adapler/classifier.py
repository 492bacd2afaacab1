"""Classifier: text in; label, score, kept tokens and cost out. What users hold. Imports torch only for what needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from adapler.data.text import EncodedText, Text, TextEncoder, as_text, budget_batches, windows
from adapler.errors import BadConfig, BadModel
from adapler.folder import Folder
from adapler.hub import locate
from adapler.runtimes import RUNTIMES
from adapler.runtimes.base import Runtime
from adapler.runtimes.exported import Exported, check_exported, is_exported

if TYPE_CHECKING:
    import torch

    from adapler.backbones.base import Backbone
    from adapler.methods.base import Reducer
    from adapler.runtimes.torch_packed import TorchPacked

TOKEN_BUDGET = Runtime.token_budget
"""Tokens a batch of the torch runtime, by default."""


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
        token_budget: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """`model` is a transformers sequence classifier (or a view of one), `tokenizer` its fast tokenizer.

        Or `model` is a `Runtime`, which has its reducer and device already.
        """
        self.runtime: Runtime = model if isinstance(model, Runtime) else _in_torch(model, reducer, device)
        longest = self.runtime.longest
        limit = min(longest, int(getattr(tokenizer, "model_max_length", longest)))
        self.max_length = limit if max_length is None else max_length
        if not 2 < self.max_length <= longest:
            raise BadConfig(f"max_length must lie in 3 to {longest}, got {max_length}")
        if token_budget is not None and token_budget < 1:
            raise BadConfig(f"token_budget must be at least 1, got {token_budget}")
        self.tokenizer = tokenizer
        self.token_budget = self.runtime.token_budget if token_budget is None else token_budget
        self.labels = self.runtime.labels
        self.cost = self.runtime.cost
        self._encoder = TextEncoder(tokenizer, self.max_length)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | Folder | Exported,
        *,
        max_length: int | None = None,
        token_budget: int | None = None,
        device: str | torch.device = "cpu",
    ) -> Classifier:
        """Open a model folder (checked already or not) or hub id: reduced where it holds a reduction, else at full length.

        A folder that `adapler export` wrote opens too, without torch.
        """
        if not isinstance(path, Folder | Exported):
            path = locate(path)
        if isinstance(path, Exported) or (isinstance(path, Path) and is_exported(path)):
            exported = path if isinstance(path, Exported) else check_exported(path)
            if str(device) != "cpu":
                raise BadConfig(f"an exported model runs on cpu, got device {str(device)!r}; open the checkpoint instead")
            runtime = RUNTIMES[exported.runtime](exported)
            read = exported.max_length if max_length is None else max_length
            return cls(runtime, exported.tokenizer, max_length=read, token_budget=token_budget)
        from adapler import checkpoint
        from adapler.runtimes.torch_packed import usable_device

        opened = checkpoint.load(path, device=str(usable_device(device)))
        return cls(
            opened.backbone,
            opened.tokenizer,
            opened.reducer,
            max_length=opened.max_length if max_length is None else max_length,
            token_budget=token_budget,
            device=device,
        )

    @property
    def backbone(self) -> Backbone:
        """The view of the torch model."""
        return self._torch.backbone

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self._torch.model

    @property
    def reducer(self) -> Reducer | None:
        """What removes tokens, or None."""
        return self._torch.reducer

    @property
    def device(self) -> torch.device:
        """Where the torch model is."""
        return self._torch.device

    @property
    def _torch(self) -> TorchPacked:
        if self.runtime.name != "torch":
            raise BadModel("this classifier was exported and holds no torch model; open the folder it was exported from")
        return cast("TorchPacked", self.runtime)

    def save_pretrained(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that both transformers (at full length) and adapler (reduced) open. Whole or not at all."""
        from adapler import checkpoint

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
        answer = self.runtime(batch)
        assert answer.depths is not None  # asked for
        probabilities = _probabilities(answer.logits.astype(np.float64), self.runtime.problem_type)
        ends = np.cumsum([len(text.ids) for text in batch])[:-1]
        for text, row, depth in zip(batch, probabilities, np.split(answer.depths, ends), strict=True):
            kept = [np.flatnonzero(depth > layer).tolist() for layer in range(self.runtime.layers)]
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


def _in_torch(model: Any, reducer: Reducer | None, device: str | torch.device) -> TorchPacked:
    from adapler.runtimes.torch_packed import TorchPacked

    return TorchPacked(model, reducer, device)


def _probabilities(logits: NDArray[np.float64], problem_type: str | None) -> NDArray[np.float64]:
    """As transformers' pipeline: sigmoid for several or a single label, raw values for a regression, else softmax."""
    if problem_type == "regression":
        return logits
    if problem_type == "multi_label_classification" or logits.shape[-1] == 1:
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, without overflow
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = grown / grown.sum(axis=-1, keepdims=True)
    return shares
