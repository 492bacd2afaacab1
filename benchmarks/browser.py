"""A real browser: the system's own, found, never fetched, and driven by playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "ADAPLER_CHROMIUM"
"""Path of the browser, where it is none of these."""


def chromium() -> str | None:
    """Where the system's browser is; None where it has none."""
    given = os.environ.get(VARIABLE)
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


def missing() -> str | None:
    """What is lacking to drive a browser, and how to get it; None where nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed; pip install 'adapler[browser]', or make browser"
    if chromium() is None:
        return f"no chromium found; apt-get install chromium, or set {VARIABLE}"
    return None


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without a window. Its sandbox needs rights that root and containers do not have."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield opened
        finally:
            opened.close()
