"""Texts without labels, for a trained model to answer: a user has more of them than of any other kind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adapler.config import DataSettings
from adapler.data.files import read_texts
from adapler.data.text import Text
from adapler.errors import BadInput

REST = "rest"
"""Instead of a file: the training texts that `train_limit` leaves over, without their labels."""


def unlabelled_texts(
    settings: DataSettings, rest: Iterable[Text], labelled: Iterable[Text], judging: Iterable[Text], random: np.random.Generator
) -> tuple[tuple[Text, ...], list[str]]:
    """The texts that were asked for, each once, and what to say about them. Those with a label are left out, and those that
    the model will be judged by: `rest` is what a limit left over, `judging` dev and test; `random` draws a limited number."""
    if settings.unlabelled is None:
        return (), []
    known, judged = set(labelled), set(judging)
    if settings.unlabelled == REST:
        found = [text for text in rest if text not in known]
        if not found:
            raise BadInput(f"unlabelled is {REST!r}, but train_limit leaves no texts over; lower it, or give a file of texts")
    else:
        found = list(read_texts(settings.unlabelled, text=settings.text, pair=settings.pair))
    new = tuple(dict.fromkeys(text for text in found if _readable(text) and text not in known and text not in judged))
    if not new:
        raise BadInput(f"{settings.unlabelled}: none of its {len(found)} texts is new; give texts beside those with labels")
    if isinstance(new[0], str) != isinstance(next(iter(known)), str):
        raise BadInput(
            f"{settings.unlabelled}: the data's texts are {'single' if isinstance(new[0], tuple) else 'pairs'}, these not"
        )
    said = f"{len(new)} texts without labels"
    if len(new) < len(found):
        said += f"; {len(found) - len(new)} empty, double, labelled, of dev or of test left out"
    if settings.unlabelled_limit is not None and settings.unlabelled_limit < len(new):
        new = tuple(new[index] for index in sorted(random.choice(len(new), settings.unlabelled_limit, replace=False).tolist()))
        said += f"; limited to {len(new)}"
    return new, [said]


def _readable(text: Text) -> bool:
    return bool(text.strip() if isinstance(text, str) else text[0].strip() and text[1].strip())
