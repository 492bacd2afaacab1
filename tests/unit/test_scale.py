"""Parts of files: cut where rows end, read one by one, written whole; plans that are found again or refused."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapler.data.files import read_texts
from adapler.errors import AdaplerError, BadConfig, BadInput, MissingExtra
from adapler.scale import parts as parts_module
from adapler.scale import ray_engine
from adapler.scale.answers import answer, answer_columns
from adapler.scale.parts import Part, Source, cut, find
from adapler.scale.plan import Done, Folder, Manifest, Settings, check_same, model_digest
from adapler.scale.ray_engine import Cluster, pool
from adapler.scale.reading import Reader, Rows, Wanted
from adapler.scale.run import check_apart, output_format
from adapler.scale.writing import carried_names, write_answers, write_whole
from tests.tiny import tiny_classifier, tiny_texts

TEXTS = [*tiny_texts(57, seed=5, longest=6), "", "naïve 数据", 'a "quoted", comma\nand a second line', "\r inside", "end"]
ONE_LINE = [text.replace("\n", " ").replace("\r", " ") for text in TEXTS]
WANTED = Wanted(with_text=False, fixed=False)


def write_csv(path: Path, texts: list[str]) -> None:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "text"), *((str(number), text) for number, text in enumerate(texts))])


def make(folder: Path, name: str) -> list[str]:
    """A file of that ending, and the texts in it."""
    path = folder / name
    if ".csv" in name:
        write_csv(path, TEXTS)
        return TEXTS
    if name.endswith("parquet"):
        table = pa.table({"id": [str(number) for number in range(len(TEXTS))], "text": TEXTS})
        pq.write_table(table, path, row_group_size=17)
        return TEXTS
    if "jsonl" in name:
        lines = [json.dumps({"id": str(n), "text": text}, ensure_ascii=False) for n, text in enumerate(TEXTS)]
    else:
        lines = ONE_LINE
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return TEXTS if "jsonl" in name else ONE_LINE


def read_all(path: Path, part_rows: int, wanted: Wanted = WANTED) -> tuple[list[Source], list[Part], list[Rows]]:
    sources, parts = cut(find(str(path))[0], None, None, part_rows)
    reader = Reader(wanted)
    return sources, parts, [reader(sources[part.source], part) for part in parts]


FILES = ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.txt", "a.txt.gz", "a.parquet"]


@pytest.mark.parametrize("part_rows", [1, 7, 1000])
@pytest.mark.parametrize("name", FILES)
def test_parts_are_the_file_read_in_one_go(name: str, part_rows: int, tmp_path: Path) -> None:
    texts = make(tmp_path, name)
    _, parts, read = read_all(tmp_path / name, part_rows)
    assert [text for rows in read for text in rows.texts] == texts == list(read_texts(tmp_path / name))
    assert max(part.rows for part in parts) <= part_rows and sum(part.rows for part in parts) == len(texts)
    places = [place for rows in read for place in rows.places]
    assert places == sorted(set(places))
    if "txt" not in name:
        carried = [rows.carried if isinstance(rows.carried, list) else rows.carried.to_pylist() for rows in read]
        assert [row for rows in carried for row in rows] == [{"id": str(number)} for number in range(len(texts))]


@pytest.mark.parametrize("name", FILES)
def test_any_part_can_be_read_alone_and_in_any_order(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    sources, parts, read = read_all(tmp_path / name, 7)
    reader = Reader(WANTED)
    for part in reversed(parts):
        assert reader(sources[0], part).texts == read[part.number].texts
    reader.close()


def test_a_part_that_begins_one_row_late_would_be_noticed(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    sources, parts, _ = read_all(tmp_path / "a.parquet", 7)
    late = [part.model_copy(update={"start": part.start + 1}) for part in parts]
    reader = Reader(WANTED)
    assert [text for part in late for text in reader(sources[0], part).texts] != TEXTS


def test_long_texts_make_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "PART_BYTES", 100)
    for name in FILES:
        make(tmp_path, name)
        _, parts, read = read_all(tmp_path / name, 1000)
        assert len(parts) > 5
        assert sum(len(rows.texts) for rows in read) == len(TEXTS)


def test_bad_rows_are_told_with_place_and_reason_and_none_is_lost(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "one"}\n\n{"text": null}\nnot json\n[1]\n{"other": 1}\n\xff\xfe\n"two"\n{"text": 3}\n'
        b'{"text": "x", "text_pair": "y"}\n' + b'{"text": "\\ud800 half"}\n'
    )
    _, _, (rows,) = read_all(tmp_path / "a.jsonl", 100)
    assert rows.texts == ["one", "two", "\ud800 half"] and rows.places == [1, 8, 11]
    reasons = {bad.place: bad.reason for bad in rows.bad}
    assert list(reasons) == [3, 4, 5, 6, 7, 9, 10]
    for place, part in {3: "null", 4: "not JSON", 5: "list", 6: "no column", 7: "not UTF-8", 9: "int 3", 10: "new"}.items():
        assert part in reasons[place]
    (tmp_path / "a.csv").write_bytes(b'text,n\none,1\n"two\nlines",2\nthree\n\n\xff,4\nfive,5\n')
    _, _, (rows,) = read_all(tmp_path / "a.csv", 100)
    assert list(zip(rows.places, rows.texts, strict=True)) == [(2, "one"), (3, "two\nlines"), (8, "five")]
    assert [(bad.place, bad.reason[:9]) for bad in rows.bad] == [(5, "1 fields,"), (7, "not UTF-8")]
    pq.write_table(pa.table({"text": ["one", None, "three"], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    _, _, (rows,) = read_all(tmp_path / "a.parquet", 100)
    assert rows.places == [1, 3] and rows.carried.to_pydict() == {"n": [1, 3]}
    assert [(bad.place, "null" in bad.reason) for bad in rows.bad] == [(2, True)]


def test_new_columns_are_bad_rows_where_the_output_cannot_hold_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two", "new": 1}\n')
    assert [len(rows.texts) for rows in read_all(tmp_path / "a.jsonl", 9)[2]] == [2]
    (rows,) = read_all(tmp_path / "a.jsonl", 9, Wanted(with_text=False, fixed=True))[2]
    assert len(rows.texts) == 1 and "--to jsonl" in rows.bad[0].reason


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"body,n\nx,1\n", "no column 'text'; there are: 'body', 'n'"),
        ("a.csv", b'text,n\n"never closed,1\nx,2\n', "quote that is not closed"),
        ("a.csv", b"text,text\nx,1\n", "2 times"),
        ("a.jsonl", b'{"body": 1, "n": 2}\n', "no column 'text'"),
        ("a.jsonl", b"nothing\n", "no line holds"),
        ("a.jsonl", b"", "no rows"),
        ("a.parquet", b"PAR1 this is none PAR1", "cannot be read as parquet"),
        ("a.jsonl.gz", gzip.compress(b'"x"\n' * 1000, mtime=0)[:-9], "cut short"),
    ],
)
def test_files_that_cannot_be_read_are_told_before_anything_is_begun(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        cut(find(str(tmp_path))[0], None, None, 10)


def test_parquet_whose_pages_are_damaged_is_a_typed_error_with_the_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": tiny_texts(400)}), tmp_path / "a.parquet", row_group_size=100, compression="snappy")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    middle = len(data) // 2
    data[middle - 300 : middle + 300] = b"\xff" * 600
    (tmp_path / "a.parquet").write_bytes(data)
    sources, parts = cut(find(str(tmp_path))[0], None, None, 100)
    reader = Reader(WANTED)
    assert len(reader(sources[0], parts[0]).texts) == 100
    with pytest.raises(BadInput, match=r"a.parquet rows \d+ to \d+: cannot be read as parquet"):
        for part in parts:
            reader(sources[0], part)


def test_numbers_are_no_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="holds int64, expected strings"):
        cut(find(str(tmp_path))[0], None, None, 10)


def test_folders_and_patterns_stand_for_their_files(tmp_path: Path) -> None:
    for name in ("in/b.jsonl", "in/deep/a.csv", "in/_work/c.jsonl", "in/.hidden.csv", "in/readme.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\nx\n")
    found, others = find(str(tmp_path / "in"))
    assert [source.name for source in found] == ["b.jsonl", "deep/a.csv"] and others == 1
    assert [source.name for source in find(str(tmp_path / "in" / "**" / "*.csv"))[0]] == ["deep/a.csv"]
    with pytest.raises(BadInput, match="no data files"):
        find(str(tmp_path / "in" / "*.parquet"))
    with pytest.raises(BadConfig, match="holds the input"):
        check_apart(found, tmp_path / "in")
    assert output_format(found, None) == "jsonl" and output_format(found[1:], None) == "csv"


def test_every_format_holds_the_same_answers(tmp_path: Path) -> None:
    classifier = tiny_classifier()
    pq.write_table(pa.table({"label": [1, 2, 3], "text": ["good film", None, "bad"], "id": [7, 8, 9]}), tmp_path / "a.parquet")
    sources, _, (rows,) = read_all(tmp_path / "a.parquet", 10)
    answers = answer(classifier, "a.parquet", rows, tokens=True)
    names = carried_names(sources[0], classifier.labels, tokens=True, with_text=False)
    for to in ("jsonl", "csv", "parquet"):
        assert write_answers(tmp_path / f"out.{to}", to, answers, names) == (tmp_path / f"out.{to}").stat().st_size
    by_json = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    by_parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert by_json == by_parquet
    wanted = classifier(["good film", "bad"])
    assert list(by_json[0]) == ["source_label", "id", "file", "row", *answer_columns(classifier.labels, tokens=True)]
    for row, prediction, place in zip(by_json, wanted, (1, 3), strict=True):
        assert (row["file"], row["row"], row["id"], row["source_label"]) == ("a.parquet", place, 6 + place, place)
        assert (row["label"], row["n_tokens"]) == (prediction.label, len(prediction.tokens))
        assert row["score"] == pytest.approx(prediction.score, abs=1e-6)  # float32, another batch
        assert (row["tokens"], row["kept"]) == (prediction.tokens, prediction.kept)
    with (tmp_path / "out.csv").open(newline="") as stream:
        by_csv = list(csv.DictReader(stream))
    assert [(row["label"], float(row["score"]), row["id"]) for row in by_csv] == [
        (row["label"], row["score"], str(row["id"])) for row in by_json
    ]


def test_any_json_column_fits_into_parquet_as_a_string(tmp_path: Path) -> None:
    lines = '{"text": "a", "x": {"y": [1]}, "z": "\\ud800"}\n{"text": "b"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    sources, _, (rows,) = read_all(tmp_path / "a.jsonl", 10, Wanted(with_text=True, fixed=True))
    classifier = tiny_classifier()
    names = carried_names(sources[0], classifier.labels, tokens=False, with_text=True)
    write_answers(tmp_path / "out.parquet", "parquet", answer(classifier, "a.jsonl", rows), names)
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (found["text"], found["x"], found["z"]) == (["a", "b"], ['{"y": [1]}', None], ["\\ud800", None])


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x"
    assert write_whole(target, lambda stream: stream.write(b"one")) == 3

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdaplerError, match=r"No space left on device.*finished parts stay"):
        write_whole(target, lambda stream: stream.write(b"two"))
    assert target.read_bytes() == b"one" and [path.name for path in tmp_path.iterdir()] == ["x"]


def plan(tmp_path: Path, **changes: Any) -> tuple[Manifest, list[Source]]:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    sources, parts = cut(find(str(tmp_path / "in"))[0], None, None, 1)
    settings = Settings(model="m", to="jsonl", **changes)
    return Manifest(settings=settings, labels=("x",), sources=tuple(sources), parts=tuple(parts)), sources


def test_a_plan_is_kept_and_other_settings_or_files_are_refused(tmp_path: Path) -> None:
    manifest, sources = plan(tmp_path)
    folder = Folder(tmp_path / "out")
    with folder.locked():
        assert folder.manifest() is None
        folder.begin(manifest)
        assert folder.manifest() == manifest
        with pytest.raises(BadConfig, match="another run"), folder.locked():
            pass
    check_same(manifest, manifest.settings, sources, folder.path)
    for change, said in {"model": "another model", "max_length": "--max-length unset, not 9", "stride": "--stride"}.items():
        other = manifest.settings.model_copy(update={change: 9})
        with pytest.raises(BadConfig, match=said):
            check_same(manifest, other, sources, folder.path)
    changed = [sources[0].model_copy(update={"modified_ns": 1})]
    for files, said in ((changed, "has been changed"), ([], "is gone"), ([*sources, *changed], "order|changed|new")):
        with pytest.raises(BadConfig, match=said):
            check_same(manifest, manifest.settings, files, folder.path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(BadConfig, match=r"thesis.txt"):
        Folder(tmp_path / "mine").manifest()


def test_a_part_counts_as_finished_only_with_its_files(tmp_path: Path) -> None:
    manifest, _ = plan(tmp_path)
    folder, part = Folder(tmp_path / "out"), manifest.parts[1]
    done = Done(part=1, rows=1, bad=0, tokens=3, tokens_kept=3, truncated=0, flops=1, flops_full=1, bytes=4)
    with folder.locked():
        folder.file(part, "jsonl").write_bytes(b"1234")
        assert folder.finished(manifest) == {}
        folder.finish(part, done)
        assert folder.finished(manifest) == {1: done}
        folder.file(part, "jsonl").write_bytes(b"123")
        assert folder.finished(manifest) == {}


def test_a_models_digest_is_of_its_files(tmp_path: Path) -> None:
    for name, reduced in (("reduced", True), ("plain", False)):
        tiny_classifier(layers=1, reduced=reduced).save_pretrained(tmp_path / name)
    before = model_digest(tmp_path / "plain")
    assert before != model_digest(tmp_path / "reduced")
    config = tmp_path / "plain" / "config.json"
    config.write_text(config.read_text() + " ")
    assert model_digest(tmp_path / "plain") != before


@pytest.mark.parametrize(
    ("total", "cluster", "workers", "share"),
    [
        (3, Cluster(workers=2), 2, 1),
        (2, Cluster(workers=2), 2, 0.5),
        (64, Cluster(address="auto"), 63, 1),
        (64, Cluster(address="auto", threads=4), 15, 4),
        (1, Cluster(address="auto"), 1, 0.5),
    ],
)
def test_actors_never_take_every_cpu(total: float, cluster: Cluster, workers: int, share: float) -> None:
    assert pool(total, cluster, parts=1000) == (workers, share)
    assert workers * share < total
    assert pool(total, cluster, parts=1)[0] == 1


def test_ray_is_asked_for_by_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adapler\[ray\]'"):
        ray_engine._import_ray()
