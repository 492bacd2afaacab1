"""Differences from full length: all counted, told right from wrong, and what is said to restore an answer does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adapler.classifier import Classifier
from adapler.cli import app
from adapler.data.text import Text
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.evaluation.diff import Difference, Removed, differences, removed, restoring
from adapler.points import Operating
from adapler.prediction import Prediction
from tests.tiny import tiny_classifier, tiny_texts
from tests.unit.test_explain import small
from tests.unit.test_report import Page, check_inert

TEXTS: list[Text] = [*tiny_texts(60, seed=4), ("a good film", "unwatchable, a waste of time")]


@pytest.fixture(scope="module")
def made() -> Classifier:
    return tiny_classifier(eta=0.9, spread=2.0)


def unit(name: str) -> Removed:
    return Removed(name, (ord(name),), (0, 0, 1))


class Asked:
    """Answers `full` once the needed letters are all back; each letter helps by its worth."""

    def __init__(self, needed: Sequence[str], worth: dict[str, float]) -> None:
        self.needed, self.worth = [set(one) for one in needed], worth
        self.sets: list[set[str]] = []

    def __call__(self, sets: Sequence[Sequence[Removed]]) -> list[Prediction]:
        answers = []
        for given in sets:
            names = {each.text for each in given}
            self.sets.append(names)
            back = any(one <= names for one in self.needed)
            sure = 0.9 if back else 0.01 * sum(self.worth.get(name, 0.0) for name in names)
            label = "full" if back else "reduced"
            answers.append(replace(small().prediction, label=label, scores={"full": sure, "reduced": 1 - sure}))
        return answers


def letters(found: Sequence[Removed]) -> str:
    return "".join(sorted(each.text for each in found))


def test_a_single_word_is_found_and_the_first_by_contribution_is_taken() -> None:
    asked = Asked(["c", "b"], {})
    found, tried = restoring([unit(name) for name in "abcd"], asked, "full", 10)
    assert letters(found) == "b" and tried == 4


def test_a_pair_is_grown_from_what_helps_most() -> None:
    asked = Asked(["bd"], {"b": 3.0, "d": 2.0, "a": 1.0})
    found, tried = restoring([unit(name) for name in "abcd"], asked, "full", 100)
    assert letters(found) == "bd"
    assert tried == len(asked.sets) == 4 + 3 + 2  # alone; beside b; one thinning of each


def test_words_that_are_not_needed_are_left_out_again() -> None:
    asked = Asked(["bd"], {"a": 9.0, "b": 3.0, "d": 2.0})  # a helps, but is not needed
    found, _ = restoring([unit(name) for name in "abcd"], asked, "full", 100)
    assert letters(found) == "bd"


def test_with_few_tries_more_come_back_at_once() -> None:
    names = "abcdefgh"
    asked = Asked([names], {})
    found, tried = restoring([unit(name) for name in names], asked, "full", 3)
    assert letters(found) == names and tried < 20


def test_thinning_ends_when_tries_do() -> None:
    names = "".join(chr(0x4E00 + number) for number in range(200))
    found, tried = restoring([unit(name) for name in names], Asked([names[:199]], {}), "full", 40)
    assert len(found) > 180 and tried < 40 + 20 + 16, "not a run for each of two hundred"


def test_nothing_restores_what_cannot_be_restored() -> None:
    found, tried = restoring([unit(name) for name in "abc"], Asked([], {}), "full", 50)
    assert found == [] and tried >= 4
    assert restoring([], Asked([], {}), "full", 50) == ([], 0)


def test_removed_words_come_by_their_share_when_they_left() -> None:
    told = small()  # in equal shares: good left with 0.1 * 4, ##s with 0.125 * 3, the end with 0.1 * 5
    assert [(each.text, each.tokens, each.span) for each in removed(told)] == [
        ("[SEP]", (4,), None),
        ("good", (1,), (0, 0, 4)),
        ("films", (3,), (0, 5, 10)),
    ]


def check_found(made: Classifier, found: Difference, text: Text) -> None:
    """By the classifier itself: the answers differ, and with those tokens protected they do not."""
    (parts,) = made.encoder.parts([text])
    keep = [token in {t for each in found.restored_by for t in each.tokens} for token in range(len(parts[0].ids))]
    kept = [[replace(parts[0], keep=np.array(keep))]]
    assert made.at_scale([parts], None)[0].label == found.reduced.label != found.full.label
    assert made.at_scale([parts], 0.0)[0].label == found.full.label
    assert found.restored_by and made.at_scale(kept, None)[0].label == found.full.label


def test_differences_of_a_tiny_model_are_all_found_and_restored(made: Classifier) -> None:
    full = [answer.label for answer in made.at_scale(made.encoder.parts(TEXTS), 0.0)]
    reduced = [answer.label for answer in made(TEXTS)]
    golds = [made.labels[number % 3] for number in range(len(TEXTS))]
    found = differences(made, TEXTS, golds)
    expected = [index for index in range(len(TEXTS)) if full[index] != reduced[index]]
    assert len(expected) > 3, "the tiny model must differ somewhere for this to test anything"
    assert [each.index for each in found.listed] == expected and found.differ == len(expected) and found.n == len(TEXTS)
    assert found.spoilt == sum(golds[i] == full[i] for i in expected)
    assert found.mended == sum(golds[i] == reduced[i] for i in expected)
    assert found.both_wrong == len(expected) - found.spoilt - found.mended
    for each in found.listed:
        check_found(made, each, TEXTS[each.index])
        assert each.gold == golds[each.index]


def test_a_limit_lists_fewer_and_counts_all(made: Classifier) -> None:
    every, some = differences(made, TEXTS), differences(made, iter(TEXTS), limit=2)
    assert some.differ == every.differ and len(some.listed) == 2 and every.spoilt is None
    assert "right" not in every.account


def test_what_cannot_differ_is_refused(made: Classifier) -> None:
    with pytest.raises(BadModel, match="removes nothing"):
        differences(tiny_classifier(reduced=False), TEXTS)
    still = tiny_classifier()
    still.operating = Operating(0.0)
    with pytest.raises(BadConfig, match="removes nothing"):
        differences(still, TEXTS)


@pytest.fixture(scope="module")
def files(made: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    made.save_pretrained(folder / "model")
    rows = [{"text": text, "label": made.labels[0]} for text in TEXTS[:-1]]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_the_command_prints_a_table_json_and_a_page(files: Path) -> None:
    given = ["diff", str(files / "model"), "--data", str(files / "data.jsonl"), "--limit", "3"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0 and "answers differ from full length" in shown.output and "restored by" in shown.output
    done = CliRunner().invoke(app, [*given, "--json", "--html", str(files / "out.html")])
    found = json.loads(done.stdout)
    assert found["n"] == len(TEXTS) - 1 and len(found["differences"]) == 3
    assert all(row["restored_by"] and row["full"] != row["reduced"] for row in found["differences"])
    page = Page((files / "out.html").read_text(encoding="utf-8"))
    check_inert(page)
    assert len(page.with_class("story")) == 3 and page.with_class("mark")


def test_the_command_needs_no_labels(files: Path) -> None:
    (files / "plain.txt").write_text("\n".join(text for text in TEXTS[:-1] if isinstance(text, str)) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["diff", str(files / "model"), "--data", str(files / "plain.txt"), "--limit", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    labelled = ["diff", str(files / "model"), "--data", str(files / "data.jsonl"), "--limit", "1", "--json"]
    known = json.loads(CliRunner().invoke(app, labelled).stdout)
    assert found["differ"] == known["differ"] and found["spoilt"] is None and known["spoilt"] is not None
    wrong = CliRunner().invoke(app, ["diff", str(files / "model"), "--data", str(files / "plain.txt"), "--label", "stars"])
    assert wrong.exit_code == BadInput.exit_code and "stars" in wrong.stderr


def test_the_command_refuses_what_is_no_page(files: Path) -> None:
    done = CliRunner().invoke(app, ["diff", str(files / "model"), "--data", "x", "--html", "out.png"])
    assert done.exit_code == 2 and ".html" in done.output


def test_explain_on_the_command_line(files: Path) -> None:
    model = str(files / "model")
    shown = CliRunner().invoke(app, ["explain", model, "a good film", "--pair", "a bad film"])
    assert shown.exit_code == 0 and "left in the last layer" in shown.output
    done = CliRunner().invoke(app, ["explain", model, "a good film", "--pair", "a bad film", "--json"])
    assert json.loads(done.stdout)["text"] == ["a good film", "a bad film"]
    data = ["--file", str(files / "data.jsonl"), "--text", "text", "--limit", "2"]
    done = CliRunner().invoke(app, ["explain", model, *data, "--html", str(files / "e.html"), "--png", str(files / "e.svg")])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in files.glob("e*")) == ["e-1.svg", "e-2.svg", "e.html"]
    assert len(Page((files / "e.html").read_text(encoding="utf-8")).with_class("story")) == 2
    rows = CliRunner().invoke(app, ["explain", model, *data, "--json", "--quiet"]).stdout.splitlines()
    assert [json.loads(row)["text"] for row in rows] == TEXTS[:2]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ([], 2, "either one TEXT or --file"),
        (["a", "--file", "b"], 2, "either one TEXT or --file"),
        (["a", "--text", "b"], 2, "names a column"),
        (["a", "--html", "b.png"], 2, "should end in .html"),
        (["a", "--png", "b.html"], 2, "should end in .png"),
        (["a", "--html", "no/such/folder/b.html"], 2, "cannot write"),
        (["--file", "no/such/file.csv"], 4, "no/such/file.csv"),
        (["a", "--point", "fast"], 2, "no operating points"),
    ],
)
def test_explain_refuses(files: Path, given: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(app, ["explain", str(files / "model"), *given])
    assert done.exit_code == code and said in done.output and "Traceback" not in done.output, done.output


def test_words_of_every_window_can_be_given_back() -> None:
    base = tiny_classifier(eta=0.9, spread=2.0)
    made = Classifier(base.backbone, base.tokenizer, base.reducer, max_length=14, stride=2)
    found = differences(made, tiny_texts(60, seed=9))
    several = [each for each in found.listed if each.reduced.windows > 1]
    assert several, "texts of several windows must differ somewhere for this to test anything"
    for each in several:
        (parts,) = made.encoder.parts([each.explanation.text])
        flags = np.zeros(sum(len(part.ids) for part in parts), dtype=np.bool_)
        flags[[token for unit in each.restored_by for token in unit.tokens]] = True
        cuts = np.split(flags, np.cumsum([len(part.ids) for part in parts])[:-1])
        kept = [replace(part, keep=cut) for part, cut in zip(parts, cuts, strict=True)]
        assert each.restored_by and made.at_scale([kept], None)[0].label == each.full.label
