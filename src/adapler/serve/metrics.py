"""What a server counts, for Prometheus: text-embeddings-inference's `te_*` under `adapler_*`, and what is ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from adapler.prediction import Prediction

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = tuple(15e-6 * 1.5**step for step in range(35))
_SIZES = tuple(float(2**step) for step in range(16))
_SHARES = tuple(step / 20 for step in range(1, 21))


class Metrics:
    """One server's counters, in a registry of their own."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        """`waiting` tells how much work is in line."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = self._counter("request_count", "Requests to the model.", "method")
        self.successes = self._counter("request_success", "Requests that were answered.", "method")
        self.failures = self._counter("request_failure", "Requests that were not, by kind of error.", "err")
        self.dropped = self._counter("request_dropped", "Requests whose client hung up first.")
        self.duration = self._seconds("request_duration", "From the body's end to the answer.")
        self.tokenization = self._seconds("request_tokenization_duration", "Making token ids, a request.")
        self.queue = self._seconds("request_queue_duration", "Waiting for the model, a piece of a request.")
        self.inference = self._seconds("request_inference_duration", "The model at work, a piece of a request.")
        self.lengths = self._histogram("request_input_length", "Tokens of a text.", _SIZES)
        self.batch_size = self._histogram("batch_next_size", "Pieces of requests in a batch.", _SIZES)
        self.batch_tokens = self._histogram("batch_next_tokens", "Tokens in a batch.", _SIZES)
        self.truncated = self._counter("truncated_texts", "Texts of which not all was read.")
        self.flops = self._counter("flops", "Matrix-product FLOPs spent.")
        self.flops_full = self._counter("flops_full", "What they would have been at full length.")
        self.kept = Histogram(
            "adapler_tokens_kept_ratio", "Share of a text's tokens that enter a layer.", ["layer"],
            buckets=_SHARES, registry=self.registry,
        )  # fmt: skip
        self._layer = cache(lambda layer: self.kept.labels(str(layer)))
        line = Gauge("adapler_queue_size", "Pieces of requests that wait for the model.", registry=self.registry)
        line.set_function(waiting)

    def answered(self, prediction: Prediction) -> None:
        """Count one text in."""
        tokens = len(prediction.tokens)
        self.lengths.observe(tokens)
        self.truncated.inc(prediction.truncated)
        self.flops.inc(prediction.flops)
        self.flops_full.inc(prediction.flops_full)
        for layer, length in enumerate(prediction.lengths):
            self._layer(layer).observe(length / tokens)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"adapler_{name}", what, labels, registry=self.registry)

    def _seconds(self, name: str, what: str) -> Histogram:
        return self._histogram(name, f"{what} Seconds.", _SECONDS)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"adapler_{name}", what, buckets=buckets, registry=self.registry)
