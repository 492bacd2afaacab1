"""Files cut into parts: where each begins and ends, so that any part can be read by itself. Knows formats, never a model.

A part of lines is a range of bytes of the unpacked file, a part of parquet a range of rows. Finding the ranges reads a text
file through once; parquet says how many rows it has.
"""

from __future__ import annotations

import csv
import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from pydantic import BaseModel, ConfigDict

from adapler.data.files import DIALECTS, ROW_LIMIT, SUFFIXES, TEXT_COLUMN, format_of, text_columns
from adapler.errors import BadInput, MissingExtra
from adapler.safefile import reason

PART_ROWS = 50_000
PART_BYTES = 64 * 2**20
"""Of a file, unpacked: long texts make smaller parts, so that memory does not grow with them."""
BOM = b"\xef\xbb\xbf"
PARQUET_BUFFER = 2**20


class Source(BaseModel):
    """One input file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """As answers call it: its path below the folder that was given, or its name."""
    path: str
    format: str
    bytes: int
    modified_ns: int
    columns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """The text column, and the pair's where there is one."""

    @property
    def stamp(self) -> tuple[str, str, int, int]:
        """What tells whether it is the same file as before; it may have moved together with its folder."""
        return self.name, self.format, self.bytes, self.modified_ns


class Part(BaseModel):
    """A stretch of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    source: int
    start: int
    stop: int
    """Bytes of the unpacked file, or rows of parquet."""
    first: int
    """Place of its first row in the file as messages count it: lines or rows from 1."""
    rows: int
    """Lines or records, empty ones among them."""

    @property
    def name(self) -> str:
        """Of its files, without their ending."""
        return f"part-{self.number:06d}"


def find(source: str, format: str = "auto") -> tuple[list[Source], int]:  # noqa: A002 (the flag's name)
    """The files that a file's name, a folder or a pattern stands for, in the order of their names; and how many were left out.

    In a folder, at any depth, files count whose ending is known; whatever begins with `_` or `.` is not data.
    """
    root = Path(source)
    others = 0
    if root.is_dir():
        below = [path for path in sorted(root.rglob("*")) if path.is_file() and not _hidden(path.relative_to(root))]
        files = [path for path in below if format != "auto" or _known(path)]
        others = len(below) - len(files)
        base = root
    elif root.exists():
        files, base = [root], root.parent
    else:
        files = sorted(Path(found) for found in glob.glob(source, recursive=True) if Path(found).is_file())  # noqa: PTH207
        fixed = [part for part in root.parts if not glob.has_magic(part)]
        base = Path(*fixed) if files and fixed else Path()
    if not files:
        raise BadInput(
            f"{source}: no data files there; expected a file, a folder of them or a quoted pattern such as 'in/*.parquet'"
        )
    return [_stamped(path, _named(path, base), format) for path in files], others


def cut(sources: Sequence[Source], text: str | None, pair: str | None, part_rows: int) -> tuple[list[Source], list[Part]]:
    """Every source with its columns, and the parts of all of them."""
    known: list[Source] = []
    parts: list[Part] = []
    for index, source in enumerate(sources):
        columns, ranges = _RANGES[source.format](source, part_rows)
        chosen: list[str] = []
        if columns:
            chosen = text_columns(source.path, columns, text, pair)
            _check_types(source, chosen)
        known.append(source.model_copy(update={"columns": tuple(columns), "texts": tuple(chosen)}))
        for start, stop, first, rows in ranges:
            parts.append(Part(number=len(parts), source=index, start=start, stop=stop, first=first, rows=rows))
    if not parts:
        raise BadInput(f"{sources[0].path}{' and the others' if len(sources) > 1 else ''}: no rows; expected texts")
    return known, parts


@contextmanager
def unpacked(path: str) -> Iterator[IO[bytes]]:
    """A file's bytes, those inside of a `.gz`; what cannot be read is a `BadInput`."""
    try:
        with Path(path).open("rb") as plain:
            if not path.lower().endswith(".gz"):
                yield plain
            else:
                with gzip.open(plain) as inner:
                    yield cast("IO[bytes]", inner)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read on ({reason(error)[:200]}); the file is cut short, damaged or gone") from error


