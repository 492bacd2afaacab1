"""A corpus scored by a run that is killed at any moment and started again: nothing lost, nothing doubled, equal answers."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from adapler.classifier import Classifier
from adapler.cli.progress import Progress
from adapler.errors import AdaplerError, BadInput
from adapler.records import Record
from adapler.scale import writing
from adapler.scale.parts import find
from adapler.scale.plan import DONE, MANIFEST, WORK, Folder, Settings, model_digest
from adapler.scale.run import Summary, score
from tests.tiny import tiny_classifier, tiny_texts

BAD_EVERY = 97  # rows between two that are no texts
FILES = 3
SECONDS = 300
Corpus = tuple[Path, Path, int]
"""Model, folder of input, rows of a part."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, count: Callable[[int, int], int]) -> Corpus:
    """A model, and files with a bad row here and there; every text says which it is."""
    folder = tmp_path_factory.mktemp("corpus")
    tiny_classifier(layers=2, hidden=16, heads=2, eta=0.4).save_pretrained(folder / "model")
    rows = count(1200, 200_000)
    texts = tiny_texts(400, seed=7, longest=8)
    (folder / "in").mkdir()
    for file in range(FILES):
        with (folder / "in" / f"{file}.jsonl").open("w", encoding="utf-8") as stream:
            for row in range(file, rows, FILES):
                text = None if row % BAD_EVERY == 0 else texts[row % len(texts)]
                stream.write(json.dumps({"id": row, "text": text}) + "\n")
    return folder / "model", folder / "in", count(40, 4000)


def run(corpus: Corpus, out: Path, **changes: Any) -> Summary:
    model, source, part_rows = corpus
    settings = Settings(model=model_digest(model), to="jsonl", part_rows=part_rows, **changes)
    return score(model, find(str(source))[0], out, settings, Progress())


