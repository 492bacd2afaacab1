"""Pictures of texts for terminals: shaded where there are colours, told apart by signs where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from adapler.report.heatmap import LEVELS, SHADES, Gap, Layer, Picture, Piece, Word, columns, level_names, plain

if TYPE_CHECKING:
    from adapler.explain import Explanation

_ON_SHADE = ("#10202e",) * 5 + ("#ffffff",) * 2


def explained(explanation: Explanation, console: Console) -> None:
    """The answer, the text in front of every layer, what was left of it."""
    from adapler.explain import headline

    console.print(Text(plain(headline(explanation)), style="bold"))
    for note in explanation.notes:
        console.print(Text(note, style="dim"))
    for line in drawn(explanation.picture(), coloured=console.color_system is not None, width=console.width):
        console.print(line)
    left = explanation.rationale()
    console.print(
        Text(f"left in the last layer, {len(left)} of {len(explanation.rationale(0))} words: ").append(
            plain(" ".join(word.text for word in left)) or "none", style="bold"
        )
    )


def drawn(picture: Picture, *, coloured: bool, width: int) -> list[Text]:
    """A line a layer (several for long texts), then what the signs mean."""
    lines = [_layer(layer, picture, coloured=coloured, width=width) for layer in picture.layers]
    if any(piece.level is not None for layer in picture.layers for word in layer.words for piece in word.pieces):
        lines.append(_legend(coloured))
    return lines


def _layer(layer: Layer, picture: Picture, *, coloured: bool, width: int) -> Text:
    grown = Text(f"{layer.number:>2} {layer.entered:>3}/{picture.tokens:<3} ", style="dim", overflow="fold")
    needed = len(grown) + sum(columns(piece.text) + 2 * (not coloured) for word in layer.words for piece in word.pieces)
    # In columns, what is gone keeps its place; a text that runs on is shorter without.
    in_columns = picture.grid and needed + len(layer.words) <= width
    for part in layer.words if in_columns else layer.parts:
        if isinstance(part, Gap):
            grown.append("·" * min(part.tokens, 3), style="dim")
        else:
            _append(grown, part, coloured=coloured, in_columns=in_columns)
        grown.append(" ", style="not dim")
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
        return "not dim"
    return f"not dim {_ON_SHADE[piece.level]} on {SHADES[piece.level]}"


def _legend(coloured: bool) -> Text:
    if not coloured:
        return Text("~word~ left in front of this layer; · gone before", style="dim")
    legend = Text("contribution in equal shares: ", style="dim")
    for level, name in zip(range(len(LEVELS) + 1), level_names(), strict=True):
        legend.append(f" {name} ", style=f"not dim {_ON_SHADE[level]} on {SHADES[level]}")
    return legend.append("  ").append("word", style="strike").append(" left in front of this layer; · gone before")
