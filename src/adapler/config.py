"""Settings of a training run: validated, refused where unknown, merged from a file and from `key=value`. No torch.

The description of a field is its only one; the command line's help and the docs table are generated from it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from adapler.errors import BadConfig


class Settings(BaseModel):
    """Base: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(Settings):
    """What is learnt from."""

    source: str = Field("", description="A named task, a folder of splits, a CSV/JSONL/parquet file, or a hub dataset id.")
    text: str | None = Field(None, description="Column of the text; found by itself where there is no doubt.")
    pair: str | None = Field(None, description="Column of the second text of a pair.")
    label: str = Field("label", description="Column of the label.")
    problem: Literal["single_label_classification", "multi_label_classification", "regression"] | None = Field(
        None, description="What a label is: one of several, any number of several, or a quantity; seen from the data."
    )
    metric: Literal["accuracy", "f1", "matthews", "micro_f1", "pearson", "spearman", "r2"] | None = Field(
        None, description="Reported metric; by default the task's own, else the first that fits the problem."
    )
    max_length: int | None = Field(None, ge=3, description="Longest text in tokens; the task's own, else 128.")
    train_limit: int | None = Field(None, ge=2, description="Use only so many training examples (seeded choice).")
    unlabelled: str | None = Field(
        None,
        description="A file of texts without labels, which the phase-1 model answers while the network settles; `rest`: those "
        "that `train_limit` leaves over.",
    )
    unlabelled_limit: int | None = Field(None, ge=1, description="Use only so many of them (seeded choice).")
    dev_limit: int | None = Field(None, ge=1, description="Use only so many dev examples (seeded choice).")
    dev_share: float = Field(0.1, gt=0, lt=1, description="Share of train carved off as dev where there is no dev split.")
    test: bool = Field(True, description="Score the test split at the end, where there is one.")
    class_weights: bool = Field(False, description="Weigh the label loss by inverse class frequency.")


class FinetuneSettings(Settings):
    """Phase 1: the ordinary classifier."""

    epochs: int = Field(3, ge=1, le=1000, description="Passes over the training data.")
    lr: float = Field(1e-4, gt=0, le=1, description="Peak learning rate.")
    batch_size: int = Field(32, ge=1, description="Texts per update.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled decay of all but norms and biases.")
    warmup: float = Field(0.06, ge=0, lt=1, description="Share of updates over which the rate rises.")
    checkpoints: int = Field(3, ge=1, le=10, description="Best epochs that saliency is averaged over.")


class ReduceSettings(Settings):
    """Phase 3: learning which tokens to leave out."""

    epochs: int = Field(4, ge=1, le=1000, description="Passes over the training data.")
    lr: float = Field(5e-5, gt=0, le=1, description="Peak learning rate of the network.")
    predictor_lr: float | None = Field(None, gt=0, le=1, description="Of the predictors; by default larger for short runs.")
    threshold_lr: float | None = Field(None, gt=0, le=1, description="Of eta and theta; by default larger for short runs.")
    threshold_memory: float | None = Field(None, gt=0, lt=1, description="Second beta of their Adam; by default a tenth epoch.")
    batch_size: int = Field(32, ge=1, description="Texts per update.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled decay of all but norms and biases.")
    warmup: float = Field(0.06, ge=0, lt=1, description="Share of updates over which the rates rise.")
    gamma: float = Field(0.1, ge=0, description="Weight of the contribution loss.")
    phi: float = Field(0.02, ge=0, description="Weight of the length loss; where steered, its starting value.")
    lambda_base: float = Field(20.0, ge=1, description="Steepness of soft removal in the first epoch.")
    lambda_growth: float = Field(20.0, gt=1, description="Factor by which the steepness grows each epoch.")
    divergence: Literal["inclusive", "exclusive", "jensen_shannon"] = Field(
        "inclusive", description="Distance of the predictors from their target; the paper's appendix A compares them."
    )
    learn_theta: bool = Field(True, description="Whether theta is tuned; else it stays where it starts.")
    merged: bool = Field(False, description="Whether the weights follow the length loss too, not the thresholds alone.")
    target: Literal["saliency", "attention"] = Field(
        "saliency", description="What the predictors learn: gradient times input, or attention received, both of phase 1."
    )
    apart: bool = Field(False, description="Whether predictors read the network's vectors without changing them.")
    site: Literal["layer_input", "after_attention"] = Field(
        "layer_input",
        description="Where tokens leave: in front of every layer, or before the feed-forward part of the layer before it.",
    )
    start: Literal["finetuned", "pretrained"] = Field("finetuned", description="Weights phase 3 starts from.")
    settle_epochs: int = Field(
        0, ge=0, le=1000, description="Passes after those, in which tokens really leave and the network alone learns."
    )
    settle_lr: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of the network in those.")