def open_parquet(path: str) -> Any:
    """An open parquet file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"{path}: parquet needs pyarrow: pip install 'adapler[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as parquet ({reason(error)[:200]}); write the file again") from error


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _known(path: Path) -> bool:
    name = Path(path.name.lower())
    return (Path(name.stem).suffix if name.suffix == ".gz" else name.suffix) in (*SUFFIXES, ".txt")


def _named(path: Path, base: Path) -> str:
    name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
    return name.encode("utf-8", "backslashreplace").decode()


def _stamped(path: Path, name: str, format: str) -> Source:  # noqa: A002
    try:
        status = path.stat()
    except OSError as error:
        raise BadInput(f"{path}: cannot be opened ({error.strerror}); expected a data file") from error
    if not path.is_file():
        raise BadInput(f"{path}: parts need a file that can be read again, and this is none; save it as one")
    kind = format_of(path) if format == "auto" else format
    if kind == "parquet" and path.suffix.lower() == ".gz":
        raise BadInput(f"{path}: parquet is compressed inside; unpack the file")
    full = str(path.resolve())
    return Source(name=name, path=full, format=kind, bytes=status.st_size, modified_ns=status.st_mtime_ns)


Ranges = list[tuple[int, int, int, int]]
"""Start, stop, place of the first row, rows."""


class _Cutter:
    """Ranges that grow row by row and end where a part is full."""

    def __init__(self, start: int, first: int, part_rows: int) -> None:
        self.ranges: Ranges = []
        self._part_rows = part_rows
        self._start, self._first, self._rows = start, first, 0

    def add(self, stop: int, following: int) -> None:
        """One more row, which ends at `stop`; the next would be at the place `following`."""
        self._rows += 1
        if self._rows == self._part_rows or stop - self._start >= PART_BYTES:
            self.close(stop, following)

    def close(self, stop: int, following: int) -> None:
        """End the part here, if it holds anything."""
        if self._rows:
            self.ranges.append((self._start, stop, self._first, self._rows))
        self._start, self._first, self._rows = stop, following, 0


def _lines(source: Source, stream: IO[bytes], first: int = 1) -> Iterator[bytes]:
    for place, line in enumerate(iter(lambda: stream.readline(ROW_LIMIT + 1), b""), first):
        if len(line) > ROW_LIMIT:
            raise BadInput(f"{source.path} line {place}: longer than {ROW_LIMIT} bytes; expected a file with line breaks")
        yield line


def _line_ranges(source: Source, part_rows: int) -> tuple[list[str], Ranges]:
    with unpacked(source.path) as stream:
        columns: list[str] | None = [TEXT_COLUMN] if source.format == "lines" else None
        cutter, stop, place = _Cutter(0, 1, part_rows), 0, 0
        for place, line in enumerate(_lines(source, stream), 1):
            if columns is None:
                columns = _json_columns(line.removeprefix(BOM) if place == 1 else line)
            stop += len(line)
            cutter.add(stop, place + 1)
        cutter.close(stop, place + 1)
    if place and columns is None:
        raise BadInput(f"{source.path}: no line holds a JSON object or string; expected one a line")
    return columns or [], cutter.ranges


def _json_columns(line: bytes) -> list[str] | None:
    """Those of the first row that can be read; rows that cannot are told of when their part is."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return list(row) if isinstance(row, dict) else [TEXT_COLUMN] if isinstance(row, str) else None


def _csv_ranges(source: Source, part_rows: int) -> tuple[list[str], Ranges]:
    stop = 0

    def decoded(stream: IO[bytes]) -> Iterator[str]:
        nonlocal stop
        for place, line in enumerate(_lines(source, stream), 1):
            stop += len(line)  # the reader asks for no line before it needs it, so this is where its record ends
            yield (line.removeprefix(BOM) if place == 1 else line).decode("utf-8", "surrogateescape")

    csv.field_size_limit(max(csv.field_size_limit(), ROW_LIMIT))
    with unpacked(source.path) as stream:
        reader = csv.reader(decoded(stream), DIALECTS[source.format])
        try:
            header = next((record for record in reader if record), [])
            cutter = _Cutter(stop, reader.line_num + 1, part_rows)
            for record in reader:
                if record:
                    cutter.add(stop, reader.line_num + 1)
        except csv.Error as error:
            where = f"{source.path} line {reader.line_num}"
            raise BadInput(f"{where}: cannot be parsed ({error}); look for a quote that is not closed or doubled") from error
        cutter.close(stop, reader.line_num + 1)
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise BadInput(f"{source.path}: column {twice[0]!r} is there {header.count(twice[0])} times; rename all but one")
    return header, cutter.ranges


def _parquet_ranges(source: Source, part_rows: int) -> tuple[list[str], Ranges]:
    file = open_parquet(source.path)
    metadata = file.metadata
    total = metadata.num_rows
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    rows = part_rows if not size else max(1, min(part_rows, PART_BYTES * total // size))
    ranges = [(start, min(start + rows, total), start + 1, min(rows, total - start)) for start in range(0, total, rows)]
    return list(file.schema_arrow.names), ranges


def _check_types(source: Source, columns: Sequence[str]) -> None:
    if source.format != "parquet":
        return
    schema = open_parquet(source.path).schema_arrow
    for column in columns:
        kind = schema.field(column).type
        if not any(word in str(kind) for word in ("string", "null")):
            raise BadInput(f"{source.path}: column {column!r} holds {kind}, expected strings. Choose with --text and --pair")


_RANGES = {
    "lines": _line_ranges,
    "jsonl": _line_ranges,
    "csv": _csv_ranges,
    "tsv": _csv_ranges,
    "parquet": _parquet_ranges,
}
