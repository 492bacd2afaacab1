"""The report page: complete, readable without its parts, and inert whatever the texts hold."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from jinja2 import Environment, PackageLoader
from typer.testing import CliRunner

from adapler.cli.train import train as train_command
from adapler.config import TrainConfig, build_config
from adapler.report import page
from adapler.report.heatmap import Gap, Word, picture
from adapler.report.page import write_report
from adapler.report.svg import Series, line_chart
from adapler.training.progress import Silent
from adapler.training.run import train
from adapler.training.session import Progress
from tests.planted import PLANTED, planted_settings, write_planted_data

LAYERS = 3
HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(2)</script>",
    '"><img src=http://evil.example/x onerror=alert(3)>',
    "' onmouseover='alert(4)",
    "</bdi></div><iframe src='https://evil.example'>",
    "{{ 7 * 7 }}",
    "&lt;b&gt;",
    "‮txet",
    "<!--",
    "]]>",
)
ACTIVE = {
    "script",
    "iframe",
    "object",
    "embed",
    "img",
    "link",
    "form",
    "base",
    "audio",
    "video",
    "foreignobject",
    "animate",
    "use",
}
VOID = {"meta", "br"}


class Page(HTMLParser):
    """What a page holds, as a browser would see it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]


def story(tokens: list[str], predicted: str = "good") -> dict[str, Any]:
    """A text that loses every second of its tokens in front of each layer."""
    alive = list(range(len(tokens)))
    scores, kept = [], []
    for _ in range(LAYERS):
        scores.append([round(1 / len(alive), 6) if place in alive else None for place in range(len(tokens))])
        alive = alive[::2]
        kept.append(alive)
    return {
        "tokens": tokens,
        "scores": scores,
        "kept": kept,
        "label": "good",
        "predicted": predicted,
        "predicted_full": "good",
    }


def split(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "score_full": 0.9,
        "score": 0.89,
        "tokens": 20.0,
        "lengths": [12.0, 8.5, 4.25],
        "flops_speedup": 2.5,
        "flops_speedup_executed": 2.25,
        "flops_speedup_padded": 3.5,
        "flops_speedup_authors": None,
        "loss_points": 1.0,
    }


def reduce_row(epoch: int) -> dict[str, Any]:
    return {
        "phase": "reduce",
        "epoch": epoch,
        "score": 0.89,
        "flops_speedup": 1.5 + epoch,
        "lengths": [12.0, 8.5, 4.25],
        "lambda": 20.0 * 20**epoch,
        "phi": 0.02,
        "eta": [0.5, 0.6, 0.7],
        "theta": [1.0, 1.1],
        "label_loss": 0.3,
        "contribution_loss": 1.0,
        "length_loss": 30.0,
    }


@pytest.fixture
def report() -> dict[str, Any]:
    """A small report of the kind `training/run.py` writes."""
    return {
        "account": "accuracy 89.0 on 50 test texts at 2.50x fewer FLOPs.",
        "task": "reviews",
        "metric": "accuracy",
        "n_train": 100,
        "within_margin": True,
        "kept_epoch": 1,
        "kept_scale": 0.9,
        "splits": {"dev": split(40), "test": split(50)},
        "curve": [
            {"scale": scale, "score": 0.9 - 0.01 * scale, "flops_speedup": 2.5 * scale, "flops_speedup_authors": 3.0}
            for scale in (0.5, 1.0, 1.5)
        ],
        "examples": {
            "sample": [story(["[CLS]", "charm", "##ing", "tale", "[SEP]"])],
            "errors_by_removal": [story(["[CLS]", "dreary", "[SEP]"], predicted="bad")],
        },
        "history": [
            {"phase": "finetune", "epoch": 0, "score": 0.8, "label_loss": 0.6},
            *(reduce_row(epoch) for epoch in range(3)),
        ],
        "notes": ["3 texts of dev are in train as well"],
        "config": {"model": "minilm", "steer": {"max_loss": 1.0}, "run": {"seed": 0, "forgotten": [1]}},
        "machine": "a machine",
        "threads": 2,
        "versions": {"python": "3.11"},
        "commit": "0123abc",
        "date": "2026-11-15",
    }


