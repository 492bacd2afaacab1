"""Saving is whole or not at all: failures at every step, kills in the middle, and what must never be overwritten."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from adapler import checkpoint
from adapler.checkpoint import write_folder
from adapler.classifier import Classifier
from adapler.errors import BadModel
from adapler.folder import check_folder
from tests.tiny import tiny_classifier

ROOT = Path(__file__).parents[2]
STEPS: tuple[tuple[Any, str], ...] = (
    (tempfile, "mkdtemp"),
    (os, "fsync"),
    (Path, "chmod"),
    (Path, "rename"),
    (Path, "write_text"),
    (checkpoint, "write_reduction"),
    (checkpoint, "_exchange"),
)
"""Everything a save asks of the system, and its own steps."""


@pytest.fixture(scope="module")
def old() -> Classifier:
    return tiny_classifier(layers=2, hidden=16, seed=1)


@pytest.fixture(scope="module")
def new() -> Classifier:
    return tiny_classifier(layers=2, hidden=16, seed=2)


def state(folder: Path) -> str | None:
    """One hash over every name and byte of a folder; None where there is none."""
    if not folder.exists():
        return None
    parts = [file.name.encode() + b"\0" + file.read_bytes() for file in sorted(folder.iterdir())]
    return sha256(b"\0\0".join(parts)).hexdigest()


def saved_state(model: Classifier, folder: Path) -> str | None:
    model.save_pretrained(folder)
    check_folder(folder)
    return state(folder)


class Failing:
    """Counts the steps of a save and lets one of them fail as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.calls = 0
        self.at = at
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls - 1 == self.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return step(*args, **kwargs)

        return run


def fail_everywhere(save: Callable[[], None], restore: Callable[[], None], target: Path, allowed: set[str | None]) -> int:
    """Let every step fail in turn; returns how many there were. The last run is the one in which nothing failed."""
    at = 0
    while True:
        restore()
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, at)
            try:
                save()
                failed = False
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failed = True
        assert state(target) in allowed, f"step {at} left neither the old folder nor the new one"
        left = [path.name for path in target.parent.iterdir() if path != target]
        assert not left, f"step {at} left {left} behind"
        if not failed:
            assert failing.calls == at
            return at
        at += 1


def restorer(target: Path, content: Path | None) -> Callable[[], None]:
    def restore() -> None:
        shutil.rmtree(target, ignore_errors=True)
        if content is not None:
            shutil.copytree(content, target)

    return restore


def test_a_full_disk_at_any_step_leaves_no_folder_or_the_whole_one(tmp_path: Path, new: Classifier) -> None:
    whole = saved_state(new, tmp_path / "reference")
    target = tmp_path / "place" / "model"
    target.parent.mkdir()
    steps = fail_everywhere(lambda: new.save_pretrained(target), restorer(target, None), target, {None, whole})
    assert steps >= 2 * 6  # each of six files changes its mode and is forced to disk
    assert state(target) == whole


@pytest.mark.parametrize("swaps", [True, False], ids=["one rename", "two renames"])
def test_a_full_disk_at_any_step_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, old: Classifier, new: Classifier, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    before, after = saved_state(old, tmp_path / "old"), saved_state(new, tmp_path / "new")
    assert before != after
    target = tmp_path / "place" / "model"
    target.parent.mkdir()
    if not swaps:
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno=False: object())  # a system without renameat2
    fail_everywhere(
        lambda: new.save_pretrained(target, overwrite=True), restorer(target, tmp_path / "old"), target, {before, after}
    )
    assert state(target) == after


