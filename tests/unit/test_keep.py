"""What is named is found whole, in any case and script, in either text; and only its tokens are marked to stay."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.data.keep import AlwaysKeep, Keep, keeper, read_always_keep
from adapler.data.text import EncodedText, Text, TextEncoder, protected
from adapler.errors import BadConfig
from tests.tiny import tiny_bert, tiny_classifier, tiny_texts, tiny_tokenizer
from tests.unit.test_text import TOKENIZERS, byte_tokenizer, sentence_tokenizer


def encoded(wanted: AlwaysKeep, text: Text, max_length: int = 64, tokenizer: Any = None) -> EncodedText:
    return TextEncoder(tokenizer or tiny_tokenizer(), max_length, keep=Keep(wanted))([text])[0]


def kept(wanted: AlwaysKeep, text: Text, max_length: int = 64, tokenizer: Any = None) -> list[str]:
    """Tokens of a text that must stay."""
    found = encoded(wanted, text, max_length, tokenizer)
    if found.keep is None:
        return []
    assert found.keep.shape == found.ids.shape and found.keep.any()
    return [token for token, stays in zip(found.tokens, found.keep, strict=True) if stays]


@pytest.mark.parametrize(
    ("wanted", "text", "expected"),
    [
        (["not"], "a film not to watch", ["not"]),
        (["not"], "NOT good , Not bad", ["not", "not"]),
        (["NoT"], "not", ["not"]),
        (["not"], "nothing notable in knots", []),
        (["not"], "not-so-good", ["not"]),
        (["not"], "(not) \u201cnot\u201d", ["not", "not"]),
        (["not"], "not_so not1", []),
        (["not", "no"], "no , not", ["no", "not"]),
        (["very good"], "very  \n good , very bad", ["very", "good"]),
        (["very good", "good film"], "very good film", ["very", "good", "film"]),
        (["good", "very good film"], "very good plot", ["good"]),
        (["the the"], "the the the", ["the"] * 3),
        (["!"], "good! bad", ["!"]),
        (["c++"], "c++ , abc++", ["c", "+", "+"]),
        (["unbelievable"], "an unbelievable film", ["u", "##n", "##b", "##e", "##l", "##i", "##e", "##v", "##able"]),
        (["film"], "", []),
        ([".*"], "a film .*", [".", "*"]),
        (["[SEP]"], "a [SEP] film", ["[SEP]"]),
    ],
)
def test_words_are_found_whole(wanted: list[str], text: str, expected: list[str]) -> None:
    assert kept(wanted, text) == expected


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("café", "un cafe\u0301 noir", True),
        ("cafe\u0301", "un café noir", True),
        ("CAFÉ", "un cafe\u0301 noir", True),
        ("cafe", "un cafe\u0301 noir", False),  # the accent belongs to the word
        ("ÄRGER", "kein ärger", True),
        ("не", "Не хорошо", True),
        ("не", "нет", False),
        ("हिन", "हिन्दी", False),  # a vowel sign is no boundary
        ("हिन्दी", "हिन्दी में", True),
        ("שלום", "\u202eשלום עולם", True),
        ("👍", "good👍film", True),
    ],
)
def test_words_of_every_script_are_found_whole(word: str, text: str, found: bool) -> None:
    marked = encoded([word], text, tokenizer=byte_tokenizer(), max_length=128)
    assert (marked.keep is not None) == found


def test_every_byte_of_a_character_stays() -> None:
    assert len(kept(["👩"], "a 👩 film", tokenizer=byte_tokenizer())) == 4
    assert kept(["not"], "do not", tokenizer=byte_tokenizer()) == ["Ġnot"]
    assert kept(["not"], "do  not", tokenizer=sentence_tokenizer())[-1] == "▁not"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\d+", ["1", "##2", "3"]),
        (r"(?i)FILM", ["film"]),
        (r"FILM", []),
        (r"oo", ["good"]),  # part of a token is enough
        (r"", []),
        (r"x*", []),
        (r"\b", []),
        (r"(?=good)", []),
        (r".*", ["a", "good", "film", "1", "##2", ",", "3"]),
        (r"^a|3$", ["a", "3"]),
    ],
)
def test_a_pattern_is_taken_as_it_is_written(pattern: str, expected: list[str]) -> None:
    assert kept(re.compile(pattern), "a good film 12 , 3") == expected


def test_words_and_patterns_may_be_mixed() -> None:
    assert kept(["good", re.compile(r"\d")], "a Good film 7") == ["good", "7"]


def test_either_text_of_a_pair_is_searched() -> None:
    pair = ("a film , not a play", "the story is not there")
    marked = encoded(["not"], pair)
    assert marked.keep is not None
    assert [marked.tokens[place] for place in marked.keep.nonzero()[0]] == ["not", "not"]
    assert kept(["film"], pair) == ["film"]
    assert kept(["story"], pair) == ["story"]
    assert kept(["play the"], pair) == []  # a phrase does not go from one text to the other
    assert kept(re.compile("^the"), pair) == ["the"]


def test_what_is_cut_off_is_not_missed() -> None:
    assert kept(["end", "good"], "good film " * 10 + "end", max_length=8) == ["good"] * 3
    assert kept(["end"], "good film " * 10 + "end", max_length=8) == []
    assert kept(["film good"], "a film good", max_length=4) == ["film"]  # half the phrase is read
    assert kept(["un"], "a un" + "believable", max_length=5) == []  # the word goes on where nothing is read
    left = tiny_tokenizer()
    left.truncation_side = "left"
    assert kept(["end", "good"], "good film " * 10 + "end", max_length=8, tokenizer=left) == ["good", "good", "end"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_long_pairs_are_marked_as_short_ones_are(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    start, tail = "not a film but this is not good " * 2, "watch the story again " * 400
    long = TextEncoder(tokenizer, 16, keep=Keep(["not", "good watch"]))
    pair = (start + tail, start + tail)
    assert len(pair[0]) > 8 * 16
    short = TextEncoder(tokenizer, 16, keep=Keep(["not", "good watch"]))
    (cut,), (whole,) = long([pair]), short([(start, start)])
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.keep is not None and whole.keep is not None
    assert cut.keep.tolist() == whole.keep.tolist()


def test_half_characters_do_not_shift_what_is_found() -> None:
    assert kept(["not"], "\ud83d\ude00 \ud800 not good") == ["not"]


def test_marking_changes_nothing_else_that_is_read() -> None:
    texts: list[Text] = [*tiny_texts(20), ("a film", "not a story"), ("good " * 300, "bad " * 400), ""]
    plain, marking = TextEncoder(tiny_tokenizer(), 32), TextEncoder(tiny_tokenizer(), 32, keep=Keep(["the", "good"]))
    for one, other in zip(plain(texts), marking(texts), strict=True):
        assert (one.ids.tolist(), one.types.tolist(), one.tokens) == (other.ids.tolist(), other.types.tolist(), other.tokens)
        assert one.truncated == other.truncated and one.keep is None


def test_a_batch_is_marked_end_to_end() -> None:
    texts = TextEncoder(tiny_tokenizer(), 32, keep=Keep(["not"]))(["a film", "not it"])
    marks = protected(texts)
    assert marks is not None and marks.tolist() == [False] * 5 + [True, False, False]
    assert protected(texts[:1]) is None


@pytest.mark.parametrize(
    "wanted", ["not", "", 5, {"not": 1}, {"not"}, b"not", re.compile(b"not"), [5], [""], ["a", " \t"], [None]]
)
def test_what_names_nothing_is_refused(wanted: Any) -> None:
    with pytest.raises(BadConfig, match="always_keep"):
        Classifier(tiny_bert(), tiny_tokenizer(), always_keep=wanted)


def test_naming_nothing_is_as_giving_nothing() -> None:
    assert keeper(None) is None and keeper([]) is None


def test_slashes_make_a_pattern() -> None:
    read = read_always_keep(["not", "/", r"/\d+/", "a/b", "/x"])
    assert [item if isinstance(item, str) else f"<{item.pattern}>" for item in read] == ["not", "/", r"<\d+>", "a/b", "/x"]


@pytest.mark.parametrize("given", ["//", "/(/", "/[a/", "/a{99999999999999}/"])
def test_a_bad_pattern_is_refused(given: str) -> None:
    with pytest.raises(BadConfig, match="always_keep got"):
        read_always_keep([given])


def test_a_classifier_drops_everything_but_what_is_named() -> None:
    plain = tiny_classifier(spread=2.0)
    texts = ["a good film , but not a great story " * 3, *tiny_texts(30)]
    named = ["not", "the", "story"]
    made = Classifier(plain.backbone, plain.tokenizer, plain.reducer, always_keep=named)
    dropped = 0
    for before, after in zip(plain(texts), made(texts), strict=True):
        assert before.tokens == after.tokens
        for token, first, depth in zip(after.tokens, before.depths, after.depths, strict=True):
            assert token not in named or depth == 4
            dropped += token in named and first < 4
        assert after.flops == made.cost.reduced(len(after.tokens), after.lengths)
    assert dropped > 3  # it mattered
    assert any(min(answer.depths) < 4 for answer in made(texts))  # others still leave