def written(report: dict[str, Any], folder: Path, *, examples: bool = True) -> Page:
    """The page of a report, checked for what must hold of every page."""
    write_report(report, folder / "report.html", examples=examples)
    assert [file.name for file in folder.iterdir()] == ["report.html"]
    found = Page((folder / "report.html").read_text(encoding="utf-8"))
    check_inert(found)
    return found


def check_inert(found: Page) -> None:
    """Nothing runs, nothing is fetched, everything that was opened is closed."""
    assert found.open == []
    for tag, attrs in found.elements:
        assert tag not in ACTIVE, tag
        for name, value in attrs.items():
            assert not name.startswith("on"), f"{tag} has {name}"
            assert name not in ("src", "srcset", "srcdoc", "style", "xlink:href", "action"), f"{tag} has {name}"
            assert name != "href" or (value or "").startswith("#"), f"{tag} points to {value}"
    style = found.source.partition("<style>")[2].partition("</style>")[0]
    assert style.rstrip().endswith("}") and "url(" not in style and "@import" not in style


def test_everything_of_the_report_is_on_the_page(report: dict[str, Any], tmp_path: Path) -> None:
    found = written(report, tmp_path)
    for words in (
        report["account"],
        *("score_full", "loss_points", "flops_speedup_executed", "flops_speedup_padded"),
        *("89.00", "2.25x", "3.50x", "+1.00"),
        "epoch 2 of 3",
        "multiplied by 0.9",
        *("this model", "full model"),
        *("charm", "dreary"),
        *("3 texts of dev", "run.seed", "run.forgotten", "a machine", "3.11", "0123abc", "2026-11-15"),
        "Of the head's weights, dropout",  # the setting's own description
    ):
        assert words in found.text, words
    assert "flops_speedup_authors" not in re.sub("flops_speedup_authors(?=3)", "", found.text)  # no split has it


def test_every_chart_says_what_it_shows(report: dict[str, Any], tmp_path: Path) -> None:
    charts = [attrs for tag, attrs in written(report, tmp_path).elements if tag == "svg"]
    assert len(charts) == 2 + 1 + 9
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 10 for attrs in charts)


def test_tables_have_headers_and_headings_do_not_skip(report: dict[str, Any], tmp_path: Path) -> None:
    found = written(report, tmp_path)
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in found.elements if tag == "th")
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_hostile_texts_are_shown_and_do_nothing(report: dict[str, Any], tmp_path: Path) -> None:
    harmless = written(copy.deepcopy(report), tmp_path)
    hostile = ["[CLS]", *HOSTILE, *(f"##{text}" for text in HOSTILE)]
    report["examples"]["errors_by_removal"] = [story(hostile, predicted=HOSTILE[0]) | {"label": HOSTILE[1]}]
    report["task"] = report["account"] = report["machine"] = report["config"]["model"] = HOSTILE[2]
    report["notes"] = list(HOSTILE)
    report["metric"] = report["versions"]["torch"] = HOSTILE[4]
    found = written(report, tmp_path)
    assert all(text in found.text for text in HOSTILE)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in harmless.elements}


def test_an_unescaped_text_would_be_noticed(report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        *, loader: PackageLoader, autoescape: bool, undefined: Any, trim_blocks: bool, lstrip_blocks: bool
    ) -> Environment:
        return Environment(loader=loader, autoescape=False, trim_blocks=trim_blocks, lstrip_blocks=lstrip_blocks)

    monkeypatch.setattr(page, "Environment", trusting)
    report["examples"]["sample"] = [story(["[CLS]", HOSTILE[0]])]
    with pytest.raises(AssertionError, match="script"):
        written(report, tmp_path)


