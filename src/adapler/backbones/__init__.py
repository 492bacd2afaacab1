"""Encoder families: thin views over transformers classifiers. Keys are transformers' `model_type` strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapler.errors import BadModel
from adapler.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapler.backbones.base import Backbone

BACKBONES = Registry(
    "backbone",
    {
        "bert": "adapler.backbones.bert:Bert",
        "roberta": "adapler.backbones.roberta:Roberta",
        "xlm-roberta": "adapler.backbones.roberta:Roberta",
        "camembert": "adapler.backbones.roberta:Roberta",
        "electra": "adapler.backbones.electra:Electra",
        "distilbert": "adapler.backbones.distilbert:DistilBert",
        "mpnet": "adapler.backbones.mpnet:MPNet",
        "modernbert": "adapler.backbones.modernbert:ModernBert",
        "deberta-v2": "adapler.backbones.deberta:Deberta",
    },
)


def view(model: PreTrainedModel) -> Backbone:
    """The view that fits a transformers sequence classifier; an unknown family is refused with the list of known ones."""
    model_type = model.config.model_type
    if model_type not in BACKBONES:
        raise unsupported(type(model).__name__, repr(model_type))
    backbone: Backbone = BACKBONES[model_type](model)
    return backbone


def unsupported(where: str, model_type: str) -> BadModel:
    """The error for a family that is not in the table; `model_type` as it is to be shown."""
    known = ", ".join(BACKBONES)
    # Whoever installed the package has its files, and no page of docs: the gist is told here too.
    return BadModel(
        f"{where}: model_type {model_type} is not supported; supported: {known}. docs/backbones.md shows how to add one: "
        f"write a view of it, as adapler/backbones/bert.py is BERT's, and say "
        f"adapler.backbones.BACKBONES.add(MODEL_TYPE, 'your_module:YourView')"
    )
