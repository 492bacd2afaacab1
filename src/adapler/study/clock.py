"""Wall clock of a study: every method's chosen model over the same test texts, in turns; and energy, estimated from time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from adapler.classifier import Classifier
from adapler.data.load import read_split
from adapler.data.text import Text
from adapler.errors import BadInput
from adapler.points import Operating
from adapler.records import Record, write_records
from adapler.study.paper import NAMES
from adapler.study.places import PLAN_FILE, cell_done, read_record, read_results, record_file
from adapler.study.plan import Cell, Plan, cells
from adapler.study.point import choose, opened
from adapler.study.tables import Row, Table
from adapler.timing import race
from adapler.training.snapshot import read_json

WATTS_A_CORE = 10.0
"""What a server's core draws under load, about: an assumption, which tables name."""
_SETTLE = 0.3


def kwh_a_million(texts_a_second: float, threads: int, watts: float = WATTS_A_CORE) -> float:
    """Energy of a million texts from the time they take; nothing is metered."""
    return watts * threads * 1e6 / texts_a_second / 3.6e6


def measure_clock(out: Path, say: Callable[[str], None], *, texts: int, seconds: float, watts: float = WATTS_A_CORE) -> None:
    """Time each task's finished methods, at the points their records are of, against the full-length model."""
    if not (out / PLAN_FILE).exists():
        raise BadInput(f"{out} holds no study; make one: adapler study run PLAN --out {out}")
    plan = Plan.model_validate(read_json(out / PLAN_FILE))
    every = [cell for cell in cells(plan) if cell.method != "words"]
    for task in dict.fromkeys(cell.task for cell in every):
        seed = plan.seeds[0]  # speeds do not differ between seeds by more than the clock errs
        methods: dict[str, list[Cell]] = {}
        for cell in every:
            if (cell.task, cell.seed) == (task, seed):
                methods.setdefault(cell.method, []).append(cell)
        done = {
            method: own
            for method, own in methods.items()
            if all(cell_done(out, cell) for cell in own) and record_file(out, task, method, seed).exists()
        }
        if "full" in done:
            say(f"{task}: {', '.join(NAMES[method] for method in done)} ...")
            write_records(out / "results" / f"clock-{task}-{seed}.json", _timed(plan, out, done, texts, seconds, watts))


def _timed(plan: Plan, out: Path, methods: dict[str, list[Cell]], count: int, seconds: float, watts: float) -> list[Record]:
    torch.set_flush_denormal(True)
    work: dict[str, Callable[[], object]] = {}
    asked: Sequence[Text] = ()
    for method, own in methods.items():
        choice = choose(plan, out, own)
        model = opened(out, choice.cell)
        if not asked:
            examples, _ = read_split(choice.cell.config.data, "test", model.backbone.labels, model.backbone.problem)
            asked = examples.texts[:count]
        classifier = Classifier(model.backbone, model.tokenizer, model.reducer, max_length=model.max_length)
        classifier.operating = Operating(choice.scale)
        work[method] = partial(classifier, list(asked))
    timings, threads = race(work, repeats=1000, seconds=seconds, settle=_SETTLE), torch.get_num_threads()
    records = []
    for method, own in methods.items():
        timing, told = timings[method], read_record(out, own[0].task, method, own[0].seed)
        rate = timing.rate(len(asked))
        records.append(
            Record(
                kind="clock",
                task=own[0].task,
                method=method,
                backbone=told["backbone"],
                point=told.get("point"),
                seed=own[0].seed,
                split="test",
                n=len(asked),
                score=told["score"],
                loss_points=told["loss_points"],
                flops_speedup=told["flops_speedup"],
                flops_speedup_executed=told["flops_speedup_executed"],
                wall_speedup=timings["full"].median / timing.median,
                wall_vs="full",
                value=rate,
                unit="texts/s",
                spread=len(asked) / min(timing.seconds) - len(asked) / max(timing.seconds),
                repeats=len(timing.seconds),
                batch="token budget",
                threads=threads,
                config={"watts_a_core": watts, "kwh_a_million_estimated": kwh_a_million(rate, threads, watts)},
            )
        )
    return records


def read_clock(out: Path) -> list[Row]:
    """Clock records of a study."""
    return read_results(out, "clock")


def clock_table(records: Sequence[Row]) -> Table:
    """Texts a second and energy, a row a task and method."""
    rows = [
        [
            row["task"],
            NAMES[row["method"]],
            f"{100 * row['score']:.1f}",
            f"{row['value']:.0f}",
            f"{row['wall_speedup']:.2f}x",
            f"{row['flops_speedup_executed']:.2f}x",
            f"{row['config']['kwh_a_million_estimated']:.3f}",
        ]
        for task in dict.fromkeys(row["task"] for row in records)
        for method in NAMES
        for row in records
        if (row["task"], row["method"]) == (task, method)
    ]
    first = records[0]
    watts, threads = first["config"]["watts_a_core"], first["threads"]
    return Table(
        f"Texts a second in batches of a token budget, tokenising included, medians of turns; {threads} threads. Energy of a "
        f"million texts is an estimate from time alone, at {watts:g} W a core; nothing was metered.",
        ["task", "method", "score", "texts/s", "wall clock", "FLOPs", "kWh a million, estimated"],
        rows,
        words=2,
    )