def test_no_text_is_on_the_page_when_examples_are_left_out(report: dict[str, Any], tmp_path: Path) -> None:
    report["examples"]["sample"].append(story(["[CLS]", "secret", "##ive", "[SEP]"]))
    assert "secret" in written(report, tmp_path).source
    found = written(report, tmp_path, examples=False)
    assert not [word for word in ("secret", "charm", "tale", "dreary", "[CLS]") if word in found.source]
    assert "left out" in found.text and not found.with_class("story")


def test_a_report_without_a_test_split(report: dict[str, Any], tmp_path: Path) -> None:
    del report["splits"]["test"]
    found = written(report, tmp_path)
    assert "test: tokens" not in found.text and "dev: tokens" in found.text


def test_no_errors_by_removal_is_said(report: dict[str, Any], tmp_path: Path) -> None:
    report["examples"]["errors_by_removal"] = []
    found = written(report, tmp_path)
    assert "None: whatever the full model has right" in found.text and "dreary" not in found.text


def test_gold_full_and_reduced_answers_stand_by_each_error(report: dict[str, Any], tmp_path: Path) -> None:
    found = written(report, tmp_path)
    assert "gold good · full model good\n ✓ · reduced bad\n ✗" in found.text


def test_a_long_text_runs_on_and_shows_what_is_left(report: dict[str, Any], tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(300)]
    report["examples"]["sample"] = [story(words)]
    found = written(report, tmp_path)
    assert len(found.with_class("flow")) == 1
    assert all(word in found.text for word in words)
    assert "layer 1 150/300" in found.text and "layer 3 38/300" in found.text


def test_a_history_of_one_epoch(report: dict[str, Any], tmp_path: Path) -> None:
    report["history"], report["kept_epoch"] = [reduce_row(0)], 0
    found = written(report, tmp_path)
    assert "epoch 1 of 1" in found.text and found.count("svg") == 12


def test_an_older_report_without_curve_and_examples(report: dict[str, Any], tmp_path: Path) -> None:
    for key in ("curve", "examples", "kept_scale"):
        del report[key]
    for result in report["splits"].values():
        del result["tokens"]
    found = written(report, tmp_path)
    assert "holds no curve" in found.text and "holds no examples" in found.text


def test_numbers_that_are_none_do_not_spoil_a_chart(report: dict[str, Any], tmp_path: Path) -> None:
    report["history"][1]["label_loss"] = report["history"][2]["contribution_loss"] = float("nan")
    report["history"][3]["length_loss"] = float("inf")
    for row in report["history"][1:]:
        row["phi"] = 0.0  # has no place on a logarithmic axis
    charts = re.findall("<svg.*?</svg>", written(report, tmp_path).source)
    assert charts and not any("nan" in chart or "inf" in chart for chart in charts)


def test_the_old_page_stays_if_the_new_one_fails(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(report, tmp_path)
    before = (tmp_path / "report.html").read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_report(report, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_page_does_not_change_the_report(report: dict[str, Any], tmp_path: Path) -> None:
    before = json.dumps(report)
    written(report, tmp_path)
    assert json.dumps(report) == before


def test_pieces_of_a_word_stay_together() -> None:
    first = picture(story(["[CLS]", "un", "##flinch", "##ing", "##", "[SEP]"])).layers[0]
    spelt = [[piece.text for piece in word.pieces] for word in first.parts if isinstance(word, Word)]
    assert spelt == [["[CLS]"], ["un", "flinch", "ing"], ["##"], ["[SEP]"]]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["<s>", "un", "flinch", "ing", "Ġtale", "!", "</s>"], [["<s>"], ["un", "flinch", "ing"], ["tale", "!"], ["</s>"]]),
        (["[CLS]", "Ġna", "ÃŃ", "ve", "Ġfilm", "Ċ", "[SEP]"], [["[CLS]"], ["na", "í", "ve"], ["film", "Ċ"], ["[SEP]"]]),
        (["<s>", "▁un", "flinch", "ing", "▁", "tale", "</s>"], [["<s>"], ["un", "flinch", "ing"], ["▁", "tale"], ["</s>"]]),
        (["[CLS]", "▁", "un", "##kind", "▁", "[SEP]"], [["[CLS]"], ["▁"], ["un", "kind"], ["▁"], ["[SEP]"]]),
    ],
)
def test_words_are_found_in_every_spelling(tokens: list[str], words: list[list[str]]) -> None:
    first = picture(story(tokens)).layers[0]
    assert [[piece.text for piece in word.pieces] for word in first.parts if isinstance(word, Word)] == words


