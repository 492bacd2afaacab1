"""Settings of the methods, without torch, so that a model folder can be checked before anything heavy is imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapler.errors import BadConfig
from adapler.registry import Registry

ETA_RANGE = (0.01, 1.0)
"""Thresholds are kept in this range while they train."""
SCALED_ETA = (0.01, 4.0)
"""And in this one by the scale that is chosen for a trained model. Above 1 a token of average share leaves."""

SETTINGS = Registry(
    "method",
    {
        "adapler": "adapler.methods.settings:AdapLeRSettings",
        "power": "adapler.methods.settings:PowerSettings",
        "trbert": "adapler.methods.settings:TrBertSettings",
    },
)


class MethodSettings(BaseModel, ABC):
    """What defines a reducer besides its weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def tensor_shapes(self, hidden_size: int, layers: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of a reducer of this size."""

    def tensor_ranges(self) -> dict[str, tuple[float, float]]:
        """Closed range the values of some tensors must lie in."""
        return {}


class AdapLeRSettings(MethodSettings):
    """Of AdapLeR: one contribution predictor and one threshold a layer."""

    width: int = Field(32, ge=1, le=4096, description="Hidden width of each contribution predictor.")
    eta: float = Field(0.25, ge=ETA_RANGE[0], le=ETA_RANGE[1], description="Initial threshold, a fraction of a uniform share.")
    theta: float = Field(1.0, gt=0, le=1000, description="Initial amplification of the first token's saliency target.")
    beta: float = Field(0.1, gt=0, le=0.1, description="Slope of soft removal above the threshold (0 < beta <= 0.1).")
    site: Literal["layer_input", "after_attention"] = Field(
        "layer_input",
        description="Where tokens leave: in front of every layer, as in the paper; or, but for the first layer, before the "
        "feed-forward part of the one before it.",
    )

    def tensor_shapes(self, hidden_size: int, layers: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"eta": (layers,), "theta": (layers - 1,)}
        for layer in range(layers):
            shapes |= {
                f"predictors.{layer}.dense_in.weight": (self.width, hidden_size),
                f"predictors.{layer}.dense_in.bias": (self.width,),
                f"predictors.{layer}.dense_out.weight": (1, self.width),
                f"predictors.{layer}.dense_out.bias": (1,),
            }
        return shapes

    def tensor_ranges(self) -> dict[str, tuple[float, float]]:
        return {"eta": SCALED_ETA}


class PowerSettings(MethodSettings):
    """Of PoWER-BERT: how much of each rank goes on, layer by layer, the same for every text."""

    ranks: int = Field(128, ge=1, le=8192, description="Ranks told apart: tokens of the longest text.")

    def tensor_shapes(self, hidden_size: int, layers: int) -> dict[str, tuple[int, ...]]:
        return {"retention": (layers, self.ranks)}

    def tensor_ranges(self) -> dict[str, tuple[float, float]]:
        return {"retention": (0.0, 1.0)}


class TrBertSettings(MethodSettings):
    """Of TR-BERT: a policy network in front of two layers."""

    width: int = Field(32, ge=1, le=4096, description="Hidden width of each policy network.")
    sites: tuple[int, ...] | None = Field(None, description="Layers it decides in front of; by default 1 and half the depth.")

    def places(self, layers: int) -> tuple[int, ...]:
        """The layers, in a model of so many."""
        return tuple(sorted({min(1, layers - 1), layers // 2})) if self.sites is None else self.sites

    def tensor_shapes(self, hidden_size: int, layers: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for site in self.places(layers):
            shapes |= {
                f"policies.{site}.dense_in.weight": (self.width, hidden_size),
                f"policies.{site}.dense_in.bias": (self.width,),
                f"policies.{site}.dense_out.weight": (1, self.width),
                f"policies.{site}.dense_out.bias": (1,),
            }
        return shapes


def parse_settings(method: str, settings: Any) -> MethodSettings:
    """Validated settings of a method, from what JSON held."""
    try:
        parsed: MethodSettings = SETTINGS[method].model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "settings"
        raise BadConfig(f"method {method!r}: {where}: {first['msg']}") from error
    return parsed