def test_a_save_that_first_removes_the_old_folder_would_be_noticed(
    tmp_path: Path, old: Classifier, new: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = saved_state(old, tmp_path / "old"), saved_state(new, tmp_path / "new")
    target = tmp_path / "place" / "model"
    target.parent.mkdir()

    def careless(staging: Path, place: Path) -> None:
        shutil.rmtree(place)
        staging.rename(place)

    monkeypatch.setattr(checkpoint, "_exchange", careless)
    with pytest.raises(AssertionError, match="neither the old folder nor the new one"):
        fail_everywhere(
            lambda: new.save_pretrained(target, overwrite=True), restorer(target, tmp_path / "old"), target, {before, after}
        )


def test_a_writer_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for files in range(4):

        def write(staging: Path, files: int = files) -> None:
            for number in range(files):
                (staging / f"{number}.json").write_text("{}")
            raise RuntimeError("the writer's own")

        with pytest.raises(RuntimeError, match="the writer's own"):
            write_folder(target, write, overwrite=False)
        assert list(tmp_path.iterdir()) == []


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.tiny import tiny_classifier
target, times, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
models = [tiny_classifier(layers=2, hidden=16, seed=1), tiny_classifier(layers=2, hidden=16, seed=2)]
models[0].save_pretrained(target)
start = time.perf_counter()
models[0].save_pretrained(target, overwrite=True)
once = time.perf_counter() - start
draw = random.Random(seed)
for _ in range(times):
    child = os.fork()
    if child == 0:
        while True:
            for model in models:
                model.save_pretrained(target, overwrite=True)
    time.sleep(once * draw.uniform(0.5, 4))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
    sys.stdin.readline()
"""


def test_a_killed_save_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, old: Classifier, new: Classifier, count: Callable[[int, int], int]
) -> None:
    allowed = {saved_state(old, tmp_path / "old"), saved_state(new, tmp_path / "new")}
    place = tmp_path / "place"
    target = place / "model"
    times = count(8, 50)
    command = [sys.executable, "-c", KILLED, str(target), str(times), "0"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        for _ in range(times):
            assert process.stdout.readline() == "killed\n"
            assert state(target) in allowed
            process.stdin.write("\n")
            process.stdin.flush()
        process.stdin.close()
    assert process.returncode == 0
    left = [path.name for path in place.iterdir() if path != target]
    assert left, "no kill hit a save"
    assert all(name.startswith(".model.") and name.endswith(".tmp") for name in left)
    new.save_pretrained(target, overwrite=True)  # what was left behind is in nobody's way
    Classifier.from_pretrained(target)


def test_an_unfinished_folder_is_never_opened_reduced(tmp_path: Path, new: Classifier) -> None:
    whole = tmp_path / "whole"
    new.save_pretrained(whole)
    (whole / "reduction.json").unlink()  # written last
    with pytest.raises(BadModel, match=r"reduction\.json is missing"):
        Classifier.from_pretrained(whole)


def test_what_is_saved_opens_again_with_the_same_answers(tmp_path: Path) -> None:
    made = tiny_classifier(max_length=32)
    made.save_pretrained(tmp_path / "deep" / "er" / "model")
    opened = Classifier.from_pretrained(tmp_path / "deep" / "er" / "model")
    texts = ["a good film", "a bad , bad film that never ends " * 4, ""]
    assert opened(texts) == made(texts)
    assert (opened.max_length, opened.labels) == (32, made.labels)


def test_a_full_length_classifier_is_saved_as_a_plain_folder(tmp_path: Path) -> None:
    made = tiny_classifier(reduced=False)
    made.save_pretrained(tmp_path / "model")
    assert not list((tmp_path / "model").glob("reduction*"))
    found, expected = (each("a good film") for each in (Classifier.from_pretrained(tmp_path / "model"), made))
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)  # where weights lie in memory may turn a last bit
    assert replace(found, score=expected.score, scores=expected.scores) == expected


def test_an_existing_folder_is_refused_unless_asked_for(tmp_path: Path, old: Classifier, new: Classifier) -> None:
    target = tmp_path / "model"
    before = saved_state(old, target)
    with pytest.raises(BadModel, match="overwrite=True"):
        new.save_pretrained(target)
    assert state(target) == before
    new.save_pretrained(target, overwrite=True)
    assert state(target) != before


def test_only_model_folders_are_overwritten(tmp_path: Path, new: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years")
    monkeypatch.chdir(home)
    for target in (home, Path(), home / "thesis.txt"):
        with pytest.raises(BadModel, match="no model folder"):
            new.save_pretrained(target, overwrite=True)
    assert (home / "thesis.txt").read_text() == "years"
    (home / "empty").mkdir()
    new.save_pretrained(home / "empty", overwrite=True)
    monkeypatch.chdir(home / "empty")
    new.save_pretrained(".", overwrite=True)
    check_folder(home / "empty")


def test_saving_through_a_link_replaces_what_it_points_to(tmp_path: Path, old: Classifier, new: Classifier) -> None:
    after = saved_state(new, tmp_path / "new")
    old.save_pretrained(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    new.save_pretrained(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert state(tmp_path / "real") == after
    assert {path.name for path in tmp_path.iterdir()} == {"new", "real", "link"}


def test_files_are_readable_by_others(tmp_path: Path, new: Classifier) -> None:
    before = os.umask(0o077)
    try:
        new.save_pretrained(tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "model").iterdir()} == {0o644}


def test_folders_inside_stay_usable(tmp_path: Path) -> None:
    def write(staging: Path) -> None:
        (staging / "more").mkdir()
        (staging / "more" / "template.jinja").write_text("x")

    write_folder(tmp_path / "model", write, overwrite=False)
    assert stat.S_IMODE((tmp_path / "model" / "more").stat().st_mode) == 0o755
    assert (tmp_path / "model" / "more" / "template.jinja").read_text() == "x"


def test_a_model_can_be_saved_over_the_folder_it_was_opened_from(tmp_path: Path, new: Classifier) -> None:
    new.save_pretrained(tmp_path / "model")
    opened = Classifier.from_pretrained(tmp_path / "model")
    opened.save_pretrained(tmp_path / "model", overwrite=True)
    assert opened("a good film") == Classifier.from_pretrained(tmp_path / "model")("a good film")


def test_a_random_reducer_survives_the_round_trip_bit_by_bit(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(3):
        made = tiny_classifier(
            layers=draw.choice([1, 2, 5]), hidden=draw.choice([8, 32]), seed=number, eta=draw.uniform(0.1, 1)
        )
        made.save_pretrained(tmp_path / str(number))
        opened = Classifier.from_pretrained(tmp_path / str(number))
        assert made.reducer is not None and opened.reducer is not None
        stored = opened.reducer.state_dict()
        assert stored.keys() == made.reducer.state_dict().keys()
        assert all(torch.equal(tensor, stored[name]) for name, tensor in made.reducer.state_dict().items())