def test_shades_are_shares_and_fates_are_told() -> None:
    told = story(["a", "b", "c", "d"]) | {
        "scores": [[0.7, 0.05, 0.05, 0.2], [0.9, None, None, 0.1]],
        "kept": [[0, 3], [0]],
    }
    rows = [[piece for word in layer.parts for piece in word.pieces] for layer in picture(told).layers]  # type: ignore[union-attr]
    assert [[piece.fate for piece in row] for row in rows] == [
        ["kept", "left", "left", "kept"],
        ["kept", "gone", "gone", "left"],
    ]
    assert [piece.level for piece in rows[0]] == [4, 0, 0, 2]  # 2.8, 0.2, 0.2 and 0.8 equal shares
    assert [piece.level for piece in rows[1]] == [3, None, None, 0]  # of two tokens: 1.8 and 0.2


def test_a_long_text_draws_what_is_gone_together() -> None:
    last = picture(story([f"word{number}" for number in range(300)])).layers[-1]
    gaps = [part.tokens for part in last.parts if isinstance(part, Gap)]
    pieces = sum(len(part.pieces) for part in last.parts if isinstance(part, Word))
    assert sum(gaps) + pieces == 300 and len(gaps) > 1


@pytest.mark.parametrize(
    ("words", "rtl"),
    [(["שלום"], True), (["هذا", "##الفيلم"], True), (["good", "film"], False), (["שלום", "international"], False)],
)
def test_the_direction_is_that_of_most_letters(words: list[str], rtl: bool) -> None:
    assert picture(story(["[CLS]", *words, "[SEP]"])).rtl is rtl


def test_names_in_a_chart_are_escaped() -> None:
    drawn = str(line_chart("<b>", [Series([(0.0, 1.0)], name="<script>")], [(0.0, "<i>")], "<u>"))
    assert not [tag for tag in ("<b>", "<script>", "<i>", "<u>") if tag in drawn] and "&lt;script&gt;" in drawn


def test_a_run_without_examples_keeps_texts_out_of_both_reports(tmp_path: Path) -> None:
    settings = planted_settings(tmp_path)
    settings["data"]["source"] = str(write_planted_data(tmp_path / "few", train=64, dev=20, test=0))
    (tmp_path / "few" / "test.jsonl").unlink()
    settings["finetune"]["epochs"] = settings["reduce"]["epochs"] = 1
    out = tmp_path / "run"
    config = build_config(settings, {"run": {"report_examples": False}})
    assert "examples" not in train(config, out, Silent())
    texts = (out / "report.json").read_text() + (out / "report.html").read_text()
    assert not [word for word in ("[CLS]", "charming", "tedious", *PLANTED) if word in texts]
    check_inert(Page((out / "report.html").read_text()))
    (out / "report.html").unlink()  # as after a kill between the two files
    train(config, out, Silent())
    assert "left out" in (out / "report.html").read_text()


@pytest.mark.parametrize(("flags", "wanted"), [([], True), (["--no-examples"], False)])
def test_the_flag_sets_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], wanted: bool) -> None:
    asked: list[bool] = []

    def note(config: TrainConfig, out: Path, progress: Progress, *, finetuned_from: Path | None) -> dict[str, Any]:
        asked.append(config.run.report_examples)
        return {"account": ""}

    monkeypatch.setattr("adapler.training.run.train", note)
    command = typer.Typer()
    command.command()(train_command)
    done = CliRunner().invoke(command, ["--out", str(tmp_path / "run"), "--data", "x", "--quiet", *flags])
    assert (done.exit_code, asked) == (0, [wanted]), done.output
