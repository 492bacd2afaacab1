"""Explanations as HTML: a fragment for notebooks, a page that fetches nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Template
from markupsafe import Markup

from adapler.report.markup import drawn
from adapler.report.page import PICTURE_STYLE, template

if TYPE_CHECKING:
    from adapler.explain import Explanation


def fragment(explanation: Explanation) -> str:
    """One explanation with its own style, to stand inside any page."""
    return _template("fragment.html.j2").render(**PICTURE_STYLE, body=body(explanation))


def page(explanations: Sequence[Explanation]) -> str:
    """A whole page."""
    return page_of(map(body, explanations), "what the model read")


def page_of(bodies: Iterable[Markup], title: str, summary: str = "") -> str:
    """A page of explanations made already, below a line that sums them up."""
    return _template("explained.html.j2").render(**PICTURE_STYLE, title=title, summary=summary, bodies=bodies)


def body(explanation: Explanation, marked: Collection[int] = (), words: str = "") -> Markup:
    """One explanation without its style; `words` stand above the picture."""
    prediction = explanation.prediction
    picture = explanation.picture(marked)
    others = sorted(prediction.scores.items(), key=lambda item: -item[1])
    made = _template("explanation.html.j2").render(
        prediction=prediction,
        others=[(label, score) for label, score in others if label != prediction.label][:4],
        speedup=prediction.flops_full / prediction.flops,
        notes=explanation.notes,
        words=words,
        drawing=drawn(picture),
        direction="rtl" if picture.rtl else "ltr",
        rationale=[word.text for word in explanation.rationale()],
        all_words=len(explanation.rationale(0)),
    )
    return Markup(made)


@cache
def _template(name: str) -> Template:
    return template("report", name)  # a page of many texts asks for it many times
