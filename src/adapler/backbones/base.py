"""What a family of encoders computes per token: the interface `encode` runs on.

A view binds to leaf modules (linears, norms, embeddings), whose names are the checkpoint format. The weights stay in the
transformers model, so saving, LoRA and quantised linears keep working. No view looks across tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from adapler.cost import LayerCost, ModelCost
from adapler.errors import BadModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Block(ABC):
    """One encoder layer as three per-token computations around an attention it does not carry out itself."""

    scale: float
    """Factor of the attention scores, usually 1 / sqrt(head width)."""
    attention_dropout: float

    @abstractmethod
    def query(self, x: Tensor, position: Tensor) -> Tensor:
        """What the tokens ask: (..., heads, width)."""

    @abstractmethod
    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """What the tokens answer with: two of (..., heads, width)."""

    @abstractmethod
    def merge(self, x: Tensor, context: Tensor) -> Tensor:
        """Output projection, residual, norm."""

    @abstractmethod
    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward part with its residual and norm."""

    def bias(self, asking: Tensor, attended: Tensor) -> Tensor | None:
        """Added to the scores between original positions (B, Q) and (B, K): (B or 1, heads or 1, Q, K); None for none."""
        return None

    @property
    @abstractmethod
    def cost(self) -> LayerCost:
        """FLOPs of its matrix products."""


class Backbone(ABC):
    """A transformers sequence classifier seen as embed, blocks, classify."""

    model: PreTrainedModel
    blocks: Sequence[Block]
    pooling: str = "first"
    """Which vector stands for the text: its `first` token's, or the `mean` of all."""
    hidden_size: int
    activation: Callable[[Tensor], Tensor]
    """The model's hidden activation; predictors use the same."""

    @abstractmethod
    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        """Vectors of tokens, any shape: ids, segment numbers, and places in the text counted from 0."""

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """Logits (B, labels) from one vector a text (B, H)."""

    @property
    @abstractmethod
    def cost(self) -> ModelCost:
        """FLOPs of its matrix products, without any reduction."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """The longest text its positions reach, special tokens included."""


def leaf(root: nn.Module, path: str) -> Any:
    """The module at a dotted path; a path that is not there means the model is not what its `model_type` says."""
    module: Any = root
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            raise BadModel(
                f"{type(root).__name__} has no module {path!r}; expected the layout of a transformers sequence "
                f"classifier. Load it with AutoModelForSequenceClassification."
            )
    return module


def linear_flops(*linears: Any) -> int:
    """FLOPs per token of linear maps applied one after the other."""
    return sum(2 * linear.in_features * linear.out_features for linear in linears)
