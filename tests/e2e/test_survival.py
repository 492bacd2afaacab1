"""A run killed at any moment and started again ends in the same weights, bit for bit, as one that was left alone."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import signal
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from adapler.config import build_config
from adapler.errors import AdaplerError, BadConfig, Diverged, Interrupted
from adapler.records import Record
from adapler.training import finish, saliency, session, snapshot
from adapler.training.finetune import Finetune
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.planted import planted_settings, write_planted_data

PHASES = ("finetune", "saliency", "reduce")


class Watch:
    """Memory shared with a child: which phase it is in, how many steps it has done, whether it is inside a save."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 24)

    def tell(self, *, phase: int | None = None, saving: bool | None = None, step: bool = False) -> None:
        old_phase, old_saving, steps = self.look()
        values = (old_phase if phase is None else phase, old_saving if saving is None else int(saving), steps + step)
        self.memory[:] = struct.pack("<qqq", *values)

    def look(self) -> tuple[int, int, int]:
        return struct.unpack("<qqq", self.memory[:])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Settings of a run that saves after every update, and the hash an uninterrupted run of them ends in."""
    folder = tmp_path_factory.mktemp("survival")
    settings = planted_settings(folder)
    settings["data"]["source"] = str(write_planted_data(folder / "few", train=96, dev=30, test=0))
    (folder / "few" / "test.jsonl").unlink()
    settings["finetune"]["epochs"] = 3
    settings["reduce"]["epochs"] = 2
    settings["run"] = {"snapshot_seconds": 0}
    settings["steer"] = {"target_speedup": 3.0, "scale_low": 0.8, "scale_high": 1.2, "distill": 0.3, "hint": 0.5}
    out = folder / "whole"
    assert in_child(settings, out, None) == 0
    return settings, weights(out)


def in_child(
    settings: dict[str, Any], out: Path, prepare: Callable[[], None] | None, watch: Callable[[int], None] | None = None
) -> int:
    """Train in a forked process, which starts in milliseconds because torch is loaded; its exit status (negative: signal)."""
    torch.set_num_threads(1)  # so that the fork inherits no thread pool; also makes sums reproducible
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process that may have threads: none of ours run
        child = os.fork()
    if child == 0:
        code = 1
        try:
            if prepare is not None:
                prepare()
            train(build_config(settings), out, Silent())
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
        finally:
            os._exit(code)
    if watch is not None:
        watch(child)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def weights(out: Path) -> str:
    """Hash of everything that defines the model."""
    return hashlib.sha256(
        b"".join((out / name).read_bytes() for name in ("model.safetensors", "reduction.safetensors"))
    ).hexdigest()


def watched(watch: Watch) -> None:
    """In the child: report phases, steps and saves. Training itself is unchanged."""
    run, write = session.Session.run, snapshot.Snapshots.write
    average = saliency._average

    def told_run(self: session.Session, phase: session.Phase, found: snapshot.Snapshot | None) -> None:
        watch.tell(phase=PHASES.index(phase.name))
        step = phase.step

        def told_step(batches: list[list[int]], epoch: int) -> float:
            watch.tell(step=True)
            return step(batches, epoch)

        phase.step = told_step  # type: ignore[method-assign]
        run(self, phase, found)

    def told_write(self: snapshot.Snapshots, number: int, tensors: Any, state: Any) -> None:
        watch.tell(saving=True)
        write(self, number, tensors, state)
        watch.tell(saving=False)

    def told_average(backbone: Any, texts: Any, labels: Any, checkpoints: Any, measure: Any) -> Any:
        watch.tell(phase=PHASES.index("saliency"), step=True)
        return average(backbone, texts, labels, checkpoints, measure)

    session.Session.run = told_run  # type: ignore[method-assign, assignment]
    snapshot.Snapshots.write = told_write  # type: ignore[method-assign]
    saliency._average = told_average


def test_killed_runs_end_in_the_same_weights(
    short: tuple[dict[str, Any], str],
    tmp_path: Path,
    count: Callable[[int, int], int],
    prove: Callable[[str, list[Record]], None],
) -> None:
    settings, whole = short
    wanted, kills, ended = count(6, 200), Counter[str](), 0
    draw = random.Random(0)
    runs = 0
    while sum(kills[phase] for phase in PHASES) < wanted:
        runs += 1
        out = tmp_path / f"run-{runs}"
        while True:
            watch = Watch()
            kind = (*PHASES, "save")[(sum(kills[phase] for phase in PHASES)) % 4]
            steps, delay = draw.randrange(1, 4), draw.random() * 0.004

            def strike(child: int, watch: Watch = watch, kind: str = kind, steps: int = steps, delay: float = delay) -> None:
                while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    phase, saving, done = watch.look()
                    if done >= steps and (saving if kind == "save" else PHASES[phase] == kind and not saving):
                        time.sleep(delay)
                        phase, saving, _ = watch.look()
                        kills[PHASES[phase]] += 1
                        kills["inside a save"] += bool(saving)
                        os.kill(child, signal.SIGKILL)
                        return
                    time.sleep(0.0002)

            before = sum(kills[phase] for phase in PHASES)
            done = before >= wanted
            status = in_child(settings, out, lambda watch=watch: watched(watch), None if done else strike)  # type: ignore[misc]
            assert status in (0, -signal.SIGKILL), status
            if status == 0:
                break
        assert weights(out) == whole
        ended += 1
    record = Record(
        kind="prove", variant="kill -9 while training", value=float(wanted), unit="kills", n=ended, config=dict(kills)
    )
    prove("kills", [record])
    assert all(kills[kind] >= count(1, 10) for kind in (*PHASES, "inside a save")), kills


def test_a_save_cut_at_every_file_boundary_leaves_a_run_that_ends_the_same(
    short: tuple[dict[str, Any], str], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    settings, whole = short
    boundaries = _boundaries_of_a_save()
    assert boundaries >= 6
    for cut in range(1, boundaries + 1, count(3, 1)):
        out = tmp_path / f"cut-{cut}"
        assert in_child(settings, out, lambda cut=cut: _die_at_boundary(5, cut)) == -signal.SIGKILL  # type: ignore[misc]
        assert in_child(settings, out, None) == 0
        assert weights(out) == whole


def test_a_broken_newest_snapshot_falls_back_and_says_so(short: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    settings, whole = short
    out = tmp_path / "run"
    assert in_child(settings, out, lambda: _die_at_boundary(6, 1)) == -signal.SIGKILL
    newest = max((out / "work" / "snapshots").glob("0*"))
    tensors = newest / "tensors.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-5] ^= 1
    tensors.write_bytes(data)
    said: list[str] = []
    found = snapshot.Snapshots(out / "work" / "snapshots", 2, said.append).newest()
    assert found is not None and found.number < int(newest.name) and "broken" in said[0]
    assert in_child(settings, out, None) == 0
    assert weights(out) == whole


def test_sigterm_saves_and_leaves_with_143(short: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    settings, whole = short
    out, watch = tmp_path / "run", Watch()

    def terminate(child: int) -> None:
        while watch.look()[2] < 4:
            time.sleep(0.001)
        os.kill(child, signal.SIGTERM)

    def report_exit() -> None:
        watched(watch)

    code = in_child({**settings, "run": {"snapshot_seconds": 1000}}, out, report_exit, terminate)
    assert code == 1  # the error's own code is the command line's to use
    state = json.loads((max((out / "work" / "snapshots").glob("0*")) / "state.json").read_text())
    assert state["step"] + 3 * state["epoch"] >= 4
    assert in_child(settings, out, None) == 0 and weights(out) == whole  # how often it saves may change


def test_a_full_disk_leaves_the_previous_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = snapshot.Snapshots(tmp_path, 2, lambda _: None)
    store.write(1, {"a": torch.ones(3)}, {"position": 1})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("save_file", "sync", "sha256"):
        with monkeypatch.context() as patch:
            patch.setattr(snapshot, name, full)
            with pytest.raises(AdaplerError, match=r"No space left on device.*make room"):
                store.write(2, {"a": torch.zeros(3)}, {"position": 2})
        found = store.newest()
        assert found is not None and found.state == {"position": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["000000001"]


def test_a_full_disk_is_one_line(short: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(snapshot, "save_file", full)
    with pytest.raises(AdaplerError, match=r"cannot write .*No space left"):
        train(build_config(short[0]), tmp_path / "run", Silent())


def test_weights_that_are_no_numbers_are_never_saved(
    short: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last update of an epoch spoils them; no loss has told of it yet."""
    settings = {**short[0], "run": {"snapshot_seconds": 0, "keep": 1}}
    step, done = Finetune.step, 0

    def spoilt(self: Finetune, batches: list[list[int]], epoch: int) -> float:
        nonlocal done
        loss = step(self, batches, epoch)
        done += 1
        if done == 3:
            next(iter(self.parameters.values())).data[0, 0] = float("nan")
        return loss

    monkeypatch.setattr(Finetune, "step", spoilt)
    with pytest.raises(Diverged, match="last good snapshot"):
        train(build_config(settings), tmp_path / "run", Silent())
    found = snapshot.Snapshots(tmp_path / "run" / "work" / "snapshots", 1, lambda _: None).newest()
    assert found is not None and all(bool(tensor.isfinite().all()) for tensor in found.tensors.values())


