"""Tables of speed: every contender has its row, headlines are the right ones, and what is absent is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from adapler.study.tables import results_table
from benchmarks import measured
from benchmarks.measured import MISSING, Records
from benchmarks.speed_tables import bench, cost_curves, dial_scores, headline, trained_point
from benchmarks.tables import ROOT, TABLES, filled, pages

CONDITIONS = {"threads": 2, "machine": "a machine", "date": "2026-11-16", "versions": {"torch": "2.13", "onnxruntime": "1.31"}}


def row(variant: str, value: float, runtime: str, batch: str, point: str | None = None) -> dict[str, Any]:
    ours: dict[str, Any] = {} if point is None else {"point": point, "flops_speedup_executed": 1.0 if point == "full" else 4.0}
    shared = {"kind": "bench", "task": "news", "backbone": "tiny", "split": "test", "n": 512, "unit": "texts/s", "repeats": 5}
    method = "full" if point in (None, "full") else "adapler"
    timed = {"variant": variant, "value": value, "spread": 1.0, "runtime": runtime, "batch": batch, "wall_speedup": 3.0}
    return {**shared, **CONDITIONS, **timed, **ours, "method": method}


@pytest.fixture
def records() -> Records:
    return [
        row("transformers, padded 32", 90.0, "transformers", "padded 32"),
        row("transformers, sorted 32", 200.0, "transformers", "sorted 32"),
        row("onnxruntime int8, padded 32", 100.0, "onnxruntime", "padded 32"),
        row("onnxruntime int8, sorted 32", 250.0, "onnxruntime", "sorted 32"),
        row("torch, full", 190.0, "torch", "token budget", "full"),
        row("torch, full, batch 1", 90.0, "torch", "batch 1", "full"),
        row("torch, 3.5x", 500.0, "torch", "token budget", "3.5x"),
        row("torch, 5.1x", 700.0, "torch", "token budget", "5.1x"),
        row("torch, 5.1x, batch 1", 110.0, "torch", "batch 1", "5.1x"),
        row("onnx, 5.1x", 800.0, "onnx", "token budget", "5.1x"),
        {
            "kind": "bench",
            "task": "news",
            "backbone": "tiny",
            "variant": "share",
            "unit": "share",
            "value": 0.621,
            "config": {"ceiling_gflops": 335.4},
            **CONDITIONS,
        },
    ]


def test_nothing_measured_is_said() -> None:
    assert bench([]) == headline([]) == cost_curves([]) == dial_scores([]) == MISSING


def test_every_contender_has_its_row(records: Records) -> None:
    found = bench(records)
    assert "| torch, 5.1x | 700 | 1 | 3.00x | 4.00x | 0.75 |" in found
    assert "| torch, full | 190 | 1 | 3.00x | 1.00x |  |" in found  # full length is not held against itself
    assert all(f"| {record['variant']} |" in found for record in records[:-1])
    assert "62% of the machine's matrix products at the model's shapes (335 GFLOP/s)" in found
    assert (
        "median of 5 interleaved repeats, 2 threads; a machine; torch 2.13, onnxruntime 1.31; 2026-11-16, no commit." in found
    )


def test_headlines_are_against_the_sorted_baseline(records: Records) -> None:
    found = headline(records)
    assert "| texts/s | news, tiny |" in found
    assert "| ONNX Runtime int8, the best of its batchings | 250 (1.25x) |" in found
    assert "| adapler, as trained, torch | 700 (3.50x) |" in found and "3.5x |" not in found.replace("4.00x |", "")
    assert "| adapler, as trained, onnx | 800 (4.00x) |" in found and "onnx-int8" not in found
    assert trained_point(records) == "5.1x" and trained_point(records[:5]) is None


def test_tasks_stand_beside_each_other(records: Records) -> None:
    other = [record | {"task": "films"} for record in records if "onnx" not in record["variant"]]
    found = headline(records + other)
    assert "| texts/s | news, tiny | films, tiny |\n|---|---:|---:|" in found
    assert "| ONNX Runtime int8, the best of its batchings | 250 (1.25x) |  |" in found
    assert bench(records + other).count("| contender |") == 2
    deeper = [record | {"backbone": "deep"} for record in records]
    assert "| texts/s | news, tiny | news, deep |" in headline(records + deeper)  # one task, two models


def test_cost_curves_of_both_parts_or_of_one() -> None:
    shared = {"kind": "curve", "task": "news", "runtime": "torch", **CONDITIONS}
    lengths = [
        {**shared, "unit": "us/token", "point": point, "value": value, "repeats": 7}
        | {"config": {"part": "lengths", "tokens": n, "peak_mib": n}}
        for n, point, value in ((8, "full", 80.0), (8, "trained", 40.0), (128, "full", 100.0))
    ]
    ratio = {**shared, "unit": "ratio", "value": 1.5, "spread": 0.02, "config": {"part": "lengths"}}
    stream = [
        {**shared, "unit": "s", "n": 50_000, "value": 100.0, "config": {"peak_rss_mib": 900.4}},
        {**shared, "unit": "s", "n": 100_000, "value": 200.0, "config": {"peak_rss_mib": 904, "memory_growth_percent": 0.44}},
    ]
    found = cost_curves([*lengths, ratio, *stream])
    assert "| tokens of a text | torch, full | torch, trained |" in found
    assert "| 8 | 80.0 µs | 40.0 µs |\n| 128 | 100.0 µs |  |" in found
    assert "| 8 | 8 | 8 |\n| 128 | 128 |  |" in found and "Memory in MiB" in found
    assert "takes 1.50x the time" in found and "memory grew by 0.4%" in found
    assert "| 100,000 | 200.0 | 500 | 904 |" in found
    assert "texts of the stream" not in cost_curves(lengths) and "tokens of a text" not in cost_curves(stream)


def test_points_of_a_dial_are_told_with_what_they_lose() -> None:
    measured_on = {"task": "news", "metric": "accuracy", "n": 100, "flops_speedup_executed": 4.5, **CONDITIONS}
    found = dial_scores([{**measured_on, "point": "5x", "score": 0.9, "loss_points": 1.25, "flops_speedup": 5.0}])
    assert "| 5x | 90.0 | +1.2 | 5.00x | 4.50x |" in found and "accuracy on 100 texts of news (test)" in found


def test_a_point_outside_the_margin_is_marked() -> None:
    shared = {"task": "sst2", "seed": 0, "score": 0.9, "score_full": 0.9, "loss_points": 0.0, "flops_speedup": 1.0}
    full = shared | {"method": "full", "config": {"within_margin": True}}
    words = shared | {"method": "words"}
    power = shared | {"method": "power", "config": {"within_margin": False}}
    scores = {row[1]: row[3] for row in results_table([full, words, power]).rows}
    assert scores == {"bag of words": "90.0", "full length": "90.0", "PoWER-BERT": "90.0 †"}
    assert "within the margin" in results_table([full, power]).caption
    assert "within the margin" not in results_table([full, words]).caption


def test_a_changed_tree_is_marked() -> None:
    assert measured.commit({"commit": "0123456789abcdef+changed"}) == "0123456789+changed"


def test_pages_hold_known_tables_only() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        filled(page.read_text(encoding="utf-8"))  # leaves the program at an unknown name
    assert {"speed", "bench", "cost-curves"} <= set(TABLES)


def test_every_table_stands_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert [name for name in TABLES if f"<!-- table:{name} -->" not in text] == []
