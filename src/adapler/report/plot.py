"""Pictures of texts as images, through matplotlib. A long text is cut into strips, each with all its layers."""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from adapler.data.words import runs_right_to_left
from adapler.errors import BadInput, MissingExtra
from adapler.report.heatmap import SHADES, Layer, Picture, Piece, columns, level_names, plain

ENDINGS = (".png", ".svg", ".pdf")
FONTS = ("DejaVu Sans Mono", "DejaVu Sans", "Noto Sans Mono CJK SC", "Noto Sans CJK SC", "Noto Sans", "Noto Sans Symbols2")
"""Asked in this order for each character, as far as they are installed."""
_STRIP = 104  # letters of a strip
_HEAD = 13  # letters in front of it
_NARROWEST = 70  # the legend
_SIZE = 8.0  # points
_LETTER = 0.602 * _SIZE / 72  # inches: a letter of the first font
_ROW = 0.185
_ON_SHADE = ("#10202e",) * 5 + ("#ffffff",) * 2
_JOINER = "\u200d"
_ENDS_A_STROKE = "اأإآٱءدذڈرزژڑوؤةىے"
"""Letters of the Arabic script after which a word's stroke begins anew."""
_INK, _DIM, _LEFT, _GONE, _MARK = "#17212b", "#56636f", "#66717b", "#c3cad1", "#c2410c"


@dataclass(frozen=True)
class Cell:
    """A piece and where it stands in its strip, in letters."""

    place: int
    piece: Piece
    text: str
    """With joiners where a letter goes on with that of the piece beside it."""


def check_figure(path: Path) -> None:
    """Refuse a file that no figure can be written to."""
    if path.suffix not in ENDINGS:
        raise BadInput(f"{path}: a figure is written as .png, .svg or .pdf")


