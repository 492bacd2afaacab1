"""An answer to a request, with the account of it that goes into headers, metrics and the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from adapler.prediction import Prediction


@dataclass
class Reply:
    """An answer, with its account."""

    content: str = ""
    """JSON."""
    predictions: list[Prediction] = field(default_factory=list)
    characters: int = 0
    texts: int = 0
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    total: float = 0.0

    def headers(self) -> dict[str, str]:
        """Those of text-embeddings-inference, in whole milliseconds, and ours."""
        spent = sum(each.flops for each in self.predictions)
        full = sum(each.flops_full for each in self.predictions)
        timing = {"tokenization": self.tokenization, "queue": self.queue, "inference": self.inference, "total": self.total}
        return {
            "x-compute-type": "cpu",
            "x-compute-time": _milliseconds(self.tokenization + self.inference),
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(sum(len(each.tokens) for each in self.predictions)),
            **{f"x-{name}-time": _milliseconds(seconds) for name, seconds in timing.items()},
            "x-adapler-tokens-in": str(sum(len(each.tokens) for each in self.predictions)),
            "x-adapler-tokens-kept": str(sum(each.lengths[-1] for each in self.predictions)),
            "x-adapler-flops-ratio": f"{spent / full if full else 1.0:.4f}",
            "x-truncated": str(int(any(each.truncated for each in self.predictions))),
            "server-timing": ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in timing.items()),
        }


def _milliseconds(seconds: float) -> str:
    return str(int(1000 * seconds))
