"""`adapler doctor`: where does reduction pay on this machine?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adapler.cli.shared import note, open_folder, points_table

if TYPE_CHECKING:
    from adapler.doctor import Diagnosis
    from adapler.points import Dial


def doctor(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a reduced or exported model.")],
    texts: Annotated[str | None, typer.Option(help="Time the texts of this file instead of made-up ones.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COL", help="Text column.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="COL", help="Second texts.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Time a model's operating points on this machine, in batches and text by text, and remember it.

    From then on the model opens at a point that pays here, and `max_latency_ms` can be asked for. Keep the machine quiet.

    \b
    adapler doctor runs/sst2
    adapler doctor runs/sst2 --texts reviews.csv --seconds 10
    """
    import json
    from itertools import islice

    from adapler.classifier import Classifier
    from adapler.data.files import read_texts
    from adapler.points import opening

    sample = None if texts is None else list(islice(read_texts(texts, format="auto", text=text, pair=pair), count))
    classifier = Classifier.from_pretrained(open_folder(model))
    diagnosis = classifier.examine(sample, seconds=seconds)
    assert classifier.dial is not None  # else there was nothing to examine
    if as_json:
        named = {"trained": classifier.dial.trained, "choice": opening(classifier.dial, diagnosis.rates)}
        told = {name: None if point is None else point.name for name, point in named.items()}
        typer.echo(json.dumps({**diagnosis.model_dump(), **told}))
        return
    _print_table(diagnosis, classifier.dial)
    note_opening(classifier.dial, diagnosis)


def note_opening(dial: Dial, diagnosis: Diagnosis) -> None:
    """Say at which point the model opens here from now on."""
    from adapler.points import opening

    choice = opening(dial, diagnosis.rates)
    if choice is None:
        note("the model will open as trained: no point that scores as well is faster here")
    else:
        note(f"the model will open at {choice.name}: it scores no worse and is faster here; --point trained insists")


def _print_table(diagnosis: Diagnosis, dial: Dial) -> None:
    from rich.console import Console

    timed = [point for point in dial.named if point.name in diagnosis.points]
    console = Console()
    console.print(points_table(dial, timed, diagnosis))
    console.print(str(diagnosis))
