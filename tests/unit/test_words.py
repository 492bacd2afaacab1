"""Words out of tokens by their offsets, for the kinds of tokenizer there are."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from adapler.data import words as words_module
from adapler.data.text import PlainTokenizer, TextEncoder
from adapler.data.words import BLANK, SHARED, places_of, runs_right_to_left, shown, words_of
from tests.tiny import tiny_tokenizer

CORPUS = ["the film is great, really great!", "a boring mess; don't watch it", "unwatchable, unlovable, unremarkable"] * 4


def wordpiece() -> Tokenizer:
    made: Tokenizer = tiny_tokenizer().backend_tokenizer
    return made


def byte_level(*, trim: bool = True) -> Tokenizer:
    """As RoBERTa's: bytes as letters, spaces as part of the word behind."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=trim, add_prefix_space=False)
    return made


def sentencepiece() -> Tokenizer:
    """As XLM-R's: unigrams, `▁` for the space in front."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    letters = sorted(set("".join(CORPUS) + "½12⁄é你好"))
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made


KINDS = {
    "wordpiece": wordpiece,
    "byte-level": byte_level,
    "byte-level, spaces counted in": lambda: byte_level(trim=False),
    "sentencepiece": sentencepiece,
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def spelt(tokenizer: Tokenizer, text: Any) -> list[tuple[str, int]]:
    encoding = tokenizer.encode(*text) if isinstance(text, tuple) else tokenizer.encode(text)
    return [(word.text, word.of) for word in words_of(text, places_of(encoding))]


def check_words(tokenizer: Tokenizer) -> None:
    """What must hold of any tokenizer, on texts whose words anyone can tell."""
    for text, expected in (
        ("great film", ["great", "film"]),
        ("unwatchable,  really great", ["unwatchable", ",", "really", "great"]),
        ("  a film\n", ["a", "film"]),
    ):
        assert [word for word, _ in spelt(tokenizer, text)] == expected
    encoding = tokenizer.encode("unwatchable mess")
    first, second = words_of("unwatchable mess", places_of(encoding))
    assert (first.start, first.end, second.start, second.end) == (0, 11, 12, 16)
    assert list(first.tokens) == list(range(1, 1 + len(first.tokens)))  # after the special token
    between = range(first.tokens[-1] + 1, second.tokens[0])
    assert all(encoding.tokens[place] == "▁" for place in between)  # white space is in no word
    assert list(second.tokens) == list(range(second.tokens[0], len(encoding.ids) - 1))


def test_pieces_are_joined_alike(tokenizer: Tokenizer) -> None:
    check_words(tokenizer)


def test_words_by_marks_of_one_kind_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plausible mistake: every token that touches the one before goes on with its word."""
    monkeypatch.setattr(words_module, "_goes_on", lambda text, until, start: start <= until)
    with pytest.raises(AssertionError):
        check_words(wordpiece())


def test_words_that_never_go_on_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "_goes_on", lambda text, until, start: False)
    with pytest.raises(AssertionError):
        check_words(sentencepiece())


def test_texts_of_a_pair_do_not_touch(tokenizer: Tokenizer) -> None:
    assert spelt(tokenizer, ("great", "film")) == [("great", 0), ("film", 1)]
    first, second = words_of(("great", "film"), places_of(tokenizer.encode("great", "film")))
    assert (second.start, second.end) == (0, 4) and first.tokens[-1] < second.tokens[0]


def test_tokens_that_share_a_character_are_one_word() -> None:
    tokenizer = byte_level()
    text = "so 😀!"
    places = places_of(tokenizer.encode(text))
    found = words_of(text, places)
    assert [word.text for word in found] == ["so", "😀", "!"]
    assert len(found[1].tokens) > 1  # bytes of one character
    pieces = shown(text, places, tokenizer.encode(text).tokens)
    assert "".join(pieces).replace(BLANK, "").replace(SHARED, "") == "<s>so😀!</s>"
    assert pieces.count(SHARED) == len(found[1].tokens) - 1


def test_a_character_that_is_normalised_to_several_is_one_word() -> None:
    tokenizer = sentencepiece()
    (word,) = words_of("½", places_of(tokenizer.encode("½")))
    assert (word.text, word.start, word.end) == ("½", 0, 1) and len(word.tokens) > 1


def test_every_ideograph_is_a_word_and_accents_split_none() -> None:
    tokenizer = byte_level()
    assert [word for word, _ in spelt(tokenizer, "你好 cafe\u0301s naïve")] == ["你", "好", "cafe\u0301s", "naïve"]
    assert [word for word, _ in spelt(tokenizer, "می\u200cخواهم شد")] == ["می\u200cخواهم", "شد"]


def test_white_space_of_its_own_is_in_no_word() -> None:
    tokenizer = byte_level()
    text = "a\n\n\nb"
    places = places_of(tokenizer.encode(text))
    assert [word.text for word in words_of(text, places)] == ["a", "b"]
    assert BLANK in shown(text, places, tokenizer.encode(text).tokens)


def test_pieces_show_the_text_itself() -> None:
    tokenizer = wordpiece()
    text = "Great FILMS, 中"
    encoding = tokenizer.encode(text)
    assert encoding.tokens == ["[CLS]", "great", "film", "##s", ",", "[UNK]", "[SEP]"]
    assert shown(text, places_of(encoding), encoding.tokens) == ["[CLS]", "Great", "FILM", "S", ",", "中", "[SEP]"]


def test_a_special_tokens_name_in_a_text_is_a_word_of_it() -> None:
    text = "good [SEP] film"
    found = words_of(text, places_of(wordpiece().encode(text)))
    assert [word.text for word in found] == ["good", "[SEP]", "film"]


def test_places_come_on_request_and_change_nothing_else() -> None:
    encoder = TextEncoder(PlainTokenizer.of(tiny_tokenizer()), 16, stride=2)
    texts: list[Any] = ["a great film " * 10, ("a film", "boring " * 30), ""]
    for without, placed in zip(encoder.parts(texts), encoder.parts(texts, places=True), strict=True):
        assert [part.ids.tolist() for part in without] == [part.ids.tolist() for part in placed]
        assert [part.tokens for part in without] == [part.tokens for part in placed]
        assert all(part.places is None for part in without)
        assert all(part.places is not None and len(part.places) == len(part.ids) for part in placed)


@pytest.mark.parametrize(("letters", "rtl"), [("שלום abc", True), ("abcd שלו", False), ("123", False), ("", False)])
def test_direction(letters: str, rtl: bool) -> None:
    assert runs_right_to_left(letters) is rtl
