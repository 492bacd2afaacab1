"""What a family of encoders computes per token: the interface `encode` runs on.

A view binds to leaf modules (linears, norms, embeddings), whose names are the checkpoint format. The weights stay in the
transformers model, so saving, LoRA and quantised linears keep working. No view looks across tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from adapler.cost import LayerCost, ModelCost
from adapler.errors import BadModel
from adapler.problems import THRESHOLDS, Problem, problem_of

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

    def query_key_value(self, x: Tensor, position: Tensor) -> Tensor:
        """Both at once, for tokens that ask each other: (..., 3, heads, width). A family may have a faster way."""
        return torch.stack((self.query(x, position), *self.key_value(x, position)), dim=-3)

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

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        config = self.model.config
        return tuple(str(config.id2label[i]) for i in range(config.num_labels))

    @property
    def problem(self) -> Problem:
        """What the logits mean."""
        return problem_of(self.model.config.problem_type, self.model.config.num_labels)

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Of a model that gives any number of labels: from which probability on each; None where its config says nothing."""
        said = getattr(self.model.config, THRESHOLDS, None)
        return None if said is None else tuple(float(value) for value in said)

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


class _Updates:
    """How many steps the optimisers of this process have made. A fused one writes weights without telling their version."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._step)

    def _step(self, _optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self.count += 1


_updates = _Updates()


class Joined:
    """Linear maps of the same input as one matrix product, which fills the processor better than several small ones.

    The weights stay where they are. While they are trained they are joined anew each time; else their joint copy is kept
    until one of them changes.
    """

    def __init__(self, *linears: Any) -> None:
        self.linears = linears
        self.plain = all(type(linear) is nn.Linear and linear.bias is not None for linear in linears)
        """Whether they are what they seem: adapters and quantised linears compute in their own way, one by one."""
        self._kept: tuple[tuple[object, ...], Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Their outputs side by side: (..., sum of the widths)."""
        if not self.plain:
            return torch.cat([linear(x) for linear in self.linears], dim=-1)
        weight, bias = self._trained() if torch.is_grad_enabled() else self._frozen()
        return F.linear(x, weight, bias)

    def _trained(self) -> tuple[Tensor, Tensor]:
        return torch.cat([linear.weight for linear in self.linears]), torch.cat([linear.bias for linear in self.linears])

    def _frozen(self) -> tuple[Tensor, Tensor]:
        parameters = [tensor for linear in self.linears for tensor in (linear.weight, linear.bias)]
        state = (_updates.count, *((tensor.data_ptr(), tensor._version) for tensor in parameters))
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, *self._trained())
        return self._kept[1], self._kept[2]


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
