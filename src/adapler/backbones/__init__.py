"""Encoder families: thin views over transformers classifiers. Keys are transformers' `model_type` strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapler.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapler.backbones.base import Backbone

BACKBONES = Registry("backbone", {"bert": "adapler.backbones.bert:Bert"})


def view(model: PreTrainedModel) -> Backbone:
    """The view that fits a transformers sequence classifier; an unknown family is refused with the list of known ones."""
    backbone: Backbone = BACKBONES[model.config.model_type](model)
    return backbone
