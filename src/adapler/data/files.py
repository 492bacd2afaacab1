"""Rows of data files, one at a time: memory does not grow with the file. Knows file formats, never a tokenizer or a model.

Formats: plain lines, CSV, TSV, JSON lines (each of these also as `.gz`), parquet, and standard input as `-`. A line break is
a line feed, with or without a carriage return. TSV has no quoting: there a quote is a character like any other.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from adapler.errors import BadInput, MissingExtra, UnknownName

if TYPE_CHECKING:
    from adapler.data.text import Text

STDIN = "-"
TEXT_COLUMN = "text"
PAIR_COLUMN = "text_pair"

SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
ROW_LIMIT = 64 * 2**20  # bytes; a file without line breaks, or an open quote, must not fill the memory
_PARQUET_ROWS = 1024
_PARQUET_BUFFER = 2**20  # without it, or with pre_buffer, pyarrow holds whole columns in memory


class Table(ABC):
    """An open data file: its columns, and its rows in order. Made by `open_table`."""

    columns: Sequence[str]
    """As its header, its schema or its first row has them."""
    unit = "line"
    """What its places are counted in, from 1."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        """Place and values of every row in these columns, which are known to be in `self.columns`. To be called once."""

    def bad(self, what: str, place: int | None = None) -> BadInput:
        """The error that names this file and, where it has one, the place."""
        return BadInput(f"{self.where(place)}: {what}")

    def where(self, place: int | None) -> str:
        """This file and the place, as errors name them."""
        return self.name if place is None else f"{self.name} {self.unit} {place}"


def read_texts(
    source: str | Path,
    *,
    format: str = "auto",  # noqa: A002 (the flag's name)
    text: str | None = None,
    pair: str | None = None,
) -> Iterator[Text]:
    """The texts of a file in order; pairs (tuples) where it has a pair column.

    `text` names the text column: by default `text`, or the only column beside the pair's. `pair` names the column of second
    texts: by default `text_pair` where there is one. Whatever cannot be read is a `BadInput` with its file, place and column.
    """
    with open_table(source, format) as table:
        chosen = text_columns(table.name, table.columns, text, pair)
        for place, values in table.rows(chosen):
            for column, value in zip(chosen, values, strict=True):
                if not isinstance(value, str):
                    raise table.bad(f"column {column!r} holds {described(value)}, expected a string", place)
            yield values[0] if len(values) == 1 else (values[0], values[1])


def text_columns(name: str, columns: Sequence[str], text: str | None, pair: str | None) -> list[str]:
    """Of a file's columns the text's and, where there is one, the pair's, chosen as `read_texts` says."""
    if pair is None and PAIR_COLUMN in columns and text != PAIR_COLUMN:
        pair = PAIR_COLUMN
    if text is None:
        others = [column for column in columns if column != pair]
        text = others[0] if len(others) == 1 else TEXT_COLUMN
    chosen = [text] if pair is None else [text, pair]
    for column in chosen:
        if column not in columns:
            raise no_column(name, column, columns)
    return chosen


def cell(where: str, column: str) -> str:
    """Where a value stands, as errors name it; `where` is its file and place."""
    return f"{where}: column {column!r}"


def no_column(where: str, column: str, columns: Sequence[str], flags: str = "--text and --pair") -> BadInput:
    """The error for a column that is not there; `flags` choose another."""
    return BadInput(f"{where}: no column {column!r}; there are: {_short_list(columns)}. Choose with {flags}")


@contextmanager
def open_table(source: str | Path, format: str = "auto") -> Iterator[Table]:  # noqa: A002 (the flag's name)
    """Open a file, or standard input for `-`. `auto` goes by the name's ending; what it does not know is plain lines."""
    name = "standard input" if str(source) == STDIN else str(source)
    kind = format_of(source) if format == "auto" else format
    if kind not in FORMATS:
        raise UnknownName(f"no format {kind!r}. Known: auto, {', '.join(FORMATS)}.")
    with _open_bytes(source, name) as stream:
        yield FORMATS[kind](name, stream)


def format_of(source: str | Path) -> str:
    """The format a name's ending stands for; a `.gz` behind it does not matter."""
    path = Path(str(source).lower())
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return SUFFIXES.get(suffix, "lines")


class Lines(Table):
    """Each line is a text; an empty line is an empty text."""

    columns = (TEXT_COLUMN,)

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        super().__init__(name)
        self._lines = _lines(self, stream)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        place = 0
        for place, line in self._lines:
            yield place, [line.removesuffix("\n").removesuffix("\r")]
        if not place:
            raise self.bad("is empty; expected one text a line")


class Separated(Table):
    """A header, then rows with as many fields. Empty lines are skipped."""

    def __init__(self, name: str, stream: IO[bytes], dialect: type[csv.Dialect]) -> None:
        super().__init__(name)
        csv.field_size_limit(max(csv.field_size_limit(), ROW_LIMIT))  # of the whole process; its default cuts long texts off
        lines = (line for _, line in _lines(self, stream))
        self._reader = csv.reader(lines, dialect)
        self._records = self._read()
        _, header = next(self._records, (0, []))
        if not header:
            raise self.bad("is empty; expected a header and rows")
        self.columns = _distinct(self, header)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        chosen = [self.columns.index(column) for column in columns]
        place = 0
        for place, record in self._records:
            if len(record) != len(self.columns):
                names = _short_list(self.columns)
                raise self.bad(f"{len(record)} fields, the header has {len(self.columns)} ({names})", place)
            yield place, [record[index] for index in chosen]
        if not place:
            raise self.bad("has a header and no rows")

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """Every record that is not an empty line, with the line it starts on."""
        while True:
            place = self._reader.line_num + 1
            try:
                record = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.bad(
                    f"cannot be parsed ({error}); look for a quote that is not closed or not doubled", place
                ) from error
            if record:
                yield place, record


