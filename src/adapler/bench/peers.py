"""What people deploy instead: the full-length model in transformers, or as a padded graph in ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapler.checkpoint import quiet
from adapler.data.text import Text

Forward = Callable[[dict[str, Any]], Any]
"""Padded token arrays in, logits out."""


class Peer:
    """Padded batches of a fixed number of texts; `by_length` sorts all texts first, which wastes less padding."""

    def __init__(self, forward: Forward, tokenizer: Any, max_length: int, arrays: str) -> None:
        self.forward, self.tokenizer, self.max_length, self.arrays = forward, tokenizer, max_length, arrays

    def run(self, texts: Sequence[Text], batch: int, *, by_length: bool = False) -> list[int]:
        """The likeliest label of every text, in order. Tokenised once; padded batch by batch."""
        encoded = self._tokenise(texts)
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]["input_ids"])) if by_length else range(len(texts))
        answers = [0] * len(texts)
        for first in range(0, len(texts), batch):
            chosen = order[first : first + batch]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that padding apart from tokenising is slow; it is what data loaders do
                rows = self.tokenizer.pad([encoded[i] for i in chosen], return_tensors=self.arrays)
            for index, row in zip(chosen, np.asarray(self.forward(dict(rows))), strict=True):
                answers[index] = int(row.argmax())
        return answers

    def _tokenise(self, texts: Sequence[Text]) -> list[dict[str, Any]]:
        firsts = [text if isinstance(text, str) else text[0] for text in texts]
        seconds = None if isinstance(texts[0], str) else [text[1] for text in texts]
        together = self.tokenizer(firsts, seconds, truncation=True, max_length=self.max_length)
        return [{name: together[name][i] for name in together} for i in range(len(texts))]


def in_transformers(model: Any, tokenizer: Any, max_length: int, *, compiled: bool = False) -> Peer:
    """The model as transformers runs it; `compiled` by torch.compile with sizes that may change."""
    forwarding = torch.compile(model, dynamic=True) if compiled else model

    def forward(rows: dict[str, Any]) -> Any:
        with torch.inference_mode():
            return forwarding(**rows).logits

    return Peer(forward, tokenizer, max_length, "pt")


def in_onnxruntime(model: Any, tokenizer: Any, max_length: int, folder: Path, *, int8: bool, threads: int) -> Peer:
    """The whole model as a padded graph with the stock fusions; `int8` quantised dynamically, per channel."""
    import onnxruntime

    file = _graph(model, tokenizer, folder)
    if int8:
        file = _quantised(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = {entry.name for entry in session.get_inputs()}

    def forward(rows: dict[str, Any]) -> Any:
        return session.run(None, {name: np.asarray(value, dtype=np.int64) for name, value in rows.items() if name in names})[0]

    return Peer(forward, tokenizer, max_length, "np")


def in_openvino(model: Any, tokenizer: Any, max_length: int, folder: Path, *, threads: int) -> Peer:
    """The same padded graph compiled by OpenVINO."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(_graph(model, tokenizer, folder)), "CPU", settings)
    names = {entry.get_any_name() for entry in compiled.inputs}

    def forward(rows: dict[str, Any]) -> Any:
        given = {name: np.asarray(value, dtype=np.int64) for name, value in rows.items() if name in names}
        return compiled(given)[0]

    return Peer(forward, tokenizer, max_length, "np")


def _graph(model: Any, tokenizer: Any, folder: Path) -> Path:
    file = folder / "padded.onnx"
    if file.exists():
        return file
    from adapler.export.pieces import quiet_exporter

    with quiet():
        rows = tokenizer(["one text", "another text, longer"], padding=True, return_tensors="pt")
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in rows]
    dynamic = {name: {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")} for name in names}

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **kinds).logits

    with quiet_exporter():
        program = torch.onnx.export(
            Logits().eval(), kwargs={n: rows[n] for n in names}, dynamic_shapes=dynamic, dynamo=True, verbose=False
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no graph")
    program.save(file)
    return file


def _quantised(file: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out = file.with_name("padded-int8.onnx")
    if not out.exists():
        model = onnx.load(file)
        del model.graph.value_info[:]  # the exporter's notes on shapes contradict the quantiser's own
        plain = file.with_name("plain.onnx")
        onnx.save(model, plain)
        before = logging.getLogger().level
        logging.getLogger().setLevel(logging.ERROR)  # it would advise a preparation that cannot read this graph
        quantize_dynamic(plain, out, per_channel=True, weight_type=QuantType.QInt8)
        logging.getLogger().setLevel(before)
    return out
