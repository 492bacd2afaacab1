"""What a family of encoders computes per token: the interface `encode` runs on.

A view binds to leaf modules (linears, norms, embeddings), whose names are the checkpoint format. The weights stay in the
transformers model, so saving, LoRA and quantised linears keep working. No view looks across tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from adapler.cost import LayerCost, ModelCost
from adapler.errors import BadModel
from adapler.problems import THRESHOLDS, Problem, problem_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Made = TypeVar("Made")


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

    def bias(self, asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        """Added to the scaled scores, (B or 1, heads or 1, Q, K), or None for nothing.

        `asking` (B, Q) and `attended` (B, K) are original positions; `query` and `key` (B, heads, Q or K, width) the vectors.
        """
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


_PLAIN = (nn.Linear, nn.Embedding, nn.LayerNorm)
"""Modules that are a function of their weights and nothing else. Adapters and quantised linears, which compute in their own
way, are none of them."""


class Kept(Generic[Made]):
    """Something made of weights alone. While they are trained it is made anew each time; else it is kept until one of them
    changes."""

    def __init__(self, make: Callable[[], Made], modules: Sequence[Any]) -> None:
        self.make = make
        self.modules = modules
        self.plain = all(type(module) in _PLAIN for module in modules)
        self._kept: tuple[tuple[object, ...], Made] | None = None

    def __call__(self) -> Made:
        if torch.is_grad_enabled() or not self.plain or torch.compiler.is_compiling():  # an exporter's weights are nowhere
            return self.make()
        weights = [tensor for module in self.modules for tensor in (module.weight, getattr(module, "bias", None))]
        state = (_updates.count, *((tensor.data_ptr(), tensor._version) for tensor in weights if tensor is not None))
        kept = self._kept
        if kept is None or kept[0] != state:
            kept = self._kept = (state, self.make())
        return kept[1]


class Joined:
    """Linear maps of the same input as one matrix product, which fills the processor better than several small ones. The
    weights stay where they are."""

    def __init__(self, *linears: Any) -> None:
        self.linears = linears
        alike = len({getattr(linear, "bias", None) is None for linear in linears}) == 1
        self.plain = alike and all(type(linear) is nn.Linear for linear in linears)
        """Whether they are what they seem; others are asked one by one."""
        self._weights = Kept(self._joint, linears)

    def __call__(self, x: Tensor) -> Tensor:
        """Their outputs side by side: (..., sum of the widths)."""
        if not self.plain:
            return torch.cat([linear(x) for linear in self.linears], dim=-1)
        return F.linear(x, *self._weights())

    def _joint(self) -> tuple[Tensor, Tensor | None]:
        weight = torch.cat([linear.weight for linear in self.linears])
        return weight, None if self.linears[0].bias is None else torch.cat([linear.bias for linear in self.linears])


class Part:
    """Some of the outputs of one linear map, computed without the others."""

    def __init__(self, linear: Any, start: int, stop: int) -> None:
        self.linear = linear
        self.outputs = slice(start, stop)

    def __call__(self, x: Tensor) -> Tensor:
        linear = self.linear
        if type(linear) is not nn.Linear:
            part: Tensor = linear(x)[..., self.outputs]
            return part
        return F.linear(x, linear.weight[self.outputs], None if linear.bias is None else linear.bias[self.outputs])


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


def refuse(config: Any, reason: str, remedy: str) -> BadModel:
    """The error for a model that asks what its view cannot compute exactly."""
    return BadModel(f"this {config.model_type} model cannot be run token by token: {reason}; {remedy}")


def linear_flops(*linears: Any) -> int:
    """FLOPs per token of linear maps applied one after the other."""
    return sum(2 * linear.in_features * linear.out_features for linear in linears)