class PowerSettings(Settings):
    """Of PoWER-BERT: search for how many tokens each layer retains, then training with that many."""

    epochs: int = Field(3, ge=1, le=1000, description="Passes over the training data in search, and in training again.")
    retrain_epochs: int | None = Field(
        None, ge=1, le=1000, description="Passes of training again, if not as many as of search."
    )
    lr: float = Field(5e-5, gt=0, le=1, description="Peak learning rate of the network.")
    retention_lr: float | None = Field(None, gt=0, le=1, description="Of the retention; by default larger for short runs.")
    penalty: float = Field(1e-3, ge=0, description="Charge for what a layer retains, times the layer's number.")
    batch_size: int = Field(32, ge=1, description="Texts per update.")
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of updates over which the rates rise.")


class TrBertSettings(Settings):
    """Of TR-BERT: a policy learnt from rewards, first alone, then together with the network."""

    policy_epochs: int = Field(2, ge=1, le=1000, description="Passes in which the policy alone learns.")
    joint_epochs: int = Field(2, ge=1, le=1000, description="Passes in which the network learns as well.")
    lr: float = Field(5e-5, gt=0, le=1, description="Peak learning rate of the network.")
    policy_lr: float | None = Field(None, gt=0, le=1, description="Of the policy; by default larger for short runs.")
    alpha: float = Field(1.0, ge=0, description="What a whole text of kept tokens costs the reward.")
    copies: int = Field(4, ge=2, le=64, description="Draws of each text, whose mean is the baseline (8 in the paper).")
    guide_rate: float = Field(0.5, ge=0, le=1, description="Share of the policy's updates in which one draw is the guide's.")
    settle_epochs: int = Field(
        0, ge=0, le=1000, description="Passes after those, in which nothing is drawn and the network alone learns."
    )
    settle_lr: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of the network in those.")
    batch_size: int = Field(32, ge=1, description="Texts per update.")
    warmup: float = Field(0.1, ge=0, lt=1, description="Share of updates over which the rates rise.")


class SteerSettings(Settings):
    """What the user wants of the result."""

    target_speedup: float | None = Field(
        None, gt=1, le=100, description="Steer phi so that training ends near this FLOPs speedup."
    )
    max_loss: float = Field(1.0, ge=0, le=100, description="Points of dev score the kept model may lose against the full one.")
    distill: float = Field(0.0, ge=0, le=1, description="Share of the label loss taken from the phase-1 model's probabilities.")
    hint: float = Field(
        0.0, ge=0, le=100, description="Weight of the distance from the vectors the phase-1 model answers from."
    )
    scale_low: float = Field(1.0, gt=0, le=2, description="Train over random scales of eta: the lowest.")
    scale_high: float = Field(1.0, gt=0, le=2, description="Train over random scales of eta: the highest.")
    settle_low: float = Field(
        1.0,
        gt=0,
        le=1,
        description="While the network settles, scale the thresholds of every other text at random from here to 1.",
    )
    settle_from: float | None = Field(
        None, gt=1, le=100, description="FLOPs speedup at which settling begins at the latest, on its way to the target."
    )

    @model_validator(mode="after")
    def _settles_towards_the_target(self) -> SteerSettings:
        target = self.target_speedup
        if self.settle_from is not None and (target is None or self.settle_from > target):
            found = "there is none" if target is None else f"that is {target:g}"
            raise ValueError(f"settling comes to target_speedup from settle_from, {self.settle_from:g} here, but {found}")
        return self

    @property
    def taught(self) -> bool:
        """Whether the phase-1 model is asked for anything."""
        return self.distill > 0 or self.hint > 0