def new_figure(width: float, height: float, *, layout: Literal["constrained"] | None = None) -> Any:
    """An empty figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("drawing needs matplotlib, which is not installed; pip install 'adapler[plot]'") from error
    return Figure(figsize=(width, height), layout=layout)


def save_figure(figure: Any, path: Path) -> None:
    """Write it as the file's ending says; twice the same figure gives twice the same bytes."""
    import matplotlib

    check_figure(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    with matplotlib.rc_context({"svg.hashsalt": "adapler"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as a box
        figure.savefig(path, dpi=160, metadata=dated)


def draw_picture(picture: Picture, path: Path, *, title: str = "", notes: Sequence[str] = ()) -> None:
    """The picture on white, below its title and what is to be known of it."""
    check_figure(path)
    strips = _strips(picture)
    lines = [line for each in notes for line in textwrap.wrap(each, _STRIP)]
    rows = len(lines) + len(strips) * (len(picture.layers) + 1) + 2
    wide = max(_NARROWEST, columns(title) + 2, *map(len, lines), *(_HEAD + _width(strip) for strip in strips))
    figure = new_figure(wide * _LETTER + 0.2, rows * _ROW + 0.3)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1.5, wide + 1.5)
    axes.set_ylim(rows + 0.6, -1)
    axes.axis("off")
    family = _fonts()
    _write(axes, 0, 0, plain(title), _INK, family, weight="bold")
    for number, line in enumerate(lines):
        _write(axes, 0, number + 1, line, _DIM, family)
    row = len(lines) + 1.5
    for strip in strips:
        for layer, words in zip(picture.layers, strip, strict=True):
            _write(axes, 0, row, f"{layer.number:>2} {layer.entered:>4}/{picture.tokens}", _DIM, family)
            for cell in _cells(words, picture.rtl, wide):
                _draw(axes, cell, row, family)
            row += 1
        row += 1
    _legend(axes, row - 0.4, family)
    save_figure(figure, path)


def _strips(picture: Picture) -> list[list[list[list[Piece]]]]:
    """Per strip and layer, its words as pieces. All layers break at the same words."""
    if not picture.layers:
        return []
    cuts, used = [0], 0
    for number, word in enumerate(picture.layers[0].words):
        needed = _columns(word.pieces) + 1
        if used and used + needed > _STRIP:
            cuts.append(number)
            used = 0
        used += needed
    ends = [*cuts[1:], len(picture.layers[0].words)]
    return [[_words(layer, start, end) for layer in picture.layers] for start, end in zip(cuts, ends, strict=True)]


def _words(layer: Layer, start: int, end: int) -> list[list[Piece]]:
    return [word.pieces for word in layer.words[start:end]]


def _columns(pieces: Sequence[Piece]) -> int:
    return sum(columns(plain(piece.text)) for piece in pieces)


def _width(strip: Sequence[Sequence[Sequence[Piece]]]) -> int:
    return sum(_columns(word) + 1 for word in strip[0])


def _cells(words: Sequence[Sequence[Piece]], rtl: bool, wide: int) -> list[Cell]:
    """From the left, or from the right edge where the text runs so. A word that runs the other way does so within itself."""
    cells, place = [], _HEAD
    for word in words:
        turned = runs_right_to_left("".join(piece.text for piece in word)) != rtl
        texts = _joined([plain(piece.text) for piece in word])
        spelt = list(zip(word, texts, strict=True))
        for piece, text in reversed(spelt) if turned else spelt:
            width = columns(text)
            cells.append(Cell(wide - (place - _HEAD) - width if rtl else place, piece, text))
            place += width
        place += 1
    return cells


def _joined(texts: Sequence[str]) -> list[str]:
    """Pieces that are drawn apart, with joiners at seams where their letters are written together."""
    joined = list(texts)
    for number, (one, other) in enumerate(pairwise(texts)):
        if one and other and _joins(one[-1]) and unicodedata.bidirectional(other[0]) in ("AL", "NSM"):
            joined[number] += _JOINER
            joined[number + 1] = _JOINER + joined[number + 1]
    return joined


def _joins(letter: str) -> bool:
    return unicodedata.bidirectional(letter) == "AL" and letter not in _ENDS_A_STROKE


def _draw(axes: Any, cell: Cell, row: float, family: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    piece, width = cell.piece, columns(cell.text)
    colour = {"left": _LEFT, "gone": _GONE}.get(piece.fate, _INK)
    if piece.fate == "kept" and piece.level is not None:
        axes.add_patch(Rectangle((cell.place - 0.1, row - 0.45), width + 0.2, 0.9, color=SHADES[piece.level], linewidth=0))
        colour = _ON_SHADE[piece.level]
    if piece.marked:
        axes.add_patch(Rectangle((cell.place - 0.1, row - 0.45), width + 0.2, 0.9, fill=False, edgecolor=_MARK))
    _write(axes, cell.place + width / 2, row, cell.text, colour, family, centre=True)
    if piece.fate == "left":
        axes.plot([cell.place, cell.place + width], [row, row], color=_LEFT, linewidth=0.8)


def _legend(axes: Any, row: float, family: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    words = "contribution in equal shares"
    _write(axes, 0, row, words, _DIM, family)
    place = len(words) + 2.0
    for name, shade, ink in zip(level_names(), SHADES, _ON_SHADE, strict=True):
        axes.add_patch(Rectangle((place, row - 0.45), len(name) + 1.4, 0.9, color=shade, linewidth=0))
        _write(axes, place + len(name) / 2 + 0.7, row, name, ink, family, centre=True)
        place += len(name) + 1.4


def _write(
    axes: Any,
    x: float,
    y: float,
    text: str,
    colour: str,
    family: Sequence[str],
    *,
    centre: bool = False,
    weight: str = "normal",
) -> None:
    axes.text(
        x,
        y,
        text,
        color=colour,
        family=list(family),
        fontsize=_SIZE,
        weight=weight,
        ha="center" if centre else "left",
        va="center_baseline",
        parse_math=False,  # a dollar is a dollar
    )


def _fonts() -> list[str]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return [name for name in FONTS if name in installed] or ["monospace"]
