"""The command line as users meet it: real processes on a tiny real model."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adapler import __version__
from adapler.classifier import Classifier
from adapler.cli import VERBS
from adapler.cli.predict import Format
from adapler.data.files import FORMATS
from adapler.prediction import Prediction
from tests.tiny import tiny_classifier, tiny_texts

TEXTS = [*tiny_texts(40), "", "unbelievably — naïve 数据", "the movie " * 400]
PAIRS = list(zip(tiny_texts(12, seed=1), tiny_texts(12, seed=2), strict=True))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
SECONDS = 120  # a process that takes longer hangs
WINDOW = 2048  # texts that are read before the first are answered


def adapler(*arguments: str | Path, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "adapler", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        cwd=cwd,
        env=ENVIRONMENT,
        check=False,
    )


def start(*arguments: str | Path, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "adapler", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=ENVIRONMENT,
        preexec_fn=_hear_interrupts,
    )


def _hear_interrupts() -> None:
    """Tests that were started in the background ignore Ctrl-C, and would hand that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def in_process_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `main()` and then asks what was imported."""
    code = f"""
import sys
sys.argv = {["adapler", *arguments]!r}
from adapler.cli import main
try:
    main()
except SystemExit as leaving:
    heavy = sorted({{"torch", "transformers", "rich"}} & set(sys.modules))
    print("imported:", *heavy)
    sys.exit(leaving.code)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_classifier().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    return path


def check_rows(rows: list[dict[str, Any]], expected: list[Prediction]) -> None:
    assert len(rows) == len(expected)
    for row, prediction in zip(rows, expected, strict=True):
        assert row["label"] == prediction.label
        assert row["score"] == pytest.approx(prediction.score, abs=1e-6)  # float32, another process
        assert row["scores"] == pytest.approx(prediction.scores, abs=1e-6)
        assert row["n_tokens"] == len(prediction.tokens)
        assert row["tokens_kept"] == prediction.lengths
        assert (row["flops"], row["flops_full"]) == (prediction.flops, prediction.flops_full)
        assert (row["truncated"], row["windows"]) == (prediction.truncated, prediction.windows)
        assert row["tokens"] == prediction.tokens
        assert row["kept"] == prediction.kept


def test_rows_are_the_classifiers_predictions(model: Path, lines: Path) -> None:
    done = adapler("predict", model, lines, "--tokens", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = Classifier.from_pretrained(model)(TEXTS)
    check_rows(rows, expected)
    with pytest.raises(AssertionError):  # rows in another order would be noticed
        check_rows(rows, expected[::-1])
    speedup = sum(p.flops_full for p in expected) / sum(p.flops for p in expected)
    assert done.stderr.startswith(f"adapler: {len(TEXTS)} texts in ")
    assert done.stderr.endswith(f" s, flops_speedup {speedup:.2f}, 1 cut at 512 tokens\n")
    assert done.stderr.count("\n") == 1


def test_named_words_and_windows_are_the_classifiers(model: Path, lines: Path) -> None:
    options = ("--max-length", "32", "--stride", "8", "--always-keep", "good", "--always-keep", r"/fil\w+/")
    done = adapler("predict", model, lines, "--tokens", *options)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    named = Classifier.from_pretrained(model, max_length=32, stride=8, always_keep=["good", re.compile(r"fil\w+")])
    check_rows(rows, named(TEXTS))
    assert max(row["windows"] for row in rows) > 1 and not any(row["truncated"] for row in rows)
    with pytest.raises(AssertionError):
        check_rows(rows, Classifier.from_pretrained(model, max_length=32, stride=8)(TEXTS))


def test_answers_as_the_glue_server_takes_them(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("a great film\nso dull\n")
    done = adapler("predict", model, source, "--to", "glue", "--quiet")
    wanted = [answer.label.removeprefix("LABEL_") for answer in Classifier.from_pretrained(model)(["a great film", "so dull"])]
    assert done.stdout == f"index\tprediction\n0\t{wanted[0]}\n1\t{wanted[1]}\n"


def test_pairs_to_csv_with_a_summary(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "pairs.csv.gz", tmp_path / "out.csv"
    with gzip.open(source, "wt", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("premise", "hypothesis"), *PAIRS])
    out.write_text("what was here before")
    out.chmod(0o640)
    options = ("--text", "premise", "--pair", "hypothesis", "--max-length", "16", "--token-budget", "64")
    done = adapler("predict", model, source, *options, "--to", "csv", "--out", out, "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    expected = Classifier.from_pretrained(model, max_length=16)(PAIRS)
    header = ["label", "score", "n_tokens", "tokens_kept_last", "flops", "flops_full", "truncated"]
    with out.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == [*header, "score_LABEL_0", "score_LABEL_1", "score_LABEL_2"]
    assert len(rows) == 1 + len(PAIRS)
    for row, prediction in zip(rows[1:], expected, strict=True):
        counts = [len(prediction.tokens), prediction.lengths[-1], prediction.flops, prediction.flops_full]
        assert [row[0], *row[2:7]] == [prediction.label, *map(str, counts), str(prediction.truncated).lower()]
        numbers = [prediction.score, *prediction.scores.values()]
        assert [float(row[1]), *map(float, row[7:])] == pytest.approx(numbers, abs=1e-6)  # float32, another process
    summary = json.loads(done.stdout)
    assert summary["texts"] == len(PAIRS)
    assert summary["truncated"] == sum(prediction.truncated for prediction in expected) > 0
    assert summary["flops_speedup"] == summary["flops_full"] / summary["flops"] > 1
    assert summary["out"] == str(out)
    assert out.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "pairs.csv.gz"]


def test_a_plain_model_runs_at_full_length(tmp_path: Path) -> None:
    tiny_classifier(reduced=False).save_pretrained(tmp_path / "plain")
    done = adapler("predict", tmp_path / "plain", "-", "--format", "jsonl", stdin='"a good film"\n{"text": "a bad film"}\n')
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["tokens_kept"] for row in rows] == [[5] * 4] * 2
    assert "2 texts" in done.stderr
    assert "flops_speedup 1.00" in done.stderr


def test_a_bad_row_in_a_stream_leaves_no_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("what was here before")
    stdin = "".join(json.dumps(text) + "\n" for text in tiny_texts(WINDOW, longest=3)) + "{}\n"
    done = adapler("predict", model, "-", "--format", "jsonl", "--out", out, "--json", stdin=stdin)
    assert done.returncode == 4
    assert done.stderr == f"adapler: error: {json.loads(done.stdout)['error']}\n"
    assert done.stderr.startswith(f"adapler: error: standard input line {WINDOW + 1}: no column 'text'")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert out.read_text() == "what was here before"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_file(number: signal.Signals, code: int, model: Path, tmp_path: Path) -> None:
    process = start("predict", model, "-", "--out", tmp_path / "out.jsonl")
    assert process.stdin is not None
    process.stdin.write("".join(text + "\n" for text in tiny_texts(WINDOW, longest=3)).encode())
    process.stdin.flush()
    end = time.monotonic() + SECONDS
    while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)  # until the first window is answered and the process waits for more
    assert any(path.stat().st_size for path in tmp_path.iterdir())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert b"Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_is_not_an_error_message(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "many.txt"
    source.write_text("".join(text + "\n" for text in tiny_texts(1000, longest=3)))
    process = start("predict", model, source)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    assert process.stdout.readline().startswith(b'{"label"')
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(SECONDS) == 141
    process.stderr.close()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal to show a bar on")
