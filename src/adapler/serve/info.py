"""What /info says: text-embeddings-inference's keys, and the operating points."""

from __future__ import annotations

from adapler import __version__
from adapler.serve.schema import AdaplerInfo, Info
from adapler.serve.service import Service


def about(service: Service, name: str) -> Info:
    """The model and the limits of a service."""
    classifier, limits = service.classifier, service.limits
    dial = classifier.dial
    points = [] if dial is None else list(dial.points)
    now = None if dial is None else dial.measured(classifier.operating)
    names = {str(index): label for index, label in enumerate(classifier.labels)}
    ids = {label: index for index, label in enumerate(classifier.labels)}
    runtime = classifier.runtime
    return Info(
        model_id=name,
        model_sha=classifier.digest,
        model_dtype={"onnx-int8": "int8"}.get(runtime.name, "float32"),
        served_model_name=name,
        model_type={"classifier": {"id2label": names, "label2id": ids}},
        max_concurrent_requests=limits.max_concurrent_requests,
        max_input_length=classifier.max_length,
        max_batch_tokens=limits.max_batch_tokens,
        max_batch_requests=None,
        max_client_batch_size=limits.max_client_batch_size,
        auto_truncate=limits.auto_truncate,
        tokenization_workers=limits.tokenization_workers,
        version=__version__,
        sha=None,
        docker_label=None,
        adapler=AdaplerInfo(
            reduced=bool(classifier.cost.predictors),
            runtime=runtime.name,
            layers=runtime.layers,
            threads=runtime.threads,
            problem_type=runtime.problem_type,
            thresholds=classifier.thresholds,
            operating_points=[point.model_dump(mode="json") for point in points],
            aliases={} if dial is None else {alias: point.name for alias, point in dial.aliases.items()},
            expected_speedup=None if now is None else now.flops_speedup,
            scale=classifier.operating.scale,
            dev=None if dial is None else dial.model_dump(include={"n", "metric", "reference", "reference_score"}),
            latencies_ms={} if classifier.diagnosis is None else classifier.diagnosis.latencies,
            request_timeout=limits.request_timeout,
            payload_limit=limits.payload_limit,
            max_request_items=limits.most_items,
            split=limits.split,
        ),
    )
