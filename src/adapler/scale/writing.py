"""A part's files: answers in one of three formats, bad rows beside them. Each appears whole under its name, or not at all."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from adapler.errors import AdaplerError, BadConfig, MissingExtra
from adapler.scale.answers import COUNTED, PLACE_COLUMNS, TOKEN_COLUMNS, Answers, answer_columns
from adapler.scale.parts import Source

STAGED = ".tmp"
CARRIED = "source_"
"""In front of a carried column that is called like one of the answer's."""


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> int:
    """Let `write` fill a file beside `path`, force it to the disk, and only then give it its name; its size in bytes."""
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}{STAGED}")
    try:
        with staged.open("xb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
            size = stream.tell()
        staged.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise AdaplerError(
            f"cannot write {path} ({error.strerror or error}); make room and run the same command again: finished parts stay"
        ) from error
    finally:
        staged.unlink(missing_ok=True)
    return size


def carried_names(source: Source, labels: Sequence[str], *, tokens: bool, with_text: bool) -> dict[str, str]:
    """What the carried columns of a file are called in the output."""
    taken = {*PLACE_COLUMNS, *answer_columns(labels, tokens=tokens)}
    columns = [column for column in source.columns if with_text or column not in source.texts]
    names = {column: CARRIED + column if column in taken else column for column in columns}
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    if twice:
        plain = twice[0].removeprefix(CARRIED)
        raise BadConfig(f"{source.path}: columns {plain!r} and {twice[0]!r} cannot both be carried; rename one")
    return names


def write_answers(path: Path, to: str, answers: Answers, names: dict[str, str]) -> int:
    """Carried columns under these names in front, then the answer's; how many bytes that came to."""
    return write_whole(path, lambda stream: _WRITERS[to](stream, answers, names))


def write_bad(path: Path, name: str, answers: Answers) -> int:
    """Rows that have no answer, with the reason: one JSON object a line."""
    lines = [json.dumps({"file": name, "row": bad.place, "reason": bad.reason}, ensure_ascii=True) for bad in answers.bad]
    return write_whole(path, lambda stream: _put(stream, "".join(line + "\n" for line in lines)))


def _put(stream: IO[bytes], text: str) -> None:
    stream.write(text.encode("utf-8", "backslashreplace"))


def _as_dicts(carried: Any) -> list[dict[str, Any]]:
    return carried if isinstance(carried, list) else carried.to_pylist()


def _jsonl(stream: IO[bytes], answers: Answers, names: dict[str, str]) -> None:
    taken = set(answers.columns)
    values = zip(*answers.columns.values(), strict=True)
    for row, given in zip(_as_dicts(answers.carried), values, strict=True):
        # Columns that come up after the first row are not among the names, and may be called like an answer's as well.
        named = {names.get(column, CARRIED + column if column in taken else column): value for column, value in row.items()}
        line = json.dumps(named | dict(zip(answers.columns, given, strict=True)), ensure_ascii=False, default=_plain)
        _put(stream, line + "\n")


def _csv(stream: IO[bytes], answers: Answers, names: dict[str, str]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names.values(), *answers.columns])
    for row, given in zip(_as_dicts(answers.carried), zip(*answers.columns.values(), strict=True), strict=True):
        carried = [_string(row.get(column)) for column in names]
        writer.writerow([*carried, *(str(value).lower() if isinstance(value, bool) else value for value in given)])
    _put(stream, text.getvalue())


def _parquet(stream: IO[bytes], answers: Answers, names: dict[str, str]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("parquet needs pyarrow: pip install 'adapler[parquet]'") from error
    if isinstance(answers.carried, list):
        carried = {name: pyarrow.array([_string(row.get(c)) for row in answers.carried], "string") for c, name in names.items()}
    else:
        carried = {name: answers.carried.column(column) for column, name in names.items()}
    types = {
        **dict.fromkeys(("file", "label"), pyarrow.string()),
        **dict.fromkeys(("row", *COUNTED), pyarrow.int64()),
        "truncated": pyarrow.bool_(),
        TOKEN_COLUMNS[0]: pyarrow.list_(pyarrow.string()),
        TOKEN_COLUMNS[1]: pyarrow.list_(pyarrow.list_(pyarrow.int32())),
    }
    given = {name: pyarrow.array(values, types.get(name, pyarrow.float64())) for name, values in answers.columns.items()}
    pyarrow.parquet.write_table(pyarrow.table({**carried, **given}), stream)


_WRITERS: dict[str, Callable[[IO[bytes], Answers, dict[str, str]], None]] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


def _string(value: Any) -> str | None:
    """As a column of strings holds it: text as it is, anything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()  # half characters as escapes


def _plain(value: object) -> str:
    """What JSON has no word for: bytes in base 64, dates and decimals as they are written."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
