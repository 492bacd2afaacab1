"""Explanations: what they say agrees with the prediction and with the engine's own trace, and is shown whole and unharmed."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import adapler
from adapler.backbones import view
from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.data.words import Places
from adapler.engine import encode, pack
from adapler.errors import BadConfig, BadModel, MissingExtra
from adapler.evaluation.examples import stories, story_dict
from adapler.explain import Explanation, save
from adapler.points import Dial, Point
from adapler.prediction import Judged, Prediction
from adapler.report import explained as explained_module
from adapler.report import markup
from adapler.report.plot import draw_picture
from adapler.tokens import Step
from tests.contract.methods import TINY
from tests.tiny import tiny_bert, tiny_classifier, tiny_reducer, tiny_texts, tiny_tokenizer
from tests.unit.test_report import HOSTILE, Page, check_inert

TEXTS: list[Text] = ["a brilliant film, if a little long", ("a good film", "no, a waste of time"), *tiny_texts(8), "", "good"]


def small() -> Explanation:
    """A text of two words in three layers, by hand: `good` leaves before the second, the end before the first."""
    text = "good films"
    tokens = ["[CLS]", "good", "film", "##s", "[SEP]"]
    places = Places([(0, 0), (0, 4), (5, 9), (9, 10), (0, 0)], [None, 0, 0, 0, None])
    scores = ([0.4, 0.3, 0.1, 0.1, 0.1], [0.5, 0.1, 0.25, 0.15], [0.5, 0.375, 0.125])
    prediction = Prediction(
        label="good",
        score=0.75,
        scores={"bad": 0.25, "good": 0.75},
        tokens=tokens,
        depths=[3, 1, 3, 2, 0],
        lengths=[4, 3, 2],
        flops=50,
        flops_full=100,
        truncated=False,
        judged=(Judged(places, tuple(np.array(row) for row in scores), (0, 1, 2)),),
    )
    return Explanation(text, prediction)


def test_an_explanation_holds_every_label_its_prediction_gives() -> None:
    model = tiny_bert()
    model.config.problem_type = "multi_label_classification"
    backbone = view(model)
    made = Classifier(backbone, tiny_tokenizer(), tiny_reducer(backbone))
    made.set_thresholds({made.labels[0]: 0.0, made.labels[1]: 1.0, made.labels[2]: 0.0})  # not only the likeliest
    told = made.explain("a good film")
    assert told.labels == [made.labels[0], made.labels[2]]
    assert told.to_dict()["labels"] == told.prediction.to_dict()["labels"] == told.labels
    single = tiny_classifier().explain("a good film")
    assert single.labels == [single.label] and "labels" not in single.to_dict()


def test_a_small_case_by_hand() -> None:
    told = small()
    assert told.left == [None, 1, None, 2, 0]
    assert told.kept == [[0, 1, 2, 3], [0, 2, 3], [0, 2]]
    assert told.contributions == [
        [0.4, 0.3, 0.1, 0.1, 0.1],
        [0.5, 0.1, 0.25, 0.15, None],
        [0.5, None, 0.375, 0.125, None],
    ]
    assert [(word.text, word.start, word.end, word.of, word.tokens) for word in told.words] == [
        ("good", 0, 4, 0, (1,)),
        ("films", 5, 10, 0, (2, 3)),
    ]
    assert told.word_contributions == [[0.3, 0.2], [0.1, 0.4], [None, 0.5]]
    assert [[word.text for word in told.rationale(depth)] for depth in (0, 1, 2, 3, None)] == [
        ["good", "films"],
        ["good", "films"],
        ["films"],
        ["films"],
        ["films"],
    ]
    assert told.shares[2] == [1.5, None, 1.125, 0.375, None]
    with pytest.raises(BadConfig, match="depth must lie in 0 to 3"):
        told.rationale(4)


def test_the_public_name_is_lazy_and_this_class() -> None:
    assert adapler.Explanation is Explanation and "Explanation" in adapler.__all__


def of_method(name: str) -> Classifier:
    backbone = view(tiny_bert(layers=4))
    return Classifier(backbone, tiny_tokenizer(), TINY[name](backbone))


def check_agrees_with_trace(made: Classifier, texts: list[Text]) -> None:
    """Every score of every decision of the engine stands where it was made, about the token it was made about."""
    for text, told in zip(texts, made.explain(texts), strict=True):
        (encoded,) = made.encoder([text])
        with torch.inference_mode():
            tokens, counts = pack(made.backbone, [encoded], made.device)
            _, trace = encode(made.backbone, tokens, made.reducer)
        expected: list[list[float | None]] = [[None] * len(encoded.ids) for _ in range(4)]
        for step in trace.steps:
            layer = step.layer if step.site == "layer_input" else step.layer + 1
            for place, score in zip(step.position.tolist(), step.decision.score.tolist(), strict=True):
                expected[layer][place] = score
        for mine, theirs in zip(told.contributions, expected, strict=True):
            assert [score is None for score in mine] == [score is None for score in theirs]
            there = [score for score in theirs if score is not None]
            # float32, batched in other company
            assert [score for score in mine if score is not None] == pytest.approx(there, rel=1e-4, abs=1e-6)
            assert not there or sum(there) == pytest.approx(1, abs=1e-5)
        assert told.prediction.depths == trace.depths(counts).tolist()


@pytest.mark.parametrize("name", TINY)
def test_contributions_are_those_of_the_trace(name: str) -> None:
    check_agrees_with_trace(of_method(name), TEXTS)


def test_scores_of_another_layer_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_method("trbert")  # judges in front of two layers alone
    monkeypatch.setattr(Step, "in_front", property(lambda step: step.layer + 1))
    with pytest.raises((AssertionError, ValueError)):
        check_agrees_with_trace(made, TEXTS)


@pytest.mark.parametrize("name", TINY)
def test_every_method_is_drawn(name: str, tmp_path: Path) -> None:
    told = of_method(name).explain(tiny_texts(3, seed=5))
    save(told, tmp_path / "all.html")
    check_inert(Page((tmp_path / "all.html").read_text(encoding="utf-8")))
    for explanation in told:
        fates = {
            (layer.number - 1, place): piece.fate
            for layer in explanation.picture().layers
            for place, piece in enumerate(piece for word in layer.words for piece in word.pieces)
        }
        for place, left in enumerate(explanation.left):
            for layer in range(explanation.layers):
                expected = "kept" if left is None or layer < left else "left" if layer == left else "gone"
                assert fates[layer, place] == expected


def test_the_prediction_is_the_one_a_call_gives() -> None:
    made = tiny_classifier(spread=2.0)
    for told, predicted in zip(made.explain(TEXTS), made(TEXTS), strict=True):
        assert told.prediction == predicted  # the same batches, the same numbers
        assert (told.label, told.score, told.scores, told.flops) == (
            predicted.label,
            predicted.score,
            predicted.scores,
            predicted.flops,
        )
        assert told.prediction.to_dict() == predicted.to_dict()
    one = made.explain(TEXTS[1])
    assert isinstance(one, Explanation) and one.text == TEXTS[1]
    assert [told.label for told in made.explain(iter(TEXTS))] == [told.label for told in made(TEXTS)]


def with_points() -> Classifier:
    """Points: the trained model, all thresholds doubled, full length; the last scores best."""
    backbone = view(tiny_bert(layers=4))
    scales = {"full": (0.0, 1.0, 0.9), "2.0x": (1.0, 2.0, 0.8), "4.0x": (2.0, 4.0, 0.7)}
    points = tuple(
        Point(
            name=name,
            scale=scale,
            score=score,
            loss_points=100 * (0.9 - score),
            flops_speedup=fast,
            flops_speedup_executed=fast,
        )
        for name, (scale, fast, score) in scales.items()
    )
    dial = Dial(data="x", n=1, metric="accuracy", reference="x", reference_score=0.9, points=points)
    return Classifier(backbone, tiny_tokenizer(), TINY["adapler"](backbone), dial=dial)


@pytest.mark.parametrize(
    "wish", [{"point": "4.0x"}, {"max_loss": 11.0}, {"speedup": 3.0}, {"point": "full"}, {"escalate": 1.0}]
)
def test_wishes_are_those_of_a_call(wish: dict[str, Any]) -> None:
    made = with_points()
    for told, predicted in zip(made.explain(TEXTS, **wish), made(TEXTS, **wish), strict=True):
        assert told.prediction.depths == predicted.depths and told.flops == predicted.flops
        assert told.scores == pytest.approx(predicted.scores, abs=1e-6)
        assert told.prediction.escalated == predicted.escalated == ("escalate" in wish)
        assert all(score is not None for score in told.contributions[0])  # judged even where nothing was removed


def test_a_model_that_removes_nothing_has_no_account() -> None:
    with pytest.raises(BadModel, match=r"removes nothing.*adapler train"):
        tiny_classifier(reduced=False).explain("a film")


def test_windows_are_told_apart_and_said() -> None:
    made = tiny_classifier(max_length=12)
    made = Classifier(made.backbone, made.tokenizer, made.reducer, max_length=12, stride=3)
    text = "a good film, a bad end; unwatchable acting all over it, and so very long a time"
    told = made.explain(text)
    windows = told.prediction.windows
    assert windows > 2 and "windows" in told.notes[0]
    first = 0
    for judged in told.prediction.judged:
        count = len(judged.places)
        row = [score for score in told.contributions[0][first : first + count] if score is not None]
        assert sum(row) == pytest.approx(1, abs=1e-5)
        first += count
    assert first == len(told.tokens) and {word.window for word in told.words} == set(range(windows))
    assert all(text[word.start : word.end] == word.text for word in told.words)
    spans = [(word.start, word.end) for word in told.rationale(0)]
    assert len(spans) == len(set(spans)) < len(told.words)  # a word that two windows read is one word
    assert told.to_dict()["windows"] == windows


def test_words_that_must_stay_are_in_every_rationale() -> None:
    base = tiny_classifier(eta=1.0, spread=3.0)
    made = Classifier(base.backbone, base.tokenizer, base.reducer, always_keep=["never", "tedious"])
    told = made.explain("it was never a tedious film , was it ?")
    assert {"never", "tedious"} <= {word.text for word in told.rationale()} < {word.text for word in told.words}


@pytest.mark.parametrize("name", TINY)
def test_stories_of_a_report_are_explanations(name: str) -> None:
    made = of_method(name)
    texts: list[Text] = ["a brilliant, unwatchable film", ("good", "bad film")]
    assert made.reducer is not None and stories(made.backbone, made.reducer, made.encoder, []) == []
    for told, story in zip(made.explain(texts), stories(made.backbone, made.reducer, made.encoder, texts), strict=True):
        kept = story_dict(story, "gold", told.label, "full")
        assert kept["tokens"] == told.tokens and kept["kept"] == told.kept and kept["predicted"] == told.label
        assert kept["words"] == [list(word.tokens) for word in told.words] and kept["pieces"] == told.pieces
        assert [len(row) for row in kept["scores"]] == [len(told.tokens)] * told.layers
        assert json.loads(json.dumps(kept)) == kept


def test_a_cut_text_says_so() -> None:
    told = tiny_classifier(max_length=8).explain("a good film " * 10)
    assert told.truncated and "longer than the model reads" in told.notes[0]
    shown = io.StringIO()
    told.show(Console(file=shown, width=80))
    assert "longer than the model reads" in shown.getvalue()


def test_spans_are_those_of_the_text_that_was_read() -> None:
    told = tiny_classifier().explain("a \ud800 film")
    assert told.text == "a \ufffd film" and told.words[-1].text == "film"
    pair = tiny_classifier().explain(("good film", "bad film"))
    assert [(word.text, word.of) for word in pair.words] == [("good", 0), ("film", 0), ("bad", 1), ("film", 1)]


def test_json_holds_everything(tmp_path: Path) -> None:
    told = tiny_classifier().explain(("a good film", "unwatchable"))
    told.save(tmp_path / "x.json")
    read = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert read == json.loads(json.dumps(told.to_dict()))
    assert read["text"] == ["a good film", "unwatchable"] and read["left"] == told.left and read["kept"] == told.kept
    assert [word["text"] for word in read["words"]] == ["a", "good", "film", "unwatchable"]
    for row, words in zip(read["contributions"], read["word_contributions"], strict=True):
        for word, total in zip(read["words"], words, strict=True):
            parts = [row[token] for token in word["tokens"] if row[token] is not None]
            assert total == (pytest.approx(sum(parts), abs=1e-5) if parts else None)


def hostile_page(tmp_path: Path) -> Page:
    made = tiny_classifier()
    save(made.explain(list(HOSTILE)), tmp_path / "x.html")
    return Page((tmp_path / "x.html").read_text(encoding="utf-8"))


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path) -> None:
    found = hostile_page(tmp_path)
    check_inert(found)
    assert "script" in found.text and "<script" not in found.source
    fragment = Page(tiny_classifier().explain(HOSTILE[0])._repr_html_())
    check_inert(fragment)


def test_an_unescaped_text_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tiny_classifier().explain("a")
    object.__setattr__(told, "text", "<script>")
    told.prediction.judged[0].places.spans[1] = (0, 8)  # a token that is the whole of it
    check_inert(Page(told._repr_html_()))
    monkeypatch.setattr(markup, "escape", lambda text: text)
    with pytest.raises(AssertionError):
        check_inert(Page(told._repr_html_()))


def test_right_to_left_text_is_whole_and_runs_so(tmp_path: Path) -> None:
    text = "שלום עולם"
    told = tiny_classifier().explain(text)
    assert told.pieces == ["[CLS]", "שלום", "עולם", "[SEP]"]  # as written, though the vocabulary has none of it
    page = explained_module.page([told])
    assert 'class="layers table" dir="rtl"' in page
    assert page.count(">שלום<") >= told.layers
    assert "direction: ltr" not in page  # a head that runs the other way would lie over the text
    told.save(tmp_path / "rtl.png")
    assert (tmp_path / "rtl.png").stat().st_size > 1000


def test_a_notebook_gets_a_fragment_that_styles_only_itself() -> None:
    fragment = tiny_classifier().explain("a good film")._repr_html_()
    style = fragment.partition("<style>")[2].partition("</style>")[0]
    rules = [line for line in style.splitlines() if "{" in line and not line.strip().startswith(("@media", "--"))]
    assert rules and all(line.strip().startswith(".adapler") for line in rules)
    assert fragment.startswith('<div class="adapler">') and "prefers-color-scheme: dark" in style


@pytest.mark.parametrize("coloured", [True, False])
def test_a_terminal_shows_every_layer_and_no_control_character(coloured: bool) -> None:
    told = tiny_classifier(spread=2.0).explain("a good \x1b[31mfilm\x07 \u202e and no end")
    shown = io.StringIO()
    told.show(Console(file=shown, width=100, force_terminal=coloured, color_system="truecolor" if coloured else None))
    text = shown.getvalue()
    assert text.startswith(told.label) or coloured
    assert "\x07" not in text and "\u202e" not in text and "\x1b[31m" not in text
    for layer, length in enumerate(told.prediction.lengths, start=1):
        assert f"{layer} {length:>3}/{len(told.tokens)}" in text
    assert ("\x1b[" in text) is coloured


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_images_are_written_and_the_same_twice(tmp_path: Path, ending: str) -> None:
    told = tiny_classifier().explain("it cost $5 and $6, 中文 \x00 <b> 😀")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("one", "two"):
            told.save(tmp_path / (name + ending))
    one, two = ((tmp_path / (name + ending)).read_bytes() for name in ("one", "two"))
    assert one == two and len(one) > 1000


def test_a_long_text_becomes_a_taller_image_not_a_wider_one(tmp_path: Path) -> None:
    made = tiny_classifier(layers=2)
    sizes = []
    for words in (40, 120):
        made.explain("film " * words).save(tmp_path / "x.png")
        header = (tmp_path / "x.png").read_bytes()[16:24]
        sizes.append((int.from_bytes(header[:4]), int.from_bytes(header[4:])))
    assert sizes[0][0] == sizes[1][0] and sizes[1][1] > 1.5 * sizes[0][1]


def test_a_missing_extra_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adapler\[plot\]'"):
        draw_picture(small().picture(), tmp_path / "x.png")


@pytest.mark.parametrize("name", ["x", "x.gif", "x.txt"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadConfig, match=r"saved as \.html, \.png"):
        small().save(tmp_path / name)


def test_an_image_shows_one_text(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="an image shows one text, got 2"):
        save([small(), small()], tmp_path / "x.png")


def test_words_and_contributions_wait_until_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes an explanation cost no more than a prediction."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("made before anyone asked")

    made, calls = tiny_classifier(), 0
    run: Callable[..., Any] = type(made.runtime).__call__

    def counted(*given: Any, **rest: Any) -> Any:
        nonlocal calls
        calls += 1
        return run(*given, **rest)

    monkeypatch.setattr("adapler.explain.words_of", never)
    monkeypatch.setattr("adapler.explain._row", never)
    monkeypatch.setattr(type(made.runtime), "__call__", counted)
    told = made.explain(TEXTS)
    assert len(told) == len(TEXTS) and calls == 1  # one batch, one run
    with pytest.raises(AssertionError, match="before anyone asked"):
        _ = told[0].words
