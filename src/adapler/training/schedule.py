"""How learning rates and lambda move over training. Pure functions of step and epoch."""

from __future__ import annotations


def learning_rate_factor(step: int, total: int, warmup: float) -> float:
    """Share of the peak rate for the update after `step` finished ones: linear up over `warmup`, linear down to 0 at `total`.

    `warmup` need not be whole. The very first update has factor 0 unless there is no warm-up.
    """
    if step < warmup:
        return step / warmup
    return max(0.0, 1.0 - (step - warmup) / (total - warmup)) if total > warmup else 0.0


def lambda_of_epoch(epoch: int, epochs: int, base: float | None = None, growth: float | None = None) -> float:
    """Steepness of soft removal in 0-based `epoch`: base * growth ** epoch.

    By default as the paper: 3 epochs 50 * 50^e, 10 epochs 10 * 3^e, any other number 10 * 10^e.
    """
    default_base, default_growth = {3: (50.0, 50.0), 10: (10.0, 3.0)}.get(epochs, (10.0, 10.0))
    return (default_base if base is None else base) * (default_growth if growth is None else growth) ** epoch


def authors_lambda(step: int, steps_per_epoch: int, epochs: int) -> float:
    """The lambda the authors' script really uses at 0-based `step`: assigned after each step, so the first step of the
    run sees the initial 1000 and the first step of every later epoch still sees the epoch before."""
    return 1000.0 if step == 0 else lambda_of_epoch((step - 1) // steps_per_epoch, epochs)
