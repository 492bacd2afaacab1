"""Which tokens stay: one file a method, one line here."""

from __future__ import annotations

from adapler.registry import Registry

METHODS = Registry(
    "method",
    {
        "adapler": "adapler.methods.adapler:AdapLeR",
        "power": "adapler.methods.power:Power",
        "trbert": "adapler.methods.trbert:TrBert",
    },
)
