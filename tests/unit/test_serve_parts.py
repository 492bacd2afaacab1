"""Parts of the server by themselves: the line in front of the model, quotas, keys."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapler.errors import BadConfig
from adapler.serve.batcher import Batcher
from adapler.serve.limits import Limits, cgroup_cores
from adapler.serve.run import fit_threads, listen, read_key


class Recorder:
    """A model that notes its batches, and waits to be let go."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        if not held:
            self.gate.set()

    def __call__(self, tasks: Sequence[int]) -> list[int]:
        self.batches.append(list(tasks))
        assert self.gate.wait(10)
        return [10 * task for task in tasks]


def test_an_idle_line_does_not_wait() -> None:
    model = Recorder()

    async def one() -> float:
        batcher: Batcher[int] = Batcher(model, budget=100, gather_seconds=5.0)
        begin = time.perf_counter()
        for task in range(3):
            assert (await batcher(task, kind="a", tokens=1)).result == 10 * task
        batcher.close(1)
        return time.perf_counter() - begin

    assert asyncio.run(one()) < 2.0
    assert model.batches == [[0], [1], [2]]


def test_batches_keep_order_kind_and_budget() -> None:
    model = Recorder(held=True)

    async def several() -> list[int]:
        batcher: Batcher[int] = Batcher(model, budget=10, gather_seconds=0.0)
        works = [(0, "a", 1), (1, "a", 4), (2, "a", 6), (3, "a", 5), (4, "b", 1), (5, "b", 1), (6, "a", 99), (7, "a", 1)]
        waiting = []
        for task, kind, tokens in works:
            waiting.append(asyncio.create_task(batcher(task, kind=kind, tokens=tokens)))
            await asyncio.sleep(0.1 if task == 0 else 0)
        model.gate.set()
        found = [(await each).result for each in waiting]
        assert batcher.close(1)
        return found

    assert asyncio.run(several()) == [10 * task for task in range(8)]
    # The first ran alone, as nobody else was there yet; a work larger than the budget runs by itself.
    assert model.batches == [[0], [1, 2], [3], [4, 5], [6], [7]]


def test_a_crowded_line_waits_a_moment_for_more() -> None:
    model = Recorder(held=True)

    async def crowd() -> None:
        batcher: Batcher[int] = Batcher(model, budget=100, gather_seconds=0.3)
        early = [asyncio.create_task(batcher(task, kind="a", tokens=1)) for task in range(3)]
        await asyncio.sleep(0.05)
        model.gate.set()
        await asyncio.gather(*early)
        late = [asyncio.create_task(batcher(3, kind="a", tokens=1))]
        await asyncio.sleep(0.05)
        late.append(asyncio.create_task(batcher(4, kind="a", tokens=1)))
        await asyncio.gather(*late)
        batcher.close(1)

    asyncio.run(crowd())
    assert model.batches[-1] == [3, 4]


def test_cancelled_work_leaves_the_line_and_the_estimate() -> None:
    model = Recorder(held=True)

    async def leave() -> None:
        batcher: Batcher[int] = Batcher(model, budget=1, gather_seconds=0.0)
        running = asyncio.create_task(batcher(0, kind="a", tokens=1))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(batcher(task, kind="a", tokens=1)) for task in (1, 2, 3)]
        await asyncio.sleep(0.05)
        waiting[1].cancel()
        await asyncio.sleep(0.05)
        assert batcher.waiting == 2
        model.gate.set()
        await asyncio.gather(running, waiting[0], waiting[2])
        assert batcher.seconds_ahead() < 1e-3
        batcher.close(1)

    asyncio.run(leave())
    assert model.batches == [[0], [1], [3]]


@pytest.mark.parametrize(
    ("content", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("0 100000", None), ("nonsense", None)],
)
def test_a_quota_is_read_in_cores(tmp_path: Path, content: str, cores: float | None) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert cgroup_cores(tmp_path, tmp_path / "none") == cores


def test_the_smallest_quota_of_all_groups_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("50000 100000")
    (tmp_path / "a" / "b" / "cpu.max").write_text("300000 100000")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert cgroup_cores(tmp_path, tmp_path / "own") == 0.5
    old = tmp_path / "old" / "cpu" / "c"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("200000")
    (old / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "own").write_text("4:memory:/c\n3:cpu,cpuacct:/c\n")
    assert cgroup_cores(tmp_path / "old", tmp_path / "own") == 2.0


def test_threads_are_as_asked_else_as_the_quota_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapler.serve.run.usable_cores", lambda: 3)
    monkeypatch.setattr("adapler.serve.run.sys.modules", {})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "8")
    assert fit_threads(None) == 3
    assert fit_threads(5) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert fit_threads(None) == 2


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("API_KEY", "from-outside")
    assert read_key(None) == "from-outside"
    monkeypatch.setenv("API_KEY", " from-outside\n")  # as a secret mounted into a container may come
    assert read_key(None) == "from-outside"
    for bad in ("\n", "two words"):
        monkeypatch.setenv("API_KEY", bad)
        with pytest.raises(BadConfig, match="API_KEY holds no key"):
            read_key(None)
    monkeypatch.setenv("API_KEY", "")
    assert read_key(None) is None
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert read_key(file) == "secret"
    for bad in ("", "two words"):
        file.write_text(bad)
        with pytest.raises(BadConfig, match="holds no key"):
            read_key(file)
    with pytest.raises(BadConfig, match="cannot read"):
        read_key(tmp_path / "missing")


def test_a_taken_port_and_a_wrong_limit_are_typed_errors() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(BadConfig, match="cannot listen"):
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(BadConfig, match="request_timeout must be at least"):
        Limits(request_timeout=0)
    with pytest.raises(BadConfig, match="max_batch_tokens must be at least 1"):
        Limits(max_batch_tokens=0)
