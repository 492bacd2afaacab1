"""What goes over the wire: requests, answers and errors as text-embeddings-inference writes them, and what is ours beside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from adapler.prediction import Prediction

_encode = json.JSONEncoder(allow_nan=False).encode


class ErrorType(StrEnum):
    """Kinds of errors on the wire; the last three are ours."""

    unhealthy = "Unhealthy"
    backend = "Backend"
    overloaded = "Overloaded"
    validation = "Validation"
    tokenizer = "Tokenizer"
    empty = "Empty"
    timeout = "Timeout"
    unauthorized = "Unauthorized"
    internal = "Internal"


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, kind: ErrorType, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.kind, self.error = status, kind, error
        self.headers = dict(headers or {})

    def body(self) -> dict[str, str]:
        """As every error is written."""
        return {"error": self.error, "error_type": self.kind.value}

    def at(self, index: int) -> Refusal:
        """The same about one item of a batch: 422 whatever it would be alone, unless it is the model that failed."""
        status = self.status if self.kind is ErrorType.backend else 422
        return Refusal(status, self.kind, f"item {index}: {self.error}", self.headers)


class ErrorBody(BaseModel):
    """Every answer that is not a success."""

    error: str
    error_type: ErrorType


class Score(BaseModel):
    """One label's."""

    score: float
    label: str


_TEXT = {"type": "string", "minLength": 1}
_ONE_OR_TWO = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 2}
_INPUTS = {
    "description": "A text; [text] or [text, second text]; or a batch: a list of lists of one or two texts.",
    "anyOf": [_TEXT, _ONE_OR_TWO, {"type": "array", "items": _ONE_OR_TWO, "minItems": 1}],
}
_POINT = "An operating point by name, as /info lists them; `full` removes nothing, `trained` runs as the model was trained."


class PredictRequest(BaseModel):
    """Body of /predict and /explain; unknown fields are ignored, as text-embeddings-inference does."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    inputs: Annotated[Any, WithJsonSchema(_INPUTS)]
    truncate: bool | None = Field(None, description="Cut texts past the model's limit; the server's setting by default.")
    truncation_direction: Literal["Right", "Left", "right", "left"] = Field("Right", description="Which end is cut.")
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    point: str | None = Field(None, max_length=40, description=_POINT)
    max_loss: float | None = Field(None, description="The fastest point that loses at most so many points.")
    partial: bool = Field(False, description="Answer the good items of a batch; the others' places hold their errors.")


class AdaplerInfo(BaseModel):
    """What text-embeddings-inference has no place for."""

    reduced: bool
    runtime: str
    layers: int
    threads: int
    problem_type: str | None
    thresholds: dict[str, float] | None
    """Where a text may have any number of labels: it has those whose score reaches theirs."""
    operating_points: list[dict[str, Any]]
    aliases: dict[str, str]
    expected_speedup: float | None
    scale: float | None
    dev: dict[str, Any] | None
    latencies_ms: dict[str, float]
    request_timeout: float
    payload_limit: int
    max_request_items: int
    split: bool


class Info(BaseModel):
    """Answer of /info."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    adapler: AdaplerInfo


def scored(prediction: Prediction, *, raw: bool) -> list[dict[str, Any]]:
    """Every label with its score, best first."""
    scores = prediction.logits if raw else prediction.scores
    return [{"score": scores[label], "label": label} for label in sorted(scores, key=lambda label: -scores[label])]


def written(content: object) -> str:
    """In JSON, which holds numbers alone: what is none is the model's failure."""
    try:
        return _encode(content)
    except ValueError:
        raise Refusal(424, ErrorType.backend, "the model gave a score that is not a number") from None
