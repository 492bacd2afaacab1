"""The parts of the cost curves that decide what is measured: exact lengths, marks of a stream, memory, merged files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapler.data.text import Text, TextEncoder
from adapler.errors import BadInput
from adapler.records import Record, write_records
from adapler.timing import Timing
from adapler.training.progress import Silent
from benchmarks.cost_curves import (
    Part,
    growth_percent,
    growth_records,
    length_records,
    marks,
    merged,
    stored,
    stream_marks,
    stream_records,
    texts_of_length,
)
from benchmarks.memory_use import peak_mib, resident_mib
from tests.tiny import tiny_classifier, tiny_texts, tiny_tokenizer


def record(part: Part, variant: str, commit: str | None = None) -> Record:
    return Record(kind="curve", variant=variant, commit=commit, config={"part": part})


@pytest.mark.parametrize("tokens", [8, 16, 128, 512])
def test_texts_have_exactly_the_length_asked_for(tokens: int) -> None:
    encoder = TextEncoder(tiny_tokenizer(), 512)
    pairs: list[Text] = [("unwatchable mess , not", "funny at all"), *tiny_texts(30)]  # one word of several tokens
    made = texts_of_length(pairs, encoder, tokens, 20)
    assert [len(text.ids) for text in encoder(made)] == [tokens] * 20
    assert not any(text.truncated for text in encoder(made))
    assert len(set(made)) > 10


def test_words_keep_their_order() -> None:
    made = texts_of_length(["one two bad film", "good"], TextEncoder(tiny_tokenizer(), 64), 8, 2)
    assert made == ["one two bad film good one", "two bad film good one two"]


def test_texts_without_short_words_are_refused() -> None:
    with pytest.raises(BadInput, match="single token"):
        texts_of_length(["zzzzqqqq xxxxjjjj"], TextEncoder(tiny_tokenizer(), 64), 16, 1)


def test_marks_end_at_the_last_text() -> None:
    assert marks(1) == [1]
    assert marks(250) == [1, 10, 100, 250]
    assert marks(300_000) == [1, 10, 100, 1_000, 10_000, 50_000, 100_000, 200_000, 300_000]
    assert marks(250_000)[-2:] == [200_000, 250_000]


def test_memory_is_the_most_since_the_mark_before() -> None:
    # Looked at when it starts and at 1000, 2000, 2500, 3000 and 3500 answers.
    seen: Iterator[float] = iter([5.0, 30.0, 20.0, 10.0, 12.0, 11.0])
    advanced: list[int] = []
    found = stream_marks(iter(range(3500)), [2500, 3500], advanced.append, lambda: next(seen))
    assert [(count, memory) for count, _, memory in found] == [(2500, 30.0), (3500, 12.0)]
    assert found[0][1] <= found[1][1] and advanced == [1000, 1000, 1000]


def test_growth_counts_from_the_settled_mark() -> None:
    seen = [(1, 0.0, 90.0), (50, 1.0, 100.0), (100, 2.0, 104.0), (200, 3.0, 102.0)]
    assert growth_percent(seen, settled=50) == pytest.approx(4.0)
    assert growth_percent(seen[:2], settled=50) is None and growth_percent(seen[2:], settled=50) is None


def test_resident_memory_is_told_by_the_system() -> None:
    assert 10 < resident_mib() < 1e6
    assert 100 < peak_mib(lambda: np.ones(2**24)) < 1000  # 128 MiB, gone again when it is asked


def test_a_part_measured_anew_leaves_the_other_alone(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    assert stored(file) == []
    write_records(file, [record(Part.lengths, "old"), record(Part.stream, "kept", "abc")])
    found = merged(stored(file), [record(Part.lengths, "new"), record(Part.lengths, "newer")])
    assert [one.variant for one in found] == ["new", "newer", "kept"]
    assert found[-1].commit == "abc"
    write_records(file, found)
    assert [row["variant"] for row in json.loads(file.read_text())] == ["new", "newer", "kept"]
    assert stored(file)[0].commit is None  # measured outside a checkout, and still so
    assert [one.variant for one in merged(stored(file), [record(Part.stream, "again")])] == ["new", "newer", "again"]


def test_the_ratio_is_of_time_a_token() -> None:
    timings = {("torch", "full", 128): Timing((1.0, 2.0, 3.0)), ("torch", "full", 512): Timing((2.0, 4.0, 6.0))}
    (found,) = growth_records(Record(kind="curve"), timings, {128: 8, 512: 2})
    assert found.value == pytest.approx(2.0) and found.unit == "ratio" and found.repeats == 3
    assert growth_records(Record(kind="curve"), {("torch", "full", 128): timings["torch", "full", 128]}, {128: 8}) == []


def test_lengths_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cost_curves.LENGTHS", (8, 32))
    monkeypatch.setattr("benchmarks.cost_curves.TOKENS", 64)
    tiny_classifier(max_length=16).save_pretrained(tmp_path / "model")  # read further than it was trained to
    found = length_records(Record(kind="curve"), [str(tmp_path / "model")], tiny_texts(20), 1.0, Silent(), 1.0)
    assert [one.variant for one in found] == [
        f"torch, {point}, {length} tokens" for length in (8, 32) for point in ("full", "trained")
    ]
    assert all(one.value is not None and one.value > 0 and one.unit == "us/token" for one in found)
    assert all(one.config is not None and one.config["peak_mib"] >= 0 for one in found)


def test_a_stream_of_a_tiny_model() -> None:
    found = stream_records(Record(kind="curve"), tiny_classifier(), tiny_texts(7), 120, Silent(), 1.0)
    assert [one.n for one in found] == [1, 10, 100, 120]
    assert all(one.config is not None and one.config["peak_rss_mib"] > 10 for one in found)
    assert "memory_growth_percent" not in (found[-1].config or {})  # too short to say
