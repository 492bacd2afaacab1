"""Measurements as flat records that carry their conditions. Every published number is generated from these.

A file under `benchmarks/results/` holds a JSON list of them. A field that does not apply is absent.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_VERSIONED = ("adapler", "torch", "transformers", "tokenizers", "numpy", "onnxruntime")


def machine() -> str:
    """CPU, cores and memory in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {gigabytes:.0f} GiB, {platform.system()}"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on, as far as installed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The source commit, marked where the tree (but for results) was changed; None outside a checkout."""
    here = Path(__file__).parent
    try:
        name = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    changed = [line for line in status.splitlines() if "benchmarks/results" not in line]
    return name + ("+changed" if changed else "")


def model_name(model: str | Path) -> str:
    """What a record calls the model that something was made from: the last part of its path, or of the run or study cell whose
    folder `model` it is."""
    path = Path(model)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()


@dataclass(kw_only=True)
class Record:
    """One measurement."""

    kind: str
    """train, bench, study, curve, rationale, prove ..."""
    task: str | None = None
    method: str | None = None
    variant: str | None = None
    backbone: str | None = None
    runtime: str | None = None
    point: str | None = None
    seed: int | None = None
    split: str | None = None
    n: int | None = None
    n_train: int | None = None
    layer: int | None = None
    metric: str | None = None
    score: float | None = None
    score_full: float | None = None
    loss_points: float | None = None
    """`score_full` - `score` in points, same split and seed."""
    flops_speedup: float | None = None
    flops_speedup_executed: float | None = None
    flops_speedup_padded: float | None = None
    flops_speedup_authors: float | None = None
    wall_speedup: float | None = None
    wall_vs: str | None = None
    value: float | None = None
    unit: str | None = None
    spread: float | None = None
    repeats: int | None = None
    batch: str | None = None
    threads: int | None = None
    machine: str = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    config: dict[str, Any] | None = None
    commit: str | None = field(default_factory=commit)
    date: str = field(default_factory=today)

    def to_dict(self) -> dict[str, Any]:
        """Without the fields that do not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a results file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(json.dumps([record.to_dict() for record in records], indent=1) + "\n", encoding="utf-8")
    staging.replace(path)
