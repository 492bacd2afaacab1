"""Exported graphs through ONNX Runtime. Needs onnxruntime, tokenizers and numpy; torch is never imported."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adapler.data.text import EncodedText, protected
from adapler.errors import BadConfig, BadModel, MissingExtra
from adapler.runtimes.base import Answer, Runtime, scales
from adapler.runtimes.exported import Exported, check_exported
from adapler.runtimes.workers import workers
from adapler.safefile import reason, typed

_OLDEST = (1, 22)
"""Of ONNX Runtime: 1.20, and 1.21 with ModernBERT, give a text other logits than alone when others are in its batch."""
_ERRORS_ONLY = 3
_OUTPUTS = ("logits", "layer_lengths")
_TRACED = ("kept", "scores")


class OnnxFloat(Runtime):
    """One graph for any batch, with the removal inside."""

    name: ClassVar[str] = "onnx"
    budgets: ClassVar[tuple[int, int]] = (1024, 2048)  # larger ones leave the cache

    def __init__(self, exported: Exported, *, threads: int | None = None) -> None:
        """`threads` inside one batch; None takes OMP_NUM_THREADS, which torch reads too, or else every core."""
        if exported.runtime != self.name:
            raise BadModel(
                f"{exported.path} was exported for {exported.runtime!r}, not {self.name!r}; open it with that runtime"
            )
        self.labels = exported.labels
        self.thresholds = exported.thresholds
        self.layers = len(exported.cost.layers)
        self.cost = exported.cost
        self.longest = exported.longest
        self._problem_type = exported.problem_type
        self._path = exported.path
        self._threads = _threads(threads)
        self._exported = exported
        self._session = _session(exported, self._threads)
        self._single: Any = None
        self._lock = threading.Lock()
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self._reduced = {entry.name for entry in self._session.get_outputs()} >= set(_TRACED)

    def __reduce__(self) -> tuple[Any, ...]:
        raise BadModel(
            f"an exported model cannot be pickled, it is its folder: take {self._path} along and open it with "
            "Classifier.from_pretrained"
        )

    @classmethod
    def open(cls, path: str | Path, *, threads: int | None = None) -> OnnxFloat:
        """From a folder that `adapler export` wrote."""
        return cls(check_exported(path), threads=threads)

    @property
    def threads(self) -> int:
        return self._threads or os.cpu_count() or 1

    @property
    def problem_type(self) -> str | None:
        return self._problem_type

    def check_keeps(self) -> None:
        if self._reduced and "keep" not in self._inputs:
            raise BadModel(
                f"{self._path}: the graph was exported before tokens could be kept by name; export it again to use always_keep"
            )

    def __call__(
        self,
        texts: Sequence[EncodedText],
        *,
        scale: NDArray[np.float32] | None = None,
        reduced: bool = True,
        trace: bool = True,
    ) -> Answer:
        return self._run(self._session, texts, scale, reduced, trace)

    def workers(self) -> Executor | None:
        if self.threads == 1:
            return None
        with self._lock:
            if self._single is None:  # a session's threads are fixed when it is made
                self._single = _session(self._exported, 1)
        return workers("onnx", self.threads)

    def on_one_core(
        self, texts: Sequence[EncodedText], *, scale: NDArray[np.float32] | None, reduced: bool, trace: bool
    ) -> Answer:
        return self._run(self._single, texts, scale, reduced, trace)

    def _run(
        self,
        session: Any,
        texts: Sequence[EncodedText],
        scale: NDArray[np.float32] | None,
        reduced: bool,
        trace: bool,
    ) -> Answer:
        counts = np.array([len(text.ids) for text in texts], dtype=np.int64)
        keep = protected(texts)
        if keep is not None:
            self.check_keeps()
        given = {
            "ids": np.concatenate([text.ids for text in texts]),
            "types": np.concatenate([text.types for text in texts]),
            "lengths": counts,
            # The graph asks its predictors in any case; at full length nothing follows from it.
            "scale": scales(scale, len(texts)) if reduced else np.zeros(len(texts), dtype=np.float32),
            "keep": np.zeros(counts.sum(), dtype=np.bool_) if keep is None else keep,
        }
        wanted = [*_OUTPUTS, *(_TRACED if trace and reduced and self._reduced else ())]
        try:
            answered = session.run(wanted, {name: given[name] for name in given if name in self._inputs})
        except Exception as error:  # whatever ONNX Runtime raises has no common class
            raise BadModel(
                f"{self._path}: the graph cannot run these texts ({reason(error)[:300]}); export it again"
            ) from error
        logits, lengths, *traced = answered
        if not trace:
            return Answer(logits, lengths)
        if not traced:
            return Answer(logits, lengths, np.full(len(given["ids"]), self.layers), ())
        kept, scores = traced
        entering = [int(counts.sum()), *lengths[:, :-1].sum(axis=0).tolist()]
        # Removal never undoes itself: in how many layers' lists a token stands is how deep it went.
        depths = np.bincount(kept, minlength=len(given["ids"]))
        return Answer(logits, lengths, depths, tuple(np.split(scores, np.cumsum(entering)[:-1])), tuple(range(self.layers)))


class OnnxInt8(OnnxFloat):
    """The same graph with the encoder's linear maps in 8 bits."""

    name: ClassVar[str] = "onnx-int8"


def _session(exported: Exported, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            f"{exported.path} needs ONNX Runtime, which is not installed; pip install 'adapler[onnx]'"
        ) from error
    if _version(onnxruntime.__version__) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise MissingExtra(
            f"ONNX Runtime {onnxruntime.__version__} computes these graphs wrongly in batches; from {oldest} on it is right: "
            f"pip install -U 'onnxruntime>={oldest}'"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    # Masked attention leaves numbers so small that the processor computes them many times slower.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with typed(exported.path, "the graph"):
        return onnxruntime.InferenceSession(exported.model, options, providers=["CPUExecutionProvider"])


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _threads(asked: int | None) -> int:
    """0 lets ONNX Runtime choose."""
    if asked is not None and asked < 1:
        raise BadConfig(f"threads must be at least 1, got {asked}")
    given = os.environ.get("OMP_NUM_THREADS", "")
    return asked or (int(given) if given.isdecimal() else 0)
