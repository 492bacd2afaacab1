"""`adapler explain`: which tokens a model kept, layer by layer, and what each gave. Torch comes last, after every check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapler.cli.predict import Format
from adapler.cli.shared import note, open_folder, open_output
from adapler.errors import BadConfig

if TYPE_CHECKING:
    from adapler.data.text import Text
    from adapler.explain import Explanation


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A reduced model's folder, or a hub id.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text.")] = None,
    pair: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Second text of a pair; with --file, the column of second texts.")
    ] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Texts of a data file (- for standard input).")] = None,
    source_format: Annotated[Format, typer.Option("--format", help="Of FILE; auto goes by the name's ending.")] = Format.auto,
    column: Annotated[
        str | None, typer.Option("--text", metavar="COL", help="Text column of FILE.  [default: text, or the only one]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Explain at most so many texts of FILE.")] = 100,
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a page; it fetches nothing.")] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write an image (.png, .svg or .pdf); of several texts OUT-1, OUT-2 ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON on standard output, a line a text.")] = False,
    point: Annotated[str | None, typer.Option(help="Operating point by name, as `adapler info` lists them.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="The fastest point that loses at most so many points.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The best point with at least so many times fewer FLOPs.")] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="The best point that takes at most so long for a text on this machine (doctor).")
    ] = None,
    escalate: Annotated[float | None, typer.Option(help="Answer again, carefully, where less sure than this.")] = None,
    max_length: Annotated[int | None, typer.Option(min=3, help="Tokens to read of a text.  [default: the model's]")] = None,
    always_keep: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Never drop it. Repeatable; a pattern as /REGEX/.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=0, help="Read longer texts in windows that share so many tokens.  [default: cut]")
    ] = None,
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing for people.")] = False,
) -> None:
    """Show which tokens mattered: each token's contribution in front of every layer, and where it left.

    \b
    adapler explain ./model "a brilliant film, if a little long"
    adapler explain ./model "a premise" --pair "a hypothesis" --html why.html
    adapler explain ./model --file reviews.csv --text body --limit 20 --html reviews.html
    """
    from adapler.data.keep import keeper, read_always_keep

    if (text is None) == (file is None):
        raise BadConfig("explain takes either one TEXT or --file FILE")
    if text is not None and column is not None:
        raise BadConfig("--text names a column of --file; without a file leave it out")
    named = read_always_keep(always_keep or [])
    keeper(named)  # refuses what names nothing, before anything is opened
    for out, endings in ((html, (".html", ".htm")), (png, (".png", ".svg", ".pdf"))):
        if out is not None and out.suffix.lower() not in endings:
            raise BadConfig(f"{out} should end in {' or '.join(endings)}, by which its kind is known")
    folder = open_folder(model)
    texts, more = _texts(text, pair) if file is None else _file_texts(file, source_format, column, pair, limit)

    from adapler.classifier import Classifier

    classifier = Classifier.from_pretrained(
        folder,
        max_length=max_length,
        device=device,
        point=point,
        max_loss=max_loss,
        speedup=speedup,
        max_latency_ms=max_latency_ms,
        escalate=escalate,
        always_keep=named,
        stride=stride,
    )
    explained = classifier.explain(texts)
    _write_files(explained, html, png)
    if as_json:
        _print_json(explained)
    elif html is None and png is None:
        for explanation in explained:
            explanation.show()
    if not quiet:
        for out in (html, png):
            if out is not None:
                note(f"wrote {out}")
        if more:
            note(f"the first {limit} texts of {file}; --limit takes more")


def _texts(text: str | None, pair: str | None) -> tuple[list[Text], bool]:
    assert text is not None
    return [text if pair is None else (text, pair)], False


def _file_texts(file: str, source_format: Format, column: str | None, pair: str | None, limit: int) -> tuple[list[Text], bool]:
    """The first texts of a file, and whether there are more."""
    from itertools import islice

    from adapler.data.files import read_texts

    found = list(islice(read_texts(file, format=source_format, text=column, pair=pair), limit + 1))
    return found[:limit], len(found) > limit


def _write_files(explained: list[Explanation], html: Path | None, png: Path | None) -> None:
    from adapler.explain import save

    try:
        if html is not None:
            save(explained, html)
        if png is not None:
            for number, explanation in enumerate(explained, start=1):
                explanation.save(png if len(explained) == 1 else png.with_stem(f"{png.stem}-{number}"))
    except OSError as error:
        raise BadConfig(f"cannot write {error.filename or html or png} ({error.strerror}); choose another file") from error


def _print_json(explained: list[Explanation]) -> None:
    import json

    with open_output(None) as output:
        for explanation in explained:
            output.write(json.dumps(explanation.to_dict(), ensure_ascii=False) + "\n")
