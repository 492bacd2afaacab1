"""The plan of a run: what it scores with which settings, cut into which parts; and which of them are finished.

An output folder holds `part-NNNNNN.*`, bad rows under `_bad/` and the rest under `_adapler/`; readers of folders pass over
names that begin with an underscore. A part is finished when its note under `_adapler/done/` says so, which is written last.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from adapler.doctor import digest_of
from adapler.errors import AdaplerError, BadConfig
from adapler.points import Operating
from adapler.safefile import sha256
from adapler.scale.parts import PART_ROWS, Part, Source
from adapler.scale.writing import STAGED, write_whole

WORK, DONE, BAD = "_adapler", "done", "_bad"
MANIFEST, LOCK = "manifest.json", "lock"
WISHES = ("point", "max_loss", "speedup", "max_latency_ms", "escalate")
"""Settings that say which operating point is meant."""
_WEIGHTS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.onnx")


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(_Told):
    """What answers depend on. Not among them: the engine, its workers and threads, which may change from run to run."""

    model: str
    """Digest of the model."""
    to: str
    text: str | None = None
    pair: str | None = None
    max_length: int | None = None
    token_budget: int | None = None
    point: str | None = None
    max_loss: float | None = None
    speedup: float | None = None
    max_latency_ms: float | None = None
    escalate: float | None = None
    always_keep: tuple[str, ...] = ()
    stride: int | None = None
    tokens: bool = False
    with_text: bool = False
    part_rows: int = PART_ROWS


class Manifest(_Told):
    """The plan as it is kept in the output folder."""

    format_version: int = 1
    settings: Settings
    scale: float | None = None
    escalate: float | None = None
    careful: float = 0.0
    """Of the operating point. Chosen once, where the run began: other machines of a cluster might choose another."""
    labels: tuple[str, ...]
    sources: tuple[Source, ...]
    parts: tuple[Part, ...]

    @property
    def operating(self) -> Operating:
        return Operating(self.scale, self.escalate, self.careful)


class Done(_Told):
    """What is known of a finished part."""

    part: int
    rows: int
    """Texts that were answered."""
    bad: int
    tokens: int
    tokens_kept: int
    """That entered the last layer."""
    truncated: int
    flops: int
    flops_full: int
    bytes: int
    """Of its file."""


T = TypeVar("T", bound=BaseModel)


class Folder:
    """An output folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK
        self.bad = path / BAD

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other run on this machine writes here. What a killed run left half-written is removed."""
        try:
            (self.work / DONE).mkdir(parents=True, exist_ok=True)
            self.bad.mkdir(exist_ok=True)
            lock = (self.work / LOCK).open("wb")
        except OSError as error:
            raise BadConfig(f"cannot write --out {self.path} ({error.strerror}); choose another folder") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
            except OSError as error:
                raise BadConfig(f"another run is writing --out {self.path}; wait for it or choose another folder") from error
            for folder in (self.path, self.work, self.work / DONE, self.bad):
                for staged in folder.glob(f".*{STAGED}"):
                    staged.unlink(missing_ok=True)
            yield

    def file(self, part: Part, to: str) -> Path:
        """Where a part's answers go."""
        return self.path / f"{part.name}.{to}"

    def bad_file(self, part: Part) -> Path:
        """Where its bad rows go, if it has any."""
        return self.bad / f"{part.name}.jsonl"

    def manifest(self) -> Manifest | None:
        """The plan that was begun here; None where nothing was."""
        if (self.work / MANIFEST).is_file():
            found = _read(self.work / MANIFEST, Manifest)
            if found is None:
                raise BadConfig(f"{self.work / MANIFEST} cannot be read; choose another --out")
            return found
        others = sorted(path.name for path in self.path.iterdir() if path.name not in (WORK, BAD))
        if others:
            raise BadConfig(f"--out {self.path} holds {others[0]!r}, which no run put there; choose an empty folder")
        return None

    def begin(self, manifest: Manifest) -> None:
        """Keep the plan."""
        self._keep(self.work / MANIFEST, manifest)

    def finish(self, part: Part, done: Done) -> None:
        """Note that a part's files are all there."""
        self._keep(self.work / DONE / f"{part.name}.json", done)

    def finished(self, manifest: Manifest) -> dict[int, Done]:
        """Parts that need not be done again, by number: noted, and their files as they were written."""
        found = {}
        for part in manifest.parts:
            done = _read(self.work / DONE / f"{part.name}.json", Done)
            if done is None or done.part != part.number:
                continue
            file = self.file(part, manifest.settings.to)
            if file.is_file() and file.stat().st_size == done.bytes and (not done.bad or self.bad_file(part).is_file()):
                found[part.number] = done
        return found

    def _keep(self, path: Path, told: BaseModel) -> None:
        data = told.model_dump_json().encode() + b"\n"
        write_whole(path, lambda stream: stream.write(data))


def check_same(before: Manifest, settings: Settings, sources: Sequence[Source], out: Path) -> None:
    """Refuse to go on with a run under other settings or on other files, and say which."""
    for name, value in settings:
        old = getattr(before.settings, name)
        if old != value:
            what = "with another model" if name == "model" else f"with {_flag(name)} {_shown(old)}, not {_shown(value)}"
            raise BadConfig(f"--out {out} was begun {what}; run it as it was begun, or choose another --out")
    old_stamps, new_stamps = ([source.stamp for source in files] for files in (before.sources, sources))
    if old_stamps != new_stamps:
        raise BadConfig(f"--out {out} was begun on other input: {_difference(old_stamps, new_stamps)}; choose another --out")


def model_digest(folder: Path) -> str:
    """What tells a model from every other: its manifest's digest, or for a folder without one the hash of its files."""
    known = digest_of(folder)
    if known is not None:
        return known
    files = sorted({file for pattern in _WEIGHTS for file in folder.glob(pattern) if file.is_file()})
    return hashlib.sha256("".join(f"{file.name} {sha256(file)}\n" for file in files).encode()).hexdigest()


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        return None
    except OSError as error:
        raise AdaplerError(f"cannot read {path} ({error.strerror}); choose another --out") from error


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: Any) -> str:
    return "unset" if value is None or value == () else str(value)


def _difference(old: Sequence[tuple[str, str, int, int]], new: Sequence[tuple[str, str, int, int]]) -> str:
    before, now = ({stamp[0]: stamp for stamp in stamps} for stamps in (old, new))
    gone, added = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    if gone:
        return f"{gone[0]!r} is gone"
    if added:
        return f"{added[0]!r} is new"
    changed = [name for name in sorted(now) if now[name] != before[name]]
    return f"{changed[0]!r} has been changed" if changed else "files are in another order"
