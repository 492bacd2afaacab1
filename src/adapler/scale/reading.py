"""The rows of one part: texts to answer, what is carried along, and rows that are no texts, with the reason. Knows no model."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from adapler.data.files import DIALECTS, PAIR_COLUMN, ROW_LIMIT, TEXT_COLUMN, described
from adapler.data.text import Text
from adapler.errors import BadInput
from adapler.safefile import reason
from adapler.scale.parts import BOM, Part, Source, open_parquet, unpacked

_PARQUET_ROWS = 4096


@dataclass(frozen=True)
class Bad:
    """A row that cannot be answered."""

    place: int
    reason: str


@dataclass
class Rows:
    """What was read of one part: every row that is not blank is among `texts` or among `bad`."""

    texts: list[Text] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Per text, its line or row in the file, from 1."""
    carried: Any = field(default_factory=list)
    """Per text, a dict of the other columns; of a parquet file an arrow table."""
    bad: list[Bad] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """What of a row is read."""

    with_text: bool
    """Whether the texts themselves are carried along."""
    fixed: bool
    """Whether the output has the same columns in every row, so that none may come up later."""


class Reader:
    """Reads parts; the last file stays open, so that going on in a packed file does not mean unpacking it anew."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._open: tuple[str, IO[bytes]] | None = None
        self._files = ExitStack()

    def __call__(self, source: Source, part: Part) -> Rows:
        """All of the part at once: it is small by construction."""
        if source.format == "parquet":
            return _parquet_rows(source, part, self._wanted)
        rows, carried = Rows(), []
        for place, row in _PARSERS[source.format](source, part, self._bytes(source, part)):
            text = row if isinstance(row, str) else _text(row, source, self._wanted)
            if isinstance(row, str) or isinstance(text, Bad):
                rows.bad.append(Bad(place, row if isinstance(row, str) else text.reason))  # type: ignore[union-attr]
                continue
            rows.texts.append(text)
            rows.places.append(place)
            left_out = () if self._wanted.with_text else source.texts
            carried.append({column: value for column, value in row.items() if column not in left_out})
        rows.carried = carried
        return rows

    def close(self) -> None:
        """Close the file that is still open."""
        self._open = None
        self._files.close()

    def _bytes(self, source: Source, part: Part) -> bytes:
        try:
            if self._open is None or self._open[0] != source.path:
                self.close()
                self._open = source.path, self._files.enter_context(unpacked(source.path))
            stream = self._open[1]
            stream.seek(part.start)
            data = stream.read(part.stop - part.start)
        except (OSError, EOFError) as error:
            self._open = None
            raise BadInput(f"{source.path}: cannot be read on ({reason(error)[:200]}); the file is damaged or gone") from error
        if len(data) != part.stop - part.start:
            raise BadInput(f"{source.path}: ends before byte {part.stop}; it was changed while it was read")
        return data.removeprefix(BOM) if part.start == 0 else data


Parsed = Iterator[tuple[int, dict[str, Any] | str]]
"""Place of a row, and its columns, or the reason why it has none."""


def _line_rows(source: Source, part: Part, data: bytes) -> Parsed:
    for place, line in enumerate(io.BytesIO(data), part.first):
        try:
            yield place, {TEXT_COLUMN: line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")}
        except UnicodeDecodeError as error:
            yield place, _not_utf8(error)


def _json_rows(source: Source, part: Part, data: bytes) -> Parsed:
    for place, line in enumerate(io.BytesIO(data), part.first):
        if line.isspace():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            yield place, _not_utf8(error)
        except (ValueError, RecursionError) as error:
            said = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            yield place, f"not JSON ({said})"
        else:
            if isinstance(row, dict):
                yield place, row
            else:
                yield place, {TEXT_COLUMN: row} if isinstance(row, str) else f"{described(row)}, expected an object or a string"


def _csv_rows(source: Source, part: Part, data: bytes) -> Parsed:
    csv.field_size_limit(max(csv.field_size_limit(), ROW_LIMIT))
    lines = (line.decode("utf-8", "surrogateescape") for line in io.BytesIO(data))
    reader = csv.reader(lines, DIALECTS[source.format])
    place = part.first
    for record in reader:
        if record and len(record) != len(source.columns):
            yield place, f"{len(record)} fields, the header has {len(source.columns)}"
        elif record:
            yield place, dict(zip(source.columns, record, strict=True)) if _whole("".join(record)) else "not UTF-8"
        place = part.first + reader.line_num


_PARSERS: dict[str, Callable[[Source, Part, bytes], Parsed]] = {
    "lines": _line_rows,
    "jsonl": _json_rows,
    "csv": _csv_rows,
    "tsv": _csv_rows,
}


def _text(row: dict[str, Any], source: Source, wanted: Wanted) -> Text | Bad:
    for column in source.texts:
        if column not in row:
            return Bad(0, f"no column {column!r}")
    if PAIR_COLUMN in row and PAIR_COLUMN not in source.columns:
        return Bad(0, f"column {PAIR_COLUMN!r} is new here; a column must be there from the first row on")
    new = [column for column in row if column not in source.columns] if wanted.fixed else []
    if new:
        return Bad(0, f"column {new[0][:80]!r} is new here; write with --to jsonl to carry any columns")
    return _strings(source.texts, [row[column] for column in source.texts])


def _strings(columns: Sequence[str], values: Sequence[Any]) -> Text | Bad:
    for column, value in zip(columns, values, strict=True):
        if not isinstance(value, str):
            return Bad(0, f"column {column!r} holds {described(value)}, expected a string")
    return values[0] if len(values) == 1 else (values[0], values[1])


def _whole(text: str) -> bool:
    """Whether it holds no half characters, which here stand for bytes that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x}, {error.start + 1} bytes into the line)"


def _parquet_rows(source: Source, part: Part, wanted: Wanted) -> Rows:
    import pyarrow

    where = f"{source.path} rows {part.first} to {part.first + part.rows - 1}"
    try:
        table = _stretch(open_parquet(source.path), part)
        rows = Rows()
        good = []
        by_column = [table.column(column).to_pylist() for column in source.texts]
        for index, values in enumerate(zip(*by_column, strict=True)):
            text = _strings(source.texts, values)
            if isinstance(text, Bad):
                rows.bad.append(Bad(part.first + index, text.reason))
            else:
                rows.texts.append(text)
                rows.places.append(part.first + index)
                good.append(index)
        kept = [column for column in source.columns if wanted.with_text or column not in source.texts]
        rows.carried = table.select(kept)
        if rows.bad:
            rows.carried = rows.carried.take(pyarrow.array(good, pyarrow.int64()))
        return rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{where}: cannot be read as parquet ({reason(error)[:200]}); write the file again") from error


def _stretch(file: Any, part: Part) -> Any:
    """Rows `start` to `stop` as an arrow table, read from the row groups that hold them."""
    import pyarrow

    groups: list[int] = []
    place = first = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if place < part.stop and place + rows > part.start:
            first = first if groups else place
            groups.append(group)
        place += rows
    batches, at = [], first
    for batch in file.iter_batches(_PARQUET_ROWS, row_groups=groups, use_threads=False):
        low, high = max(part.start - at, 0), min(part.stop - at, batch.num_rows)
        if low < high:
            batches.append(batch.slice(low, high - low))
        at += batch.num_rows
        if at >= part.stop:
            break
    return pyarrow.Table.from_batches(batches, schema=file.schema_arrow)
