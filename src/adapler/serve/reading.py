"""From a body to the texts it asks about. Whatever a body holds, what reading it costs is bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import ValidationError

from adapler.data.text import Text
from adapler.serve.limits import Limits
from adapler.serve.schema import ErrorType, PredictRequest, Refusal

EMPTY = "Input validation error: `inputs` cannot be empty"
_OTHER_LISTS = 10_000
"""So many lists and objects a body may hold beside those of its items, as fields that nobody knows may have some."""
_TEXT_OR_LIST = re.compile(rb'"[^"]*"?|[\[{]')


@dataclass(frozen=True)
class Inputs:
    """What was asked about: texts and pairs, or what is wrong with an item."""

    items: list[Text | Refusal]
    batch: bool

    @property
    def characters(self) -> int:
        """Of all texts together."""
        return characters(self.items)


def characters(items: Sequence[Text | Refusal]) -> int:
    """Of all texts among them."""
    texts = [item for item in items if not isinstance(item, Refusal)]
    return sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts)


def read_request(body: bytes, limits: Limits) -> tuple[PredictRequest, Inputs]:
    """A body, checked. The first thing wrong is raised as a `Refusal`; of a batch that may be answered in part, what is wrong
    with an item stands in its place. The request comes without what it asked about: as it was sent, it may be large."""
    _check_lists(body, limits.most_items)
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, ErrorType.validation, f"the body is not JSON: {first['msg']}") from None
        where = ".".join(str(part) for part in first["loc"])
        raise Refusal(422, ErrorType.validation, f"{where or 'the body'}: {first['msg']}") from None
    raw, request.inputs = request.inputs, None
    return request, _inputs(raw, limits.most_items, partial=request.partial)


def _check_lists(body: bytes, most: int) -> None:
    """Refuse what would become a million objects. They are cheap to send; to make them takes a hundred times their room and up
    to a second in which nobody else is answered. So they are counted before any is made, and texts may hold any number."""
    allowed = most + _OTHER_LISTS
    if body.count(b"[") + body.count(b"{") <= allowed:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    lists = (found for found in _TEXT_OR_LIST.finditer(unescaped) if found[0] in (b"[", b"{"))
    if next(islice(lists, allowed, None), None) is not None:
        said = f"the body holds more than {allowed} lists and objects; maximum allowed batch size {most}"
        raise Refusal(422, ErrorType.validation, said)


def _inputs(raw: object, most: int, *, partial: bool) -> Inputs:
    """A text, a pair, or a batch of at most so many of either."""
    if isinstance(raw, str):
        return Inputs([_filled(raw)], batch=False)
    if not isinstance(raw, list):
        raise Refusal(422, ErrorType.validation, f"inputs: expected a string or a list, got {_kind(raw)}")
    if not raw:
        raise Refusal(400, ErrorType.empty, EMPTY)
    if all(isinstance(part, str) for part in raw):
        if len(raw) > 2:
            raise Refusal(
                422,
                ErrorType.validation,
                f"inputs: a list of strings is one text or one pair, got {len(raw)}; a batch is a list of lists",
            )
        return Inputs([_filled(_text(raw))], batch=False)
    if len(raw) > most:
        raise Refusal(422, ErrorType.validation, f"batch size {len(raw)} > maximum allowed batch size {most}")
    if not any(isinstance(part, list) for part in raw):
        raise Refusal(422, ErrorType.validation, f"inputs: expected strings or lists of strings, got {_kind(raw[0])}")
    items: list[Text | Refusal] = []
    for index, part in enumerate(raw):
        try:
            items.append(_item(part))
        except Refusal as refusal:
            if not partial:
                raise refusal.at(index) from None
            items.append(refusal)
    return Inputs(items, batch=True)


def _item(part: object) -> Text:
    if isinstance(part, list) and 1 <= len(part) <= 2 and all(isinstance(text, str) for text in part):
        return _filled(_text(part))
    shown = f"a list of {len(part)}" if isinstance(part, list) else _kind(part)
    raise Refusal(422, ErrorType.validation, f"expected a list of one or two strings, got {shown}")


def _filled(text: Text) -> Text:
    if not any(text):  # of a pair one may be empty
        raise Refusal(400, ErrorType.empty, EMPTY)
    return text


def _text(parts: Sequence[str]) -> Text:
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _kind(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", dict: "an object", list: "a list", str: "a string"}
    return names.get(type(value), "null")
