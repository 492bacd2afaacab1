"""Snapshots that survive a kill: a folder each, staged, forced to disk, renamed; the newest whole one wins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from adapler.checkpoint import sync
from adapler.errors import AdaplerError
from adapler.safefile import reason, sha256

_TENSORS = "tensors.safetensors"
_STATE = "state.json"
_MANIFEST = "manifest.json"
_STAGING = ".staging"


@dataclass(frozen=True)
class Snapshot:
    """Everything a run needs to go on as if it had never stopped."""

    number: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Snapshots:
    """The snapshots of one run, numbered upwards."""

    def __init__(self, folder: Path, keep: int, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.keep = keep
        self.say = say
        """Called with a line the user should read, such as a broken snapshot passed over."""

    def write(self, number: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Add a snapshot; the ones before it stay whole until it is on disk, then the oldest beyond `keep` go."""
        with writing(self.folder):
            self._write(number, tensors, state)
        for old in self._numbers()[: -self.keep]:
            shutil.rmtree(self.folder / f"{old:09d}", ignore_errors=True)

    def _write(self, number: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        staging = self.folder / _STAGING
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, staging / _TENSORS)
            (staging / _STATE).write_text(json.dumps(state), encoding="utf-8")
            hashes = {name: sha256(staging / name) for name in (_TENSORS, _STATE)}
            (staging / _MANIFEST).write_text(json.dumps(hashes), encoding="utf-8")
            for name in (_TENSORS, _STATE, _MANIFEST):
                sync(staging / name)
            sync(staging)
            target = self.folder / f"{number:09d}"
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            sync(self.folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)  # a full disk gets its room back; earlier snapshots are untouched
            raise

    def newest(self) -> Snapshot | None:
        """The newest snapshot whose every byte is as written; broken ones are passed over, and said."""
        for number in reversed(self._numbers()):
            path = self.folder / f"{number:09d}"
            try:
                hashes = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
                for name in (_TENSORS, _STATE):
                    if sha256(path / name) != hashes[name]:
                        raise ValueError(f"{name} differs from what was written")
                state = json.loads((path / _STATE).read_text(encoding="utf-8"))
                return Snapshot(number, load_file(path / _TENSORS), state)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                self.say(f"snapshot {path} is broken ({error}); going back to the one before")
        return None

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One safetensors file, whole or not at all."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(path.name + _STAGING)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, staging)
        sync(staging)
        staging.replace(path)
        sync(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A file of the run, whole or not at all."""
    with writing(path):
        staging = path.with_name(path.name + ".tmp")
        staging.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        sync(staging)
        staging.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A table from such a file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, what the system refuses to write (a full disk, no permission) is a typed error."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
        raise AdaplerError(
            f"cannot write {path} ({told}); make room there, then the same command goes on from the last snapshot"
        ) from error
