"""Reduced classifiers as transformers models: `import adapler.auto`, and the Auto classes and pipelines know them.

    import adapler.auto
    model = AutoModelForSequenceClassification.from_pretrained("folder")   # written with format="reduced"

The model's forward removes tokens for real. It is for answers; training is `adapler train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.engine import encode
from adapler.errors import BadInput
from adapler.folder import REDUCED_TYPE, Reduction, parse_reduction, reduction_content
from adapler.layout import packed
from adapler.methods import METHODS
from adapler.methods.base import Reducer
from adapler.methods.losses import label_loss
from adapler.points import Dial
from adapler.problems import THRESHOLDS


class AdaplerConfig(PretrainedConfig):  # type: ignore[misc]
    """A family's own config, and what `reduction.json` would say."""

    model_type = REDUCED_TYPE

    backbone: dict[str, Any] | None = None
    reduction: dict[str, Any] | None = None
    scale: float | None = None
    """How it runs: what all thresholds are multiplied by, None for nothing, 0 for full length."""


class ReducedForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """A sequence classifier that leaves tokens out on the way, as `encode` does."""

    config_class = AdaplerConfig
    base_model_prefix = "backbone"

    def __init__(self, config: AdaplerConfig, parts: tuple[Backbone, Reducer] | None = None) -> None:
        """`parts` are a model that exists already, which is shared, not copied."""
        super().__init__(config)
        self._view: Backbone | None = None
        if parts is None:
            family = AutoConfig.for_model(**(config.backbone or {}))
            sketch = view(AutoModelForSequenceClassification.from_config(family))
            said = parse_reduction(config.reduction or {}, Path("config.json"))
            self.backbone, self.reducer = sketch.model, METHODS[said.method].for_backbone(sketch, said.settings)
        else:
            self._view, self.reducer = parts
            self.backbone = self._view.model
        self.post_init()

    @property
    def view(self) -> Backbone:
        """The encoder as `encode` sees it."""
        if self._view is None:  # not before there are weights: loading begins with tensors that have no memory
            self._view = view(self.backbone)
        return self._view

    def init_weights(self) -> None:
        """Draw nothing: the parts have their weights, which may be those of a trained model."""
        self.tie_weights()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        """Logits (B, labels). Padding may stand on either side. `scale` multiplies the thresholds; 0 keeps every token."""
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        counts = real.sum(dim=1)
        if bool((counts == 0).any()):
            raise BadInput("a row of input_ids is nothing but padding; every text has at least its special tokens")
        if int(counts.max()) > self.view.max_length:
            raise BadInput(
                f"a text has {int(counts.max())} tokens, the model reads {self.view.max_length}; "
                f"tokenize (or call the pipeline) with truncation=True"
            )
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        position = (real.cumsum(dim=1) - 1)[real]
        tokens = packed(position, counts, self.view.embed(input_ids[real], types[real], position))
        scale = self.config.scale if scale is None else scale
        scales = None if scale is None else torch.full((len(counts),), float(scale), device=input_ids.device)
        logits, _ = encode(self.view, tokens, None if scale == 0 else self.reducer, scale=scales)
        loss = None if labels is None else label_loss(logits, labels)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def joined(backbone: Backbone, reducer: Reducer, max_length: int, dial: Dial | None, scale: float | None = None) -> Any:
    """A transformers model out of an encoder and its reducer, whose weights are shared. `scale` is how it runs."""
    family = backbone.model.config
    said = Reduction(
        method=reducer.name,
        settings=reducer.settings,
        model_type=family.model_type,
        hidden_size=backbone.hidden_size,
        layers=len(backbone.blocks),
        max_length=max_length,
        dial=dial,
    )
    config = AdaplerConfig(
        backbone=family.to_dict(),
        reduction=reduction_content(said),
        scale=scale,
        id2label=family.id2label,
        label2id=family.label2id,
        problem_type=family.problem_type,
        dtype=family.dtype,
    )
    if backbone.thresholds is not None:
        setattr(config, THRESHOLDS, list(backbone.thresholds))
    return ReducedForSequenceClassification(config, (backbone, reducer)).eval()


AutoConfig.register(REDUCED_TYPE, AdaplerConfig, exist_ok=True)
AutoModelForSequenceClassification.register(AdaplerConfig, ReducedForSequenceClassification, exist_ok=True)