def test_progress_is_shown_only_to_a_terminal(model: Path, lines: Path) -> None:
    terminal, stderr = os.openpty()
    process = start("predict", model, lines, stderr=stderr)
    os.close(stderr)
    stdout, _ = process.communicate(timeout=SECONDS)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # what a terminal answers when its other end is closed
            break
    os.close(terminal)
    assert process.returncode == 0
    assert f"{len(TEXTS)}/{len(TEXTS)}".encode() in shown
    assert b"texts/s" in shown
    assert b"flops_speedup" in shown
    assert len(stdout.splitlines()) == len(TEXTS)


@pytest.mark.parametrize("options", [("--device", "abacus"), ("--max-length", "513"), ("--stride", "510")])
def test_settings_only_torch_can_judge_are_usage_errors(options: tuple[str, str], model: Path, lines: Path) -> None:
    done = adapler("predict", model, lines, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("adapler: error: ")
    assert done.stderr.count("\n") == 1


def test_importing_adapler_imports_nothing_heavy() -> None:
    code = "import adapler, sys; assert not {'torch', 'transformers', 'numpy', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), *((verb, "--help") for verb in VERBS)])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = in_process_without_torch(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("imported:\n")


def test_help_and_version() -> None:
    assert adapler("--version").stdout == f"adapler {__version__}\n"
    shown = adapler("--help").stdout
    for code, meaning in {0: "ok", 1: "failure", 2: "usage or config", 3: "bad model folder", 4: "bad input data"}.items():
        assert f"  {code}    {meaning}\n" in shown
    assert "  5    a quality gate not met\n" in shown
    for verb in VERBS:
        assert f"  {verb} " in shown


def test_info_describes_a_model_without_torch(model: Path) -> None:
    done = in_process_without_torch("info", str(model), "--json")
    description, imported = done.stdout.splitlines()
    assert imported == "imported:"
    opened = Classifier.from_pretrained(model)
    assert opened.reducer is not None
    assert json.loads(description) == {
        "path": str(model),
        "model_type": "bert",
        "layers": 4,
        "hidden_size": 32,
        "labels": opened.labels,
        "max_length": 512,
        "parameters": sum(p.numel() for p in opened.backbone.model.parameters()),
        "reduced": True,
        "method": "adapler",
        "settings": {"width": 32, "eta": 0.6, "theta": 1.0, "beta": 0.1, "site": "layer_input"},
        "reduction_parameters": sum(p.numel() for p in opened.reducer.parameters()),
        "format_version": 1,
        "eta": [0.6] * 4,
        "theta": [1.0] * 3,
    }
    shown = adapler("info", model)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout  # no colours where nobody sees them
    for word in ("bert", "LABEL_0, LABEL_1, LABEL_2", "width 32", "layer", "eta", "theta"):
        assert word in shown.stdout


def test_info_of_a_plain_model(tmp_path: Path) -> None:
    tiny_classifier(labels=2, reduced=False).save_pretrained(tmp_path / "plain")
    description = json.loads(adapler("info", tmp_path / "plain", "--json").stdout)
    assert description["labels"] == ["LABEL_0", "LABEL_1"]
    assert description["max_length"] == 512
    assert description["reduced"] is False
    assert "method" not in description
    assert adapler("info", tmp_path / "plain").returncode == 0


def damage(folder: Path, how: str) -> Path:
    if how == "missing":
        return folder / "nothing\nhere"
    if how == "a file":
        return folder / "config.json"
    if how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "cut":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    elif how == "changed":
        (folder / "reduction.json").write_text((folder / "reduction.json").read_text().replace("0.6", "0.7"))
    return folder


@pytest.mark.parametrize("verb", ["predict", "info"])
@pytest.mark.parametrize("how", ["missing", "a file", "empty", "cut", "changed"])
def test_a_bad_folder_is_one_line_and_three_before_torch_is_imported(
    verb: str, how: str, model: Path, lines: Path, tmp_path: Path
) -> None:
    folder = damage(Path(shutil.copytree(model, tmp_path / "model")), how)
    arguments = (str(folder), str(lines)) if verb == "predict" else (str(folder),)
    done = in_process_without_torch(verb, *arguments, "--json")
    error, imported = done.stdout.splitlines()
    assert done.returncode == 3
    assert imported == "imported:"
    assert json.loads(error)["error_type"] == "BadModel"
    assert done.stderr == f"adapler: error: {json.loads(error)['error']}\n".replace("nothing\nhere", "nothing here")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, (), "data.csv: cannot be opened"),
        ("", (), "data.csv: is empty"),
        ("text,label\nfine,1\nnot,so,fine\n", (), "data.csv line 3: 3 fields, the header has 2 ('text', 'label')"),
        ("a,b\n1,2\n", (), "data.csv: no column 'text'; there are: 'a', 'b'"),
        ("a,b\n1,2\n", ("--text", "a", "--pair", "c"), "data.csv: no column 'c'; there are: 'a', 'b'"),
        ("text\nfine\n", ("--format", "jsonl"), "data.csv line 1: not JSON"),
    ],
)
def test_bad_input_is_one_line_and_four_before_torch_is_imported(
    content: str | None, options: tuple[str, ...], message: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_text(content)
    done = in_process_without_torch("predict", str(model), str(path), "--out", str(tmp_path / "out"), *options)
    assert (done.returncode, done.stdout) == (4, "imported:\n")
    assert done.stderr.startswith(f"adapler: error: {tmp_path}/{message}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--tokens", "--to", "csv"),
        ("--out", "/nowhere/at/all"),
        ("--out", "/"),
        ("--out", "{lines}"),
        ("--always-keep", "/(/"),
        ("--always-keep", "good", "--always-keep", " "),
    ],
)
def test_settings_that_cannot_work_are_one_line_and_two(options: tuple[str, ...], model: Path, lines: Path) -> None:
    done = in_process_without_torch("predict", str(model), str(lines), *(option.format(lines=lines) for option in options))
    assert (done.returncode, done.stdout) == (2, "imported:\n")
    assert done.stderr.startswith("adapler: error: ")
    assert done.stderr.count("\n") == 1
    assert lines.read_text(encoding="utf-8").startswith(TEXTS[0])


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict",),
        ("predict", "m", "x", "--to", "xml"),
        ("predict", "m", "x", "--max-length", "2"),
        ("predcit", "m"),
        ("--no",),
    ],
)
def test_usage_errors_are_two(arguments: tuple[str, ...]) -> None:
    done = adapler(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: adapler" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(model: Path, lines: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "adapler", "predict", str(model), str(lines)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"adapler: error: cannot write standard output (No space left on device)")
    assert done.stderr.count(b"\n") == 1


def test_an_unexpected_error_keeps_its_traceback(model: Path) -> None:
    code = f"""
import sys
import adapler.folder
def broken(path): raise RuntimeError("a bug")
adapler.folder.check_folder = broken
sys.argv = ["adapler", "info", {str(model)!r}]
from adapler.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: a bug\n")


def test_the_formats_of_the_flag_are_those_that_can_be_read() -> None:
    assert [*Format] == ["auto", *FORMATS]
