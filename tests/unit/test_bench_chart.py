"""The page of a benchmark: every contender is on it, and names do nothing but show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapler.bench.chart import groups, write_chart
from adapler.records import Record
from tests.unit.test_report import HOSTILE, Page, check_inert


def timed(variant: str, runtime: str, value: float, point: str | None = None, flops: float | None = None) -> Record:
    return Record(
        kind="bench",
        task="reviews",
        method="adapler" if point not in (None, "full") else "full",
        variant=variant,
        backbone="tiny",
        runtime=runtime,
        point=point,
        split="test",
        n=32,
        value=value,
        unit="texts/s",
        spread=value / 10,
        repeats=3,
        batch="token budget" if point else "padded 32",
        threads=2,
        wall_speedup=value / 100,
        wall_vs="transformers, padded 32",
        flops_speedup_executed=flops,
        machine="a machine",
        versions={"torch": "2.13"},
        commit="0123abc",
        date="2026-11-16",
    )


@pytest.fixture
def records() -> list[Record]:
    share = Record(kind="bench", unit="share", value=0.62, variant="share", config={"ceiling_gflops": 335.0})
    return [
        timed("transformers, padded 32", "transformers", 100.0),
        timed("onnxruntime int8, sorted 32", "onnxruntime", 250.0),
        timed("torch, full", "torch", 190.0, "full", 1.0),
        timed("torch, 5.1x", "torch", 700.0, "5.1x", 4.7),
        timed("onnx-int8, 5.1x", "onnx-int8", 1141.0, "5.1x", 4.7),
        share,
    ]


def written(records: list[Record], folder: Path) -> Page:
    write_chart(records, folder / "made" / "bench.html")
    found = Page((folder / "made" / "bench.html").read_text(encoding="utf-8"))
    check_inert(found)
    return found


def test_every_contender_and_the_conditions_are_on_the_page(records: list[Record], tmp_path: Path) -> None:
    found = written(records, tmp_path)
    bars, savings = re.findall("<svg.*?</svg>", found.source, re.DOTALL)
    assert all(f">{record.variant}</text>" in bars for record in records[:-1])
    assert bars.count("<rect") == bars.count('class="whisker"') == 5
    assert all(f">{name}</text>" in bars for name in ("transformers", "ONNX Runtime", "adapler, torch", "adapler, onnx-int8"))
    assert savings.count("spot") == 2 + 2 and 'class="diagonal"' in savings  # two points, two keys; full length is not one
    for said in (
        "a machine",
        "2 threads",
        "torch 2.13",
        "2026-11-16",
        "0123abc",
        "3 interleaved repeats",
        "62%",
        "335 GFLOP/s",
    ):
        assert said in found.text, said


def test_charts_say_in_words_what_they_show(records: list[Record], tmp_path: Path) -> None:
    labels = [attrs["aria-label"] or "" for tag, attrs in written(records, tmp_path).elements if tag == "svg"]
    assert "onnxruntime int8, sorted 32 250" in labels[0] and "adapler, torch at 5.1x: 7.00x for 4.70x" in labels[1]


def test_hostile_names_are_shown_and_do_nothing(records: list[Record], tmp_path: Path) -> None:
    harmless = written(records, tmp_path)
    bad = [timed(name, name, 10.0, name if number % 2 else None, 2.0) for number, name in enumerate(HOSTILE)]
    for record in bad:
        record.task = record.machine = record.commit = HOSTILE[2]
        record.wall_vs = record.backbone = record.split = HOSTILE[4]
        record.versions = {HOSTILE[0]: HOSTILE[1]}
    found = written(bad, tmp_path)
    assert all(text in found.text for text in HOSTILE)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in harmless.elements}


def test_a_long_name_is_cut_and_told_whole(records: list[Record], tmp_path: Path) -> None:
    name = "a contender with a name " * 5
    found = written([timed(name, "torch", 5.0)], tmp_path)
    assert f"{name}: 5.0 texts/s" in found.text and "…" in found.text
    assert "No operating point was timed" in found.text


def test_groups_are_runtimes_in_the_order_of_the_records(records: list[Record]) -> None:
    found = groups(records[:-1])
    assert [(group.name, len(group.records)) for group in found] == [
        ("transformers", 1),
        ("ONNX Runtime", 1),
        ("adapler, torch", 2),
        ("adapler, onnx-int8", 1),
    ]
    assert len({group.hue for group in found}) == 4
