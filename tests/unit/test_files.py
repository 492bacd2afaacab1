"""Data files: every format gives the same texts, and every fault names its file, place and column."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapler.data import files
from adapler.data.files import FORMATS, Table, read_texts
from adapler.errors import BadInput, MissingExtra, UnknownName

TEXTS = ["a good film", "", 'she said "no", twice', "naïve — 数据 \U0001f600", "tab\tinside", "  spaces  "]
PAIRS = [(text, text[::-1]) for text in TEXTS]


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes("".join(row["text"] + "\n" for row in rows).encode())


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


def write_tsv(path: Path, rows: list[dict[str, str]]) -> None:
    lines = ["\t".join(rows[0]), *("\t".join(value.replace("\t", " ") for value in row.values()) for row in rows)]
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())


def write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=max(2, len(rows) // 2))


WRITERS: dict[str, Callable[[Path, list[dict[str, str]]], None]] = {
    "txt": write_lines,
    "csv": write_csv,
    "tsv": write_tsv,
    "jsonl": write_jsonl,
    "json": write_jsonl,
    "parquet": write_parquet,
}


def gzipped(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_same_texts(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{ending}"
    WRITERS[ending](path, [{"text": text} for text in TEXTS])
    expected = [text.replace("\t", " ") for text in TEXTS] if ending == "tsv" else TEXTS
    if ending == "tsv":
        expected = [text for text in expected if text]  # a line without a field is no row
    assert list(read_texts(path)) == expected
    if ending != "parquet":
        assert list(read_texts(gzipped(path))) == expected


@pytest.mark.parametrize("ending", [ending for ending in WRITERS if ending != "txt"])
def test_every_table_gives_the_same_pairs(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{ending}"
    WRITERS[ending](path, [{"label": "x", "premise": first, "hypothesis": second} for first, second in PAIRS])
    expected = [(a.replace("\t", " "), b.replace("\t", " ")) for a, b in PAIRS] if ending == "tsv" else PAIRS
    assert list(read_texts(path, text="premise", pair="hypothesis")) == expected


def test_the_format_may_be_stated(file: Callable[[str, str | bytes], Path]) -> None:
    path = file("data.txt", '{"text": "a"}\n')
    assert list(read_texts(path)) == ['{"text": "a"}']
    assert list(read_texts(path, format="jsonl")) == ["a"]
    with pytest.raises(UnknownName, match=r"no format 'xml'.*lines"):
        list(read_texts(path, format="xml"))


@pytest.mark.parametrize(
    ("header", "text", "pair", "expected"),
    [
        ("text,label", None, None, "1"),
        ("label,text", None, None, "2"),
        ("text,text_pair", None, None, ("1", "2")),
        ("text_pair,sentence", None, None, ("2", "1")),
        ("premise,hypothesis", None, "hypothesis", ("1", "2")),
        ("premise,text_pair", "text_pair", None, "2"),
        ("text,other", "other", None, "2"),
    ],
)
def test_columns_are_chosen_by_name(
    header: str, text: str | None, pair: str | None, expected: object, file: Callable[[str, str | bytes], Path]
) -> None:
    assert list(read_texts(file("data.csv", f"{header}\n1,2\n"), text=text, pair=pair)) == [expected]


def test_a_single_column_needs_no_name(file: Callable[[str, str | bytes], Path]) -> None:
    assert list(read_texts(file("data.csv", "review\nfine\n"))) == ["fine"]
    assert list(read_texts(file("data.jsonl", '{"review": "fine"}\n'))) == ["fine"]


def test_plain_strings_are_json_rows(file: Callable[[str, str | bytes], Path]) -> None:
    assert list(read_texts(file("data.jsonl", '"one"\n\n"two\\n"\n{"text": "three"}'))) == ["one", "two\n", "three"]


def test_line_breaks_marks_and_last_lines(file: Callable[[str, str | bytes], Path]) -> None:
    content = "\ufeffone\r\ntwo\u2028still two\n\nfour\rstill four".encode()
    assert list(read_texts(file("data.txt", content))) == ["one", "two\u2028still two", "", "four\rstill four"]
    assert list(read_texts(file("data.csv", '\ufefftext\r\n"a\nb"\r\n'))) == ["a\nb"]


def test_long_fields_are_whole(file: Callable[[str, str | bytes], Path]) -> None:
    text = "word " * 100_000  # the csv module stops at 131072 characters unless told otherwise
    assert list(read_texts(file("data.csv", f"text\n{text}\n"))) == [text]


def test_quotes_in_tsv_are_characters(file: Callable[[str, str | bytes], Path]) -> None:
    assert list(read_texts(file("data.tsv", 'text\tlabel\n"open\t1\nshut"\t0\n'))) == ['"open', 'shut"']


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.txt", "", r"data.txt: is empty"),
        ("data.csv", "", r"data.csv: is empty"),
        ("data.csv", "text\n", r"data.csv: has a header and no rows"),
        ("data.jsonl", "\n\n", r"data.jsonl: is empty"),
        ("data.txt", b"fine\n\xff\xfe\n", r"data.txt line 2: not UTF-8 \(byte 0xff, 1 bytes into the line\)"),
        ("data.csv", b"text\nfine\ncaf\xe9\n", r"data.csv line 3: not UTF-8 \(byte 0xe9"),
        ("data.jsonl", b'{"text": "\xe9"}\n', r"data.jsonl line 1: not UTF-8"),
        ("data.csv", "a,b\n1,2\n", r"data.csv: no column 'text'; there are: 'a', 'b'"),
        ("data.csv", "text,text,b\n1,2,3\n", r"data.csv: column 'text' is there 2 times"),
        ("data.csv", "text,b\n1,2\n\n1,2,3\n", r"data.csv line 4: 3 fields, the header has 2 \('text', 'b'\)"),
        ("data.csv", 'text,b\n"1\n2",2\n"3\n4"\n', r"data.csv line 4: 1 fields, the header has 2"),
        ("data.csv", 'text,b\n1,2\n"open,2\n1,2\n', r"data.csv line 3: cannot be parsed \(unexpected end of data\)"),
        ("data.csv", 'text\n"shut" late\n', r"data.csv line 2: cannot be parsed"),
        ("data.tsv", "text\tb\n1\n", r"data.tsv line 2: 1 fields, the header has 2"),
        ("data.jsonl", '{"text": "a"}\n{"text": }\n', r"data.jsonl line 2: not JSON \(Expecting value at character 10\)"),
        ("data.json", '[\n{"text": "a"}\n]\n', r"data.json line 1: not JSON"),
        ("data.json", '["a", "b"]\n', r"data.json line 1: holds list \['a', 'b'\], expected one JSON object or string a line"),
        ("data.jsonl", "[" * 100_000, r"data.jsonl line 1: not JSON"),
        ("data.jsonl", '{"text": 3}\n', r"data.jsonl line 1: column 'text' holds int 3, expected a string"),
        ("data.jsonl", '{"text": "a"}\n{"text": null}\n', r"data.jsonl line 2: column 'text' holds null"),
        ("data.jsonl", '{"text": "a", "b": 1}\n{"b": 1}\n', r"data.jsonl line 2: no column 'text'; there are: 'b'"),
        ("data.jsonl", '{"text": "a"}\n{"text": "b", "text_pair": "c"}\n', r"data.jsonl line 2: column 'text_pair' is new"),
        ("data.jsonl", '{"text": "a", "text_pair": null}\n', r"data.jsonl line 1: column 'text_pair' holds null"),
        ("data.jsonl", "{}\n", r"data.jsonl: no column 'text'; there are: none"),
        ("data.txt.gz", b"not gzip", r"data.txt.gz line 1: cannot be read on \(Not a gzipped file"),
        (
            "data.txt.gz",
            gzip.compress(random.Random(0).randbytes(5000).hex().encode(), mtime=0)[:-2000],
            r"data.txt.gz line 1: cannot be read on",
        ),
        ("data.parquet", b"PAR1 not really", r"data.parquet: cannot be read as parquet"),
        ("data.parquet", b"", r"data.parquet: cannot be read as parquet"),
    ],
)
def test_a_fault_names_its_file_and_place(
    name: str, content: str | bytes, message: str, file: Callable[[str, str | bytes], Path]
) -> None:
    with pytest.raises(BadInput, match=message):
        list(read_texts(file(name, content)))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", None]), r"row 2: column 'text' holds null, expected a string"),
        (pa.array([1, 2]), r"row 1: column 'text' holds int 1"),
        (pa.array([b"a", b"b"]), r"row 1: column 'text' holds bytes"),
        (pa.array([], pa.string()), r"has no rows"),
    ],
)
def test_a_fault_in_parquet_names_its_row(column: pa.Array, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": column}), path)
    with pytest.raises(BadInput, match=message):
        list(read_texts(path))


def test_damage_inside_parquet_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(5000)]}), path)
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"data.parquet row 1: cannot be read as parquet"):
        list(read_texts(path))


def test_other_kinds_of_strings_in_parquet_are_strings(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    texts = pa.array(["b", "a", "b"])
    pq.write_table(pa.table({"a.b": texts.dictionary_encode(), "large": texts.cast(pa.large_string())}), path)
    assert list(read_texts(path, text="a.b", pair="large")) == [("b", "b"), ("a", "a"), ("b", "b")]


def test_parquet_without_pyarrow_tells_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.parquet"
    write_parquet(path, [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adapler\[parquet\]'"):
        list(read_texts(path))


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.csv: cannot be opened \(No such file or directory\)"):
        list(read_texts(tmp_path / "none.csv"))
    with pytest.raises(BadInput, match=r"cannot be opened \(Is a directory\)"):
        list(read_texts(tmp_path))


def test_a_file_without_line_breaks_does_not_fill_the_memory(
    file: Callable[[str, str | bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_LIMIT", 1000)
    with pytest.raises(BadInput, match=r"data.txt line 2: longer than 1000 bytes"):
        list(read_texts(file("data.txt", "fine\n" + "x" * 5000)))


def test_standard_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, content in (("auto", "one\ntwo\n"), ("csv", "text\none\ntwo\n"), ("jsonl", '"one"\n"two"\n')):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        assert list(read_texts("-", format=kind)) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xff\n")))
    with pytest.raises(BadInput, match=r"standard input line 2: not UTF-8"):
        list(read_texts("-"))


def test_parquet_cannot_come_through_a_pipe_or_gzip(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_parquet(path, [{"text": "a"}])
    with pytest.raises(BadInput, match=r"neither gzipped nor piped"):
        list(read_texts(gzipped(path)))
    code = "from adapler.data.files import read_texts; list(read_texts('-', format='parquet'))"
    piped = subprocess.run([sys.executable, "-c", code], input=path.read_bytes(), capture_output=True, check=False)
    assert b"BadInput: standard input: parquet is read from a plain file" in piped.stderr


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{ending}"
    WRITERS[ending](path, [{"text": f"{i} " + "word " * 200} for i in range(8000)])  # 8 MB of text
    tracemalloc.start()
    number = sum(1 for _ in read_texts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert number == 8000
    assert peak < 3e6  # a batch of parquet rows, 1 MB, is the most that is held


def test_every_format_is_a_table_by_name() -> None:
    assert set(FORMATS) == {"lines", "csv", "tsv", "jsonl", "parquet"}


def check_lines_come_back(path: Path, texts: list[str]) -> None:
    path.write_bytes("".join(text + "\n" for text in texts).encode())
    assert list(read_texts(path)) == texts


_no_breaks = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff"))
_any_text = st.text(st.characters(exclude_categories=["Cs"]))
_quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(texts=st.lists(_no_breaks, min_size=1))
@_quick
def test_any_lines_come_back(texts: list[str], tmp_path: Path) -> None:
    check_lines_come_back(tmp_path / "data.txt", texts)


@given(pairs=st.lists(st.tuples(_any_text, _any_text), min_size=1))
@_quick
def test_any_rows_come_back(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    rows = [{"text": first, "text_pair": second} for first, second in pairs]
    for ending in ("csv", "jsonl"):
        WRITERS[ending](tmp_path / f"data.{ending}", rows)
        assert list(read_texts(tmp_path / f"data.{ending}")) == pairs


def test_other_line_breaks_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def splitting(table: Table, stream: IO[bytes]) -> Iterator[tuple[int, str]]:
        yield from enumerate(stream.read().decode().splitlines(keepends=True), start=1)

    monkeypatch.setattr(files, "_lines", splitting)
    with pytest.raises(AssertionError):
        check_lines_come_back(tmp_path / "data.txt", ["one", "two\x0bstill two"])


def test_reading_files_does_not_import_torch() -> None:
    code = "import adapler.data.files, sys; assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
