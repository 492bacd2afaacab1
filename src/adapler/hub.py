"""Where a model is: a folder here, or a snapshot of the hub. No torch, so that a mistyped name is told at once."""

from __future__ import annotations

import os
from pathlib import Path

from adapler.errors import BadModel
from adapler.safefile import reason

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
_HUB_SECONDS = 5


def locate(name: str | Path) -> Path:
    """A model folder's path as it is; anything else is taken for a hub id and its snapshot fetched or found in the cache."""
    path = Path(name)
    if os.path.lexists(path):
        return path
    text = str(name)
    parts = text.split("/")
    if path.is_absolute() or text.startswith((".", "~")) or not 1 <= len(parts) <= 2 or not all(parts):
        raise BadModel(f"no model folder {text!r}; give a folder written by save_pretrained, or a hub id such as org/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, allow_patterns=_HUB_FILES, etag_timeout=_HUB_SECONDS))
    except Exception as error:  # refused ids, unknown models, no network: each layer below has classes of its own
        raise BadModel(
            f"no folder {text!r} here, and the hub could not give a model of that id ({reason(error)[:200]}). "
            f"Check the path; without network, download the model elsewhere and give its folder"
        ) from error