class RunSettings(Settings):
    """How it runs."""

    seed: int = Field(0, ge=0, lt=2**31, description="Of the head's weights, dropout, order and choice of examples.")
    device: str = Field("cpu", description="A torch device. Only the CPU has been tested.")
    precision: Literal["no", "bf16"] = Field("no", description="Mixed precision, where the machine has it.")
    attention_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Dropout of attention while training, by default the model's own; 0 lets a faster kernel train long texts.",
    )
    accumulate: int = Field(1, ge=1, description="Batches per update.")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = Field(
        None, description="Where figures are logged besides the report."
    )
    snapshot_seconds: float = Field(60.0, ge=0, description="Write a snapshot at least this often (0: after every update).")
    keep: int = Field(2, ge=1, description="Snapshots kept.")
    report_examples: bool = Field(True, description="Put dev texts into the report.")


class TrainConfig(Settings):
    """A whole training run."""

    method: Literal["adapler", "power", "trbert"] = Field("adapler", description="Which tokens stay: the method trained.")
    model: str = Field("minilm", description="A transformers folder or hub id, or `minilm`, which pip carries.")
    head: Literal["auto", "trained", "fresh"] = Field(
        "auto",
        description="`trained`: the model is a finished classifier, phase 1 is skipped. `fresh`: it gets a new head. `auto`: "
        "trained, where its labels are those of the data.",
    )
    data: DataSettings = DataSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    reduce: ReduceSettings = ReduceSettings()
    power: PowerSettings = PowerSettings()
    trbert: TrBertSettings = TrBertSettings()
    steer: SteerSettings = SteerSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _read_unlabelled_texts(self) -> TrainConfig:
        if self.data.unlabelled is None and self.data.unlabelled_limit is not None:
            raise ValueError("data.unlabelled_limit is of texts without labels: set data.unlabelled, or leave it out")
        group = {"adapler": "reduce", "trbert": "trbert"}.get(self.method)  # PoWER-BERT always trains again
        if self.data.unlabelled is not None and group is not None and not getattr(self, group).settle_epochs:
            raise ValueError(f"data.unlabelled is read while the network settles: set {group}.settle_epochs, or leave it out")
        return self

    @property
    def epochs(self) -> int:
        """Passes over the data in all phases of AdapLeR, which a full-length model to compare it with may have as well."""
        return self.finetune.epochs + self.reduce.epochs + self.reduce.settle_epochs


def build_config(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merge settings, later ones winning, and validate the result. They are nested in their groups; a name that is the only one
    of its kind may stand without its group."""
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, _nested(layer.items()))
    return _validated(merged)


def read_config(path: Path) -> dict[str, Any]:
    """The table in a YAML or JSON file."""
    if not path.is_file():
        raise BadConfig(f"no config file {str(path)!r}")
    try:
        if path.suffix == ".json":
            parsed = json.loads(path.read_text(encoding="utf-8"))
        else:
            import yaml  # type: ignore[import-untyped]

            parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise BadConfig(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from error
    if not isinstance(parsed, dict):
        raise BadConfig(f"{path} must hold a table of settings, got {type(parsed).__name__}")
    return parsed


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`reduce.gamma=0.1` and the like, as nested settings."""
    pairs = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise BadConfig(f"--set takes key=value, got {assignment!r}")
        pairs.append((key.strip(), _value(text.strip())))
    return _nested(pairs)


def setting_names() -> list[str]:
    """Every setting with its group, as `--set` takes it."""
    names = []
    for name, info in TrainConfig.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            names += [f"{name}.{field}" for field in inner.model_fields]
        else:
            names.append(name)
    return names


def _groups() -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in setting_names() if "." in name))


def _nested(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Every setting in its group, whether it came with the group's name, in its table, or alone."""
    groups = _groups()
    nested: dict[str, Any] = {}
    for key, value in settings:
        if key in groups:
            _merge(nested, {key: value})
            continue
        *group, name = _full_name(str(key)).split(".")
        _merge(nested, {group[0]: {name: value}} if group else {name: value})
    return nested


def _full_name(key: str) -> str:
    names = setting_names()
    if key in names:
        return key
    ends = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    if len(ends) == 1 and "." not in key:
        return ends[0]
    known = [*names, *(name.split(".")[-1] for name in names), *_groups()]
    near = ends or difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise BadConfig(f"no setting {key!r}.{hint}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None if text.lower() in ("none", "null") else text


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _validated(settings: Mapping[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            _full_name(key)  # raises with the nearest names
        if not key:  # settings that do not go together; all of them are the input
            raise BadConfig(str(first["ctx"]["error"])) from error
        raise BadConfig(f"setting {key}: {first['msg']}, got {first['input']!r}") from error
