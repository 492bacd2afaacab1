"""Folders of exported models: a graph, a tokenizer, and a manifest that seals both. Needs neither torch nor ONNX."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapler.cost import LayerCost, ModelCost
from adapler.data.text import PlainTokenizer
from adapler.errors import BadModel
from adapler.folder import EXPORT_JSON
from adapler.points import Dial
from adapler.runtimes import RUNTIMES
from adapler.safefile import check_sealed_files, damaged, read_sealed, regular, seal, short

FORMAT_VERSION = 1
MODEL_ONNX = "model.onnx"
TOKENIZER_JSON = "tokenizer.json"


class _Manifest(BaseModel):
    """`export.json`, without its version, files and digest."""

    model_config = ConfigDict(extra="forbid", strict=True)

    runtime: str
    method: str | None
    labels: list[str] = Field(min_length=1)
    problem_type: str | None
    max_length: int = Field(ge=3)
    longest: int = Field(ge=3)
    truncation_side: str = Field(pattern="^(left|right)$")
    typed: bool
    split_special_tokens: bool
    cost: dict[str, Any]
    dial: dict[str, Any] | None = None
    thresholds: list[float] | None = None


@dataclass(frozen=True)
class Exported:
    """A checked folder of an exported model."""

    path: Path
    runtime: str
    """Name of the runtime it is for."""
    method: str | None
    """How it removes tokens; None where it does not."""
    labels: list[str]
    problem_type: str | None
    max_length: int
    """Tokens read of a text."""
    longest: int
    """Tokens the model's positions reach."""
    tokenizer: PlainTokenizer
    cost: ModelCost
    dial: Dial | None = None
    """Operating points of the model it was exported from."""
    thresholds: list[float] | None = None
    """Of a model that gives any number of labels: from which probability on each."""

    @property
    def model(self) -> Path:
        return self.path / MODEL_ONNX


def is_exported(path: str | Path) -> bool:
    """Whether a path is meant to be such a folder, sound or not."""
    return (Path(path) / EXPORT_JSON).exists()


def check_exported(path: str | Path) -> Exported:
    """Look at everything before the graph is parsed; the first thing wrong is raised as `BadModel`."""
    path = Path(path)
    try:
        return _checked(path)
    except OSError as error:
        raise BadModel(f"{short(str(path))} cannot be read ({error.strerror}); check the path and who may read it") from error


def seal_exported(exported: Exported) -> None:
    """Write the tokenizer and, last, the manifest beside a graph that is there."""
    tokenizer = exported.tokenizer
    (exported.path / TOKENIZER_JSON).write_text(tokenizer.json, encoding="utf-8")
    said = _Manifest(
        runtime=exported.runtime,
        method=exported.method,
        labels=exported.labels,
        problem_type=exported.problem_type,
        max_length=exported.max_length,
        longest=exported.longest,
        truncation_side=tokenizer.truncation_side,
        typed=tokenizer.typed,
        split_special_tokens=tokenizer.split_special_tokens,
        cost=asdict(exported.cost),
        dial=None if exported.dial is None else exported.dial.model_dump(mode="json"),
        thresholds=exported.thresholds,
    )
    seal(exported.path / EXPORT_JSON, {"format_version": FORMAT_VERSION, **said.model_dump()})


def _checked(path: Path) -> Exported:
    manifest = path / EXPORT_JSON
    regular(manifest)
    content = read_sealed(manifest, FORMAT_VERSION)
    check_sealed_files(manifest, content.pop("files", None), {MODEL_ONNX, TOKENIZER_JSON})
    del content["format_version"]
    try:
        said = _Manifest.model_validate(content)
        cost = _cost(said.cost)
        dial = None if said.dial is None else Dial.model_validate(said.dial)
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(manifest, f"has a wrong {'.'.join(map(str, first['loc']))} ({first['msg']})") from error
    except (TypeError, KeyError, ValueError) as error:
        raise damaged(manifest, "does not say what the model costs") from error
    if said.runtime not in RUNTIMES:
        raise damaged(manifest, f"is for the runtime {short(said.runtime)}; known: {', '.join(RUNTIMES)}")
    tokenizer = PlainTokenizer(
        json=(path / TOKENIZER_JSON).read_text(encoding="utf-8"),
        truncation_side=said.truncation_side,
        typed=said.typed,
        split_special_tokens=said.split_special_tokens,
    )
    return Exported(
        path=path,
        runtime=said.runtime,
        method=said.method,
        labels=said.labels,
        problem_type=said.problem_type,
        max_length=min(said.max_length, said.longest),
        longest=said.longest,
        tokenizer=tokenizer,
        cost=cost,
        dial=dial,
        thresholds=_thresholds(manifest, said),
    )


def _thresholds(manifest: Path, said: _Manifest) -> list[float] | None:
    if said.thresholds is not None and len(said.thresholds) != len(said.labels):
        raise damaged(manifest, f"has {len(said.thresholds)} thresholds for {len(said.labels)} labels")
    return said.thresholds


def _cost(content: dict[str, Any]) -> ModelCost:
    layers = tuple(LayerCost(**{name: int(value) for name, value in layer.items()}) for layer in content["layers"])
    if not layers:
        raise ValueError("no layers")
    return ModelCost(
        layers=layers,
        head=int(content["head"]),
        embedding=int(content["embedding"]),
        predictors=tuple(int(value) for value in content["predictors"]),
        pooling=str(content["pooling"]),
        early=bool(content.get("early", False)),  # older folders know of no other place
    )
