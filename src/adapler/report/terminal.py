"""Pictures of texts for terminals: shaded where there are colours, told apart by signs where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from adapler.report.heatmap import LEVELS, SHADES, Gap, Layer, Picture, Piece, Word, columns, level_names, plain

if TYPE_CHECKING:
    from adapler.explain import Explanation

_HEAD = 12  # letters in front of a layer
_ON_SHADE = ("#10202e",) * 5 + ("#ffffff",) * 2


def explained(explanation: Explanation, console: Console) -> None:
    """The answer, the text in front of every layer, what was left of it."""
    from adapler.explain import headline

    console.print(Text(plain(headline(explanation)), style="bold"))
    for note in explanation.notes:
        console.print(Text(note, style="dim"))
    console.print(drawn(explanation.picture(), coloured=console.color_system is not None, width=console.width))
    left = explanation.rationale()
    console.print(
        Text(f"left in the last layer, {len(left)} of {len(explanation.rationale(0))} words: ").append(
            plain(" ".join(word.text for word in left)) or "none", style="bold"
        )
    )


def drawn(picture: Picture, *, coloured: bool, width: int) -> Table:
    """A row a layer, then what the signs mean."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    needed = sum(columns(piece.text) + 2 * (not coloured) for word in picture.layers[0].words for piece in word.pieces)
    # In columns, what is gone keeps its place; a text that runs on is shorter without.
    in_columns = picture.grid and _HEAD + needed + len(picture.layers[0].words) <= width
    for layer in picture.layers:
        table.add_row(
            f"{layer.number:>2} {layer.entered:>3}/{picture.tokens}", _layer(layer, coloured=coloured, in_columns=in_columns)
        )
    table.add_row("", _legend(coloured))
    return table


def _layer(layer: Layer, *, coloured: bool, in_columns: bool) -> Text:
    grown = Text()
    for part in layer.words if in_columns else layer.parts:
        if isinstance(part, Gap):
            grown.append("·" * min(part.tokens, 3), style="dim")
        else:
            _append(grown, part, coloured=coloured, in_columns=in_columns)
        grown.append(" ")
    return grown


def _append(grown: Text, word: Word, *, coloured: bool, in_columns: bool) -> None:
    for piece in word.pieces:
        text = plain(piece.text)
        if piece.fate == "gone":
            grown.append("·" * (columns(text) if in_columns else 1) + "  " * (in_columns and not coloured), style="dim")
        elif coloured:
            grown.append(text, style=_style(piece))
        else:
            grown.append(f"~{text}~" if piece.fate == "left" else text + "  " * in_columns)


def _style(piece: Piece) -> str:
    if piece.fate == "left":
        return "strike dim"
    if piece.level is None:
        return ""
    return f"{_ON_SHADE[piece.level]} on {SHADES[piece.level]}"


def _legend(coloured: bool) -> Text:
    if not coloured:
        return Text("~word~ left in front of this layer; · gone before", style="dim")
    legend = Text("contribution in equal shares: ", style="dim")
    for level, name in zip(range(len(LEVELS) + 1), level_names(), strict=True):
        legend.append(f" {name} ", style=f"{_ON_SHADE[level]} on {SHADES[level]}")
    return legend.append("  ").append("word", style="strike").append(" left in front of this layer; · gone before")
