"""`python -m adapler`."""

from __future__ import annotations

from adapler.cli import main

main()
