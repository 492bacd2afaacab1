"""adapler: transformer text classifiers that drop the tokens that do not matter, layer by layer, and show which did.

Importing this package loads neither torch nor transformers; the names below do, when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from adapler.classifier import Classifier as Classifier
    from adapler.client import AsyncClient as AsyncClient
    from adapler.client import Client as Client
    from adapler.config import TrainConfig as TrainConfig
    from adapler.explain import Explanation as Explanation
    from adapler.live import Estimator as Estimator
    from adapler.live import reduce as reduce
    from adapler.prediction import Prediction as Prediction
    from adapler.training.run import train as train

_LAZY = {
    "AsyncClient": "adapler.client",
    "Classifier": "adapler.classifier",
    "Client": "adapler.client",
    "Estimator": "adapler.live",
    "Explanation": "adapler.explain",
    "Prediction": "adapler.prediction",
    "reduce": "adapler.live",
    "TrainConfig": "adapler.config",
    "train": "adapler.training.run",
}

__all__ = [
    "AsyncClient",
    "Classifier",
    "Client",
    "Estimator",
    "Explanation",
    "Prediction",
    "TrainConfig",
    "__version__",
    "reduce",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'adapler' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return list(__all__)
