"""`adapler diff`: where removing tokens changes the answer, and which words would restore it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapler.cli.shared import note, open_folder
from adapler.errors import BadConfig

if TYPE_CHECKING:
    from adapler.evaluation.diff import Difference, Differences


def diff(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A reduced model's folder, or a hub id.")],
    data: Annotated[str, typer.Option(help="Named task, folder of splits, file (labels are not needed), or hub dataset id.")],
    split: Annotated[str, typer.Option(help="Split of a folder or task: dev or test.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the label.  [default: label, where a file has it]", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="List at most so many; all are counted.")] = 20,
    tries: Annotated[int, typer.Option(min=1, help="Runs of one text to spend on finding what restores it.")] = 256,
    point: Annotated[str | None, typer.Option(help="Operating point by name, as `adapler info` lists them.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="The fastest point that loses at most so many points.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The best point with at least so many times fewer FLOPs.")] = None,
    always_keep: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Never drop it. Repeatable; a pattern as /REGEX/.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a page; it fetches nothing.")] = None,
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List texts whose answer differs from the same model's at full length, and the words whose return restores it.

    \b
    adapler diff runs/sst2 --data sst2
    adapler diff runs/sst2 --data reviews.csv --text body --label stars --limit 50 --html diff.html
    """
    import json

    from adapler.config import build_config
    from adapler.data.keep import keeper, read_always_keep

    named = read_always_keep(always_keep or [])
    keeper(named)
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise BadConfig(f"{html} should end in .html, as the page it is")
    folder = open_folder(model)
    settings = build_config({"data": {"source": data, "text": text, "pair": pair, "label": label or "label"}}).data
    labelled = label is not None or not Path(data).is_file() or _has_column(data, settings.label)

    from adapler.classifier import Classifier
    from adapler.data.files import read_texts
    from adapler.data.load import read_split
    from adapler.evaluation.diff import differences
    from adapler.problems import SINGLE, problem_of

    classifier = Classifier.from_pretrained(
        folder, device=device, point=point, max_loss=max_loss, speedup=speedup, always_keep=named
    )
    if problem_of(classifier.runtime.problem_type, len(classifier.labels)) != SINGLE:
        raise BadConfig("answers are compared where every text has one label, and this model gives several or a quantity")
    if labelled:
        examples, _ = read_split(settings, split, classifier.labels)
        golds = [classifier.labels[number] for number in examples.numbers]
        found = differences(classifier, examples.texts, golds, limit=limit, tries=tries)
    else:
        found = differences(classifier, read_texts(data, text=text, pair=pair), limit=limit, tries=tries)
    if html is not None:
        _write_page(found, html)
    if as_json:
        typer.echo(json.dumps({"model": model, "data": data, "split": split, **found.to_dict()}))
        return
    _print_table(found)
    if html is not None:
        note(f"wrote {html}")


def _has_column(data: str, column: str) -> bool:
    from adapler.data.files import open_table

    with open_table(data) as table:
        return column in table.columns


def _print_table(found: Differences) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adapler.report.heatmap import plain

    console = Console()
    console.print(found.account)
    if not found.listed:
        return
    table = Table("row", "text", "gold", "full length", "reduced", "restored by")
    table.columns[1].ratio, table.columns[5].ratio, table.expand = 3, 2, True
    for each in found.listed:
        row = (_short(each), each.gold or "", _judged(each, each.full.label), _judged(each, each.reduced.label))
        table.add_row(Text(str(each.index), style="dim"), *(Text(plain(cell)) for cell in (*row, _words(each))))
    console.print(table)


def _write_page(found: Differences, path: Path) -> None:
    from adapler.report.explained import body, page_of
    from adapler.report.page import write_page

    bodies = [
        body(each.explanation, {token for unit in each.restored_by for token in unit.tokens}, _in_words(each))
        for each in found.listed
    ]
    try:
        write_page(page_of(bodies, "answers that removal changed", f"{found.account} {len(bodies)} are shown."), path)
    except OSError as error:
        raise BadConfig(f"cannot write {path} ({error.strerror}); choose another file") from error


def _in_words(each: Difference) -> str:
    gold = "" if each.gold is None else f"gold {each.gold} · "
    answers = f"full length {_judged(each, each.full.label)} · reduced {_judged(each, each.reduced.label)}"
    return f"{gold}{answers} · restored by the return of (outlined): {_words(each)}"


def _judged(each: Difference, answer: str) -> str:
    return answer if each.gold is None else f"{answer} {'✓' if answer == each.gold else '✗'}"


def _words(each: Difference) -> str:
    return " ".join(unit.text for unit in each.restored_by) or "nothing that was tried"


def _short(each: Difference, most: int = 80) -> str:
    text = each.explanation.text
    whole = " ".join((text if isinstance(text, str) else " / ".join(text)).split())
    return whole if len(whole) <= most else whole[: most - 1] + "…"
