"""Tables of named things, loaded when first used. Listing a table imports nothing heavy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from adapler.errors import UnknownName


class Registry(Mapping[str, Any]):
    """Name -> object, where the object is written as `"module:attribute"` and imported on first access."""

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, n=3, cutoff=0.5)
            nearest = f" Nearest: {', '.join(near)}." if near else ""
            raise UnknownName(f"no {self.kind} {name!r}.{nearest} Known: {', '.join(self._entries)}.")
        module, attribute = self._entries[name].split(":")
        return getattr(importlib.import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, target: str) -> None:
        """Register `"module:attribute"` under a new name; a name that is taken is refused."""
        if name in self._entries:
            raise UnknownName(f"{self.kind} {name!r} is taken by {self._entries[name]}; choose another name")
        self._entries[name] = target
