"""What a server allows: sizes, times, numbers. Knows neither HTTP nor models."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from adapler.errors import BadConfig


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server; the names are those of text-embeddings-inference where it has one."""

    max_concurrent_requests: int = 512
    """Requests in the server at once; one more is answered 429."""
    max_batch_tokens: int = 16384
    """Tokens gathered from waiting requests before the model runs."""
    max_client_batch_size: int = 32
    """Texts of one request that run together; more are split, or refused without `split`."""
    split: bool = True
    """Whether larger client batches are run piece by piece."""
    max_request_items: int = 8192
    """Texts a request may hold where larger batches are split."""
    payload_limit: int = 2_000_000
    """Bytes of a request's body."""
    request_timeout: float = 30.0
    """Seconds from a body that was read to its answer."""
    client_timeout: float = 10.0
    """Seconds a client may take to send its request's head, or then its body, or to read an answer."""
    gather_ms: float = 3.0
    """How long a busy server waits for more requests to fill a batch; an idle one never does."""
    auto_truncate: bool = True
    """Whether texts past the model's limit are cut where a request does not say."""
    tokenization_workers: int = 2
    """Threads that make token ids of texts."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name == "gather_ms" else 1 if isinstance(value, int) else 0.001
            if not isinstance(value, bool) and not (math.isfinite(value) and value >= least):
                raise BadConfig(f"{each.name} must be at least {least}, got {value}")

    @property
    def most_items(self) -> int:
        """Texts a request may hold."""
        return self.max_request_items if self.split else self.max_client_batch_size


def usable_cores() -> int:
    """Cores this process may use: those it is bound to, and no more than the container's quota pays for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
    return bound if quota is None else max(1, min(bound, int(quota)))


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The smallest CPU quota of this process' control groups, in cores; None where there is none."""
    quotas = []
    for folder in _folders(root, own):
        both = _words(folder / "cpu.max")  # version 2: quota and period, or "max"
        if len(both) != 2:
            both = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(both) == 2 and all(re.fullmatch(r"\d+", word) for word in both) and int(both[0]) and int(both[1]):
            quotas.append(int(both[0]) / int(both[1]))
    return min(quotas, default=None)


def _folders(root: Path, own: Path) -> list[Path]:
    """Where quotas may stand: the mounted root, and the process' own groups with all above them."""
    found = [root, root / "cpu"]
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            base = root if controllers == "" else root / "cpu"
            inner = base / path.strip("/")
            found += [inner, *(parent for parent in inner.parents if parent.is_relative_to(base))]
    return found


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return []