def test_a_signal_while_the_result_is_measured_stops_at_once(
    short: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, whole = short
    out = tmp_path / "run"

    def asked_to_stop(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError("went on")

    with monkeypatch.context() as patch:
        patch.setattr(finish, "measure", asked_to_stop)
        with pytest.raises(Interrupted, match="SIGTERM"):
            train(build_config(settings), out, Silent())
    assert in_child(settings, out, None) == 0 and weights(out) == whole


def test_a_run_does_not_go_on_with_other_data(short: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    settings = json.loads(json.dumps(short[0]))
    settings["data"]["source"] = str(write_planted_data(tmp_path / "data", train=96, dev=30, test=0))
    (tmp_path / "data" / "test.jsonl").unlink()
    assert in_child(settings, tmp_path / "run", lambda: _die_at_boundary(4, 1)) == -signal.SIGKILL
    lines = (tmp_path / "data" / "train.jsonl").read_text().splitlines()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(lines[:80]) + "\n")
    with pytest.raises(BadConfig, match=r"96 texts of train .* then, 80"):
        train(build_config(settings), tmp_path / "run", Silent())
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(lines) + "\n")
    shares: list[float] = []

    class Counting(Silent):
        def advance(self, share: float) -> None:
            shares.append(share)

    settings["run"] = {"snapshot_seconds": 100, "keep": 3}  # neither changes what is learnt
    train(build_config(settings), tmp_path / "run", Counting())
    assert sum(shares) == pytest.approx(1.0, abs=0.01)


def test_only_the_kept_number_of_snapshots_stays(tmp_path: Path) -> None:
    store = snapshot.Snapshots(tmp_path, 2, lambda _: None)
    for number in range(1, 6):
        store.write(number, {"a": torch.full((2,), float(number))}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000004", "000000005"]


def _boundaries_of_a_save() -> int:
    """How many times a save touches the file system, counted on a small one."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        counted = 0

        def tick() -> None:
            nonlocal counted
            counted += 1

        restore = _around_boundaries(tick)
        try:
            snapshot.Snapshots(Path(folder), 2, lambda _: None).write(1, {"a": torch.ones(1)}, {})
        finally:
            restore()
        return counted


def _around_boundaries(tick: Callable[[], None]) -> Callable[[], None]:
    """Call `tick` before and after each of a save's file operations; returns what undoes it."""
    names = ("save_file", "sync", "sha256")
    before = [getattr(snapshot, name) for name in names]
    rename = Path.rename

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            tick()
            result = function(*args)
            tick()
            return result

        return call

    for name, function in zip(names, before, strict=True):
        setattr(snapshot, name, wrapped(function))
    Path.rename = wrapped(rename)  # type: ignore[method-assign]

    def restore() -> None:
        for name, function in zip(names, before, strict=True):
            setattr(snapshot, name, function)
        Path.rename = rename  # type: ignore[method-assign]

    return restore


def _die_at_boundary(save: int, boundary: int) -> None:
    """In the child: kill -9 itself at one file boundary of its `save`-th snapshot."""
    write = snapshot.Snapshots.write
    saves = 0

    def told_write(self: snapshot.Snapshots, number: int, tensors: Any, state: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == save:
            left = boundary

            def tick() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            _around_boundaries(tick)
        write(self, number, tensors, state)

    snapshot.Snapshots.write = told_write  # type: ignore[method-assign]