def in_child(
    corpus: Corpus, out: Path, strike: Callable[[int], None] = lambda _: None, prepare: Callable[[], None] = lambda: None
) -> int:
    """A run in a forked process, which starts in milliseconds because torch is loaded; its exit status (negative: signal)."""
    torch.set_num_threads(1)  # so that the fork inherits no thread pool; also makes sums reproducible
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process that may have threads: none of ours run
        child = os.fork()
    if child == 0:
        code = 1
        try:
            prepare()
            run(corpus, out)
            code = 0
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
        finally:
            os._exit(code)
    strike(child)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def whole(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Folder of an uninterrupted run, and the seconds it took."""
    out = tmp_path_factory.mktemp("whole") / "out"
    start = time.monotonic()
    assert in_child(corpus, out) == 0
    return out, time.monotonic() - start


def contents(out: Path) -> dict[str, bytes]:
    """Everything answers and bad rows are in, byte by byte."""
    files = [*out.glob("part-*"), *(out / "_bad").iterdir()]
    assert not list(out.rglob("*.tmp"))
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def identities(out: Path) -> Counter[tuple[str, int]]:
    """File and row of every answer and every bad row."""
    lines = [line for data in contents(out).values() for line in data.splitlines()]
    return Counter((row["file"], row["row"]) for row in map(json.loads, lines))


def test_an_uninterrupted_run_answers_every_row_once(corpus: Corpus, whole: tuple[Path, float]) -> None:
    model, source, part_rows = corpus
    wanted = [
        (file.name, place, json.loads(line))
        for file in sorted(source.iterdir())
        for place, line in enumerate(file.read_text().splitlines(), 1)
    ]
    assert identities(whole[0]) == Counter((name, place) for name, place, _ in wanted)
    texts = {row["text"] for _, _, row in wanted if row["text"] is not None}
    answers = dict(zip(texts, Classifier.from_pretrained(model)(list(texts)), strict=True))
    by_place = {(name, place): row for name, place, row in wanted}
    for file in whole[0].glob("part-*"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert 0 < len(rows) <= part_rows
        for row in rows:
            given = by_place[row["file"], row["row"]]
            assert row["id"] == given["id"]
            assert row["score"] == pytest.approx(answers[given["text"]].score, abs=1e-5)  # float32, other batch mates
    for file in (whole[0] / "_bad").iterdir():
        assert all("null" in json.loads(line)["reason"] for line in file.read_text().splitlines())


def test_a_killed_run_goes_on_and_ends_the_same(
    corpus: Corpus,
    whole: tuple[Path, float],
    tmp_path: Path,
    count: Callable[[int, int], int],
    prove: Callable[[str, list[Record]], None],
) -> None:
    wanted, draw = count(8, 30), random.Random(0)
    kills, runs, found = 0, 0, Counter[str]()
    while kills < wanted:
        runs += 1
        out = tmp_path / f"out-{runs}"
        while True:
            delay = whole[1] * draw.random() * 0.8

            def strike(child: int, delay: float = delay) -> None:
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)

            before = _finished(out)
            status = in_child(corpus, out, strike) if kills < wanted else in_child(corpus, out)
            assert status in (0, -signal.SIGKILL)
            if status == 0:
                break
            kills += 1
            found["kills that left finished parts"] += _finished(out) > 0
            assert _finished(out) >= before
        assert contents(out) == contents(whole[0])
        assert identities(out) == identities(whole[0])
    assert found["kills that left finished parts"] >= count(1, 5)
    rows = sum(identities(whole[0]).values())
    record = Record(kind="prove", variant="kill -9 while scoring, local", value=float(kills), unit="kills", n=rows)
    record.config = {"runs": runs, "parts": _finished(whole[0]), **found}
    prove("scoring-kills", [record])


def _finished(out: Path) -> int:
    return len(list((out / WORK / DONE).glob("part-*.json")))


def die_at(boundary: int) -> None:
    """In the child: kill -9 itself at one file boundary, before or after a file gets its name."""
    left = boundary
    replace = Path.replace

    def counted(self: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        moved = replace(self, target)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    Path.replace = counted  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("boundary", range(1, 9))
def test_a_run_cut_at_a_file_boundary_ends_the_same(
    boundary: int, corpus: Corpus, whole: tuple[Path, float], tmp_path: Path
) -> None:
    """The plan, then of each part bad rows, answers and note: each boundary of the first of them."""
    assert in_child(corpus, tmp_path / "out", prepare=lambda: die_at(boundary)) == -signal.SIGKILL
    assert in_child(corpus, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(whole[0])


def test_a_part_that_is_taken_for_finished_too_soon_would_be_noticed(
    corpus: Corpus, whole: tuple[Path, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: files written under their names from the start, and whatever is there taken for finished."""
    out = tmp_path / "out"

    def in_place(path: Path, write: Callable[[Any], object]) -> int:
        with path.open("wb") as stream:
            write(stream)
            if path.name.startswith("part-000003.jsonl") and path.parent == out:
                stream.truncate(stream.tell() // 2)
                stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return stream.tell()

    def plant() -> None:
        writing.write_whole = in_place
        Folder.begin.__globals__["write_whole"] = in_place

    assert in_child(corpus, out, prepare=plant) == -signal.SIGKILL
    real = Folder.finished

    def hasty(self: Folder, manifest: Any) -> Any:
        some = next(iter(real(self, manifest).values()))
        there = [part for part in manifest.parts if self.file(part, "jsonl").exists()]
        return {part.number: some.model_copy(update={"part": part.number}) for part in there}

    monkeypatch.setattr(Folder, "finished", hasty)
    assert in_child(corpus, out) == 0
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        assert identities(out) == identities(whole[0])


def test_a_full_disk_leaves_finished_parts_and_the_run_goes_on(
    corpus: Corpus, whole: tuple[Path, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced, fsync = tmp_path / "out", 0, os.fsync

    def full(descriptor: int) -> None:
        nonlocal synced
        synced += 1
        if synced > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(AdaplerError, match=r"No space left on device\); make room and run the same command again"):
            run(corpus, out)
    left = _finished(out)
    assert 0 < left < _finished(whole[0])
    summary = run(corpus, out)
    assert summary.parts_before == left and summary.parts == _finished(whole[0])
    assert contents(out) == contents(whole[0])


def test_a_file_that_is_spoilt_on_the_way_leaves_finished_parts(corpus: Corpus, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": tiny_texts(400)}), path, row_group_size=100)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle - 300 : middle + 300] = b"\xff" * 600
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"a.parquet rows \d+ to \d+"):
        run((corpus[0], path.parent, 100), tmp_path / "out")
    assert 1 <= _finished(tmp_path / "out") == len(list((tmp_path / "out").glob("part-*"))) < 4


def command(corpus: Corpus, source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "adapler", "predict", str(corpus[0]), str(source), "--out", f"{out}/", "--json", *options]


def adapler(corpus: Corpus, source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(corpus, source, out, *options), capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
    )


def test_the_command_goes_on_with_a_run_and_refuses_another(corpus: Corpus, whole: tuple[Path, float], tmp_path: Path) -> None:
    out, part_rows = tmp_path / "out", str(corpus[2])
    assert in_child(corpus, out, prepare=lambda: die_at(20)) == -signal.SIGKILL
    begun = _finished(out)
    done = adapler(corpus, corpus[1], out, "--part-rows", part_rows)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["parts_before"] == begun > 0
    assert summary["rows"] + summary["bad"] == sum(identities(whole[0]).values())
    assert f"{summary['bad']} bad rows" in done.stderr and "rows/s" in done.stderr
    assert identities(out) == identities(whole[0])
    refused = adapler(corpus, corpus[1], out, "--part-rows", part_rows, "--max-length", "16")
    assert refused.returncode == 2 and "--max-length unset, not 16" in refused.stderr
    assert json.loads((out / WORK / MANIFEST).read_text())["settings"]["max_length"] is None


@pytest.fixture
def ray_run(corpus: Corpus) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts a run on Ray; what it started must end with it."""
    pytest.importorskip("ray.data")
    started: list[subprocess.Popen[str]] = []

    def start(out: Path) -> subprocess.Popen[str]:
        options = ("--part-rows", str(corpus[2]), "--engine", "ray", "--workers", "2")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(
            subprocess.Popen(
                command(corpus, corpus[1], out, *options),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def _ended_or(process: subprocess.Popen[str], out: Path, parts: int) -> bool:
    return process.poll() is not None or _finished(out) >= parts


def _gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=0.1)[1]


def same_answers(out: Path, whole: Path) -> None:
    """To float32 rounding: actors have threads of their own."""
    assert identities(out) == identities(whole)
    for name, data in contents(whole).items():
        for mine, theirs in zip((out / name).read_bytes().splitlines(), data.splitlines(), strict=True):
            one, other = json.loads(mine), json.loads(theirs)
            assert one.keys() == other.keys() and one.get("id") == other.get("id")
            assert one.get("score", 0) == pytest.approx(other.get("score", 0), abs=1e-5)


def test_ray_finishes_what_was_begun_here_though_a_worker_dies(
    corpus: Corpus,
    whole: tuple[Path, float],
    ray_run: Callable[[Path], subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert in_child(corpus, out, prepare=lambda: die_at(14)) == -signal.SIGKILL
    begun = _finished(out)
    process = ray_run(out)
    family = psutil.Process(process.pid)

    def workers() -> list[psutil.Process]:
        return [each for each in family.children(recursive=True) if "MapWorker" in " ".join(each.cmdline()[:1])]

    until(lambda: process.poll() is not None or (_finished(out) > begun and workers()))
    others = family.children(recursive=True) if process.poll() is None else []
    if process.poll() is None:
        workers()[0].kill()
    stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    summary = json.loads(stdout)
    assert summary["parts_before"] == begun > 0 and summary["engine"] == "ray"
    same_answers(out, whole[0])
    until(lambda: _gone(others))


def test_a_killed_ray_run_goes_on_and_ends_the_same(
    corpus: Corpus,
    whole: tuple[Path, float],
    ray_run: Callable[[Path], subprocess.Popen[str]],
    tmp_path: Path,
    count: Callable[[int, int], int],
    prove: Callable[[str, list[Record]], None],
) -> None:
    wanted, draw = count(0, 5), random.Random(0)
    if not wanted:
        pytest.skip("Ray takes long to start: run with --prove")
    kills = runs = 0
    while kills < wanted:
        runs += 1
        out = tmp_path / f"out-{runs}"
        total = _finished(whole[0])
        while True:
            process = ray_run(out)
            family = psutil.Process(process.pid)
            least = _finished(out) + draw.randrange(1, max(2, total // 4))
            if kills < wanted:
                until(partial(_ended_or, process, out, least))
                others = family.children(recursive=True) if process.poll() is None else []
                time.sleep(draw.random() * 0.3)
                process.kill()
                kills += process.wait() == -signal.SIGKILL
                until(partial(_gone, others))
            _, stderr = process.communicate(timeout=SECONDS)
            assert process.returncode in (0, -signal.SIGKILL), stderr
            if process.returncode == 0:
                break
        same_answers(out, whole[0])
    rows = sum(identities(whole[0]).values())
    record = Record(kind="prove", variant="kill -9 while scoring, Ray", value=float(kills), unit="kills", n=rows)
    record.config = {"runs": runs, "workers": 2}
    prove("scoring-kills-ray", [record])
