"""Pictures of texts as HTML. Written out here and not by a template: a long text has thousands of pieces, and a page many
texts. Every piece of text is escaped, and kept apart from its neighbours' writing direction."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from markupsafe import Markup, escape

from adapler.report.heatmap import Gap, Picture, Piece, Word

Escape = Callable[[str], str]


def drawn(picture: Picture) -> Markup:
    """The layers of a text, one below the other; `picture.css.j2` is how they look."""
    safe = cache(lambda text: str(escape(text)))  # the same words in every layer
    rows = []
    for layer in picture.layers:
        head = f'<span class="head">layer {layer.number} <small>{layer.entered}/{picture.tokens}</small></span>'
        parts = layer.words if picture.grid else layer.parts
        rows.append(f'<div class="layer">{head} {" ".join([_part(part, safe) for part in parts])}</div>')
    kind, direction = ("table" if picture.grid else "flow"), ("rtl" if picture.rtl else "ltr")
    inside = "\n".join(rows)
    return Markup(f'<div class="layers {kind}" dir="{direction}">\n{inside}\n</div>')


def _part(part: Word | Gap, safe: Escape) -> str:
    if isinstance(part, Gap):
        return f'<span class="gap" aria-hidden="true" title="{part.tokens} gone before">{"·" * part.tokens}</span>'
    return f'<bdi dir="auto">{"".join([_piece(piece, safe) for piece in part.pieces])}</bdi>'


def _piece(piece: Piece, safe: Escape) -> str:
    text, marked = safe(piece.text), " mark" if piece.marked else ""
    if piece.fate == "gone":
        return f'<span class="gone{marked}" aria-hidden="true">{text}</span>'
    shade = "" if piece.level is None else f" c{piece.level}"
    share = "" if piece.shares is None else f' title="{piece.shares:.2f}"'
    if piece.fate == "left":
        return f'<s class="left{shade}{marked}"{share}>{text}</s>'
    return f'<span class="kept{shade}{marked}"{share}>{text}</span>'