class _Commas(csv.excel):
    strict = True


class _Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE
    strict = True


class JsonLines(Table):
    """An object a line, or a string a line, which counts as an object with the column `text`. Empty lines are skipped."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        super().__init__(name)
        objects = self._read(stream)
        first = next(objects, None)
        if first is None:
            raise self.bad("is empty; expected one JSON object or string a line")
        self.columns = list(first[1])
        self._objects = chain([first], objects)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        for place, row in self._objects:
            for column in columns:
                if column not in row:
                    there = _short_list(list(row))
                    raise self.bad(f"no column {column!r}; there are: {there}; a column must be there in every row", place)
            if PAIR_COLUMN in row and PAIR_COLUMN not in self.columns:
                raise self.bad(f"column {PAIR_COLUMN!r} is new here; a column must be there from the first row on", place)
            yield place, [row[column] for column in columns]

    def _read(self, stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        for place, line in _lines(self, stream):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also where one JSON array goes over many lines
                reason = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
                raise self.bad(f"not JSON ({reason}); expected one object or string a line", place) from error
            if not isinstance(row, dict | str):
                raise self.bad(f"holds {described(row)}, expected one JSON object or string a line", place)
            yield place, {TEXT_COLUMN: row} if isinstance(row, str) else row


class Parquet(Table):
    """Needs pyarrow. Reads only the columns asked for."""

    unit = "row"

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        super().__init__(name)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra(f"{name}: parquet needs pyarrow: pip install 'adapler[parquet]'") from error
        if Path(name).suffix.lower() == ".gz" or not stream.seekable():
            raise self.bad("parquet is read from a plain file, neither gzipped nor piped; save it as one")
        self._errors: tuple[type[Exception], ...] = (pyarrow.ArrowException, OSError, UnicodeDecodeError)
        try:
            self._file = pyarrow.parquet.ParquetFile(stream, buffer_size=_PARQUET_BUFFER, pre_buffer=False)
        except self._errors as error:
            raise self.bad(f"cannot be read as parquet ({_first_line(error)})") from error
        self.columns = _distinct(self, self._file.schema_arrow.names)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        place = 0
        try:
            for batch in self._file.iter_batches(_PARQUET_ROWS, columns=list(columns), use_threads=False):
                by_column = [batch.column(column).to_pylist() for column in columns]
                for place, values in enumerate(zip(*by_column, strict=True), start=place + 1):  # noqa: B020 (counts on)
                    yield place, list(values)
        except self._errors as error:
            raise self.bad(f"cannot be read as parquet ({_first_line(error)})", place + 1) from error
        if not place:
            raise self.bad("has no rows")


DIALECTS: dict[str, type[csv.Dialect]] = {"csv": _Commas, "tsv": _Tabs}
FORMATS: dict[str, Callable[[str, IO[bytes]], Table]] = {
    "lines": Lines,
    "csv": partial(Separated, dialect=DIALECTS["csv"]),
    "tsv": partial(Separated, dialect=DIALECTS["tsv"]),
    "jsonl": JsonLines,
    "parquet": Parquet,
}


@contextmanager
def _open_bytes(source: str | Path, name: str) -> Iterator[IO[bytes]]:
    if str(source) == STDIN:
        yield sys.stdin.buffer
        return
    path = Path(source)
    try:
        plain = path.open("rb")
    except OSError as error:
        raise BadInput(f"{name}: cannot be opened ({error.strerror or error}); expected a data file") from error
    with plain:
        if path.suffix.lower() != ".gz":
            yield plain
            return
        with gzip.open(plain) as unpacked:
            yield cast("IO[bytes]", unpacked)


def _lines(table: Table, stream: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Number and text of every line, its line break included; a byte order mark in front is dropped."""
    for place in count(1):
        try:
            data = stream.readline(ROW_LIMIT + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise table.bad(f"cannot be read on ({_first_line(error)}); the file is cut short or damaged", place) from error
        if not data:
            return
        if len(data) > ROW_LIMIT:
            raise table.bad(f"longer than {ROW_LIMIT} bytes; expected a file with line breaks", place)
        try:
            line = data.decode("utf-8-sig" if place == 1 else "utf-8")
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{error.object[error.start]:02x}, {error.start + 1} bytes into the line"
            raise table.bad(f"not UTF-8 ({wrong}); convert the file with iconv -t utf-8", place) from error
        yield place, line


def _distinct(table: Table, columns: Sequence[str]) -> Sequence[str]:
    for column, times in Counter(columns).items():
        if times > 1:
            raise table.bad(f"column {column!r} is there {times} times; rename all but one")
    return columns


def described(value: object) -> str:
    """A value with its type, as errors show it."""
    if value is None:
        return "null"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _short_list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:20]) or "none"
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
