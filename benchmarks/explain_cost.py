"""What an explanation costs beside the prediction it explains, and how fast many become a page.

    python -m benchmarks.explain_cost runs/ag_news --data PATH/TO/ag_news --runtime-folder runs/ag_news-onnx

Predicting and explaining the same texts take turns: calls, explanations as they come, and explanations of which everything
is read (contributions, words, rationale). A ratio is that of the two in the same repeat. Pages are made of texts of exactly
200 tokens, put together of the data's own words, explained before the clock starts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adapler.bench.contenders import BUDGET
from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.data.load import read_split
from adapler.data.text import Text, TextEncoder
from adapler.explain import Explanation
from adapler.records import Record, write_records
from adapler.report.explained import page
from adapler.timing import Timing, race
from benchmarks.cost_curves import texts_of_length

RESULTS = Path(__file__).parent / "results"
PREDICT, EXPLAIN, READ = "predict", "explain", "explain, everything read"
TOKENS = 200


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A reduced model's folder.")],
    data: Annotated[str, typer.Option(help="Folder of splits, or a labelled file.")],
    split: Annotated[str, typer.Option(help="Split to take texts from.")] = "test",
    count: Annotated[int, typer.Option(min=1, help="Texts to predict and explain.")] = 2000,
    pages: Annotated[int, typer.Option(min=1, help="Explanations on the page.")] = 1000,
    runtime_folder: Annotated[list[str] | None, typer.Option(help="The same model as exported; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to time each model; whole rounds only.")] = 240.0,
    out: Annotated[Path | None, typer.Option(help="Records.  [default: benchmarks/results/explain-cost-TASK.json]")] = None,
) -> None:
    """Measure, print, write benchmarks/results/explain-cost-TASK.json."""
    records = []
    for folder in [model, *(runtime_folder or [])]:
        classifier = Classifier.from_pretrained(folder, point="trained")
        examples, _ = read_split(build_config({"data": {"source": data}}).data, split, classifier.labels)
        shared = Record(
            kind="explain",
            task=Path(data).name.split(".")[0],
            split=split,
            method="adapler",
            runtime=classifier.runtime.name,
            point="trained",
            threads=classifier.runtime.threads,
        )
        records += cost_records(shared, classifier, examples.texts[:count], seconds)
        if folder == model:
            wide = Classifier.from_pretrained(folder, point="trained", max_length=min(classifier.runtime.longest, TOKENS))
            records.append(page_record(shared, wide, examples.texts, pages, seconds))
    write_records(out or RESULTS / f"explain-cost-{records[0].task}.json", records)
    for record in records:
        Console().print(f"{record.runtime}, {record.variant}: {record.value:.4g} {record.unit}", highlight=False)


def cost_records(shared: Record, classifier: Classifier, texts: Sequence[Text], seconds: float) -> list[Record]:
    """Texts a second of each, and what explaining takes of the time predicting takes."""
    given = list(texts)
    contenders: dict[str, Callable[[], object]] = {
        PREDICT: lambda: classifier(given),
        EXPLAIN: lambda: classifier.explain(given),
        READ: lambda: [read_whole(explanation) for explanation in classifier.explain(given)],
    }
    timings = race(contenders, seconds=seconds)
    return [_cost_record(shared, name, timing, timings[PREDICT], len(given)) for name, timing in timings.items()]


def _cost_record(shared: Record, name: str, timing: Timing, predicting: Timing, count: int) -> Record:
    ratios = [mine / theirs for mine, theirs in zip(timing.seconds, predicting.seconds, strict=True)]
    return replace(
        shared,
        variant=name,
        n=count,
        value=timing.rate(count),
        unit="texts/s",
        spread=timing.spread * timing.rate(count),
        repeats=len(timing.seconds),
        batch=BUDGET,
        config={"time_of_predicting": round(statistics.median(ratios), 4)},
    )


def read_whole(explanation: Explanation) -> int:
    """Ask for everything an explanation makes only when asked."""
    return len(explanation.contributions) + len(explanation.word_contributions) + len(explanation.rationale())


def page_record(shared: Record, classifier: Classifier, texts: Sequence[Text], pages: int, seconds: float) -> Record:
    """Seconds from explanations nobody has read yet to a page of all of them."""
    length = min(TOKENS, classifier.max_length)
    made = texts_of_length(texts, TextEncoder(classifier.tokenizer, length), length, pages)
    explained = classifier.explain(made)
    size = 0

    def draw() -> None:
        nonlocal size
        # As new ones: what was read before is kept.
        size = len(page([Explanation(each.text, each.prediction) for each in explained]))

    timing = race({"page": draw}, repeats=3, seconds=seconds)["page"]
    return replace(
        shared,
        variant=f"page of {pages} explanations of {length} tokens",
        n=pages,
        value=timing.median,
        unit="s",
        spread=timing.spread * timing.median,
        repeats=len(timing.seconds),
        config={"tokens": length, "megabytes": round(size / 1e6, 1)},
    )


if __name__ == "__main__":
    typer.run(main)
