"""Texts of every family's tokenizer: WordPieces, byte-level BPE and SentencePiece read as transformers reads them."""

from __future__ import annotations

import numpy as np
import pytest

from adapler.backbones import BACKBONES
from adapler.data.keep import Keep
from adapler.data.text import Text, TextEncoder
from tests.families import tiny_tokenizer_of
from tests.tiny import tiny_texts

ODD: list[Text] = ["", " ", "naïve 日本 🙂", "<s> </s> [CLS] <mask>", "x" * 400, "good\n\tfilm  "]
PAIRS: list[Text] = [("a good film", "not a bad story"), ("good " * 60, "bad"), ("", "film"), ("good " * 300, "bad " * 400)]
every_family = pytest.mark.parametrize("family", BACKBONES)


@every_family
@pytest.mark.parametrize("longest", [8, 64])
def test_ids_and_segments_are_those_of_transformers(family: str, longest: int) -> None:
    tokenizer = tiny_tokenizer_of(family)
    texts: list[Text] = [*tiny_texts(20), *ODD, *PAIRS]
    for text, got in zip(texts, TextEncoder(tokenizer, longest)(texts), strict=True):
        parts = (text,) if isinstance(text, str) else text
        expected = tokenizer(*parts, truncation=True, max_length=longest)
        assert got.ids.tolist() == expected["input_ids"], text
        assert got.types.tolist() == expected.get("token_type_ids", [0] * len(got.ids)), text
        assert got.tokens == tokenizer.convert_ids_to_tokens(expected["input_ids"]), text


@every_family
def test_a_named_word_is_marked_whole_in_every_spelling(family: str) -> None:
    tokenizer = tiny_tokenizer_of(family)
    text = "a film, unbelievable and good"
    (got,) = TextEncoder(tokenizer, 64, keep=Keep(["unbelievable"]))([text])
    assert got.keep is not None
    spelt = "".join(token.strip("Ġ▁").removeprefix("##") for token, kept in zip(got.tokens, got.keep, strict=True) if kept)
    assert spelt == "unbelievable"
    (pair,) = TextEncoder(tokenizer, 64, keep=Keep(["good"]))([("a bad film", "a good one")])
    assert pair.keep is not None and pair.keep.sum() == 1 and "good" in pair.tokens[int(np.argmax(pair.keep))]


@every_family
def test_windows_reach_the_end_of_a_long_text(family: str) -> None:
    tokenizer = tiny_tokenizer_of(family)
    text = " ".join(tiny_texts(10))
    (windows,) = TextEncoder(tokenizer, 20, stride=4).parts([text])
    whole = tokenizer(text)["input_ids"]
    inner = [window.ids.tolist()[1:-1] for window in windows]
    rebuilt = [whole[0], *inner[0], *(number for window in inner[1:] for number in window[4:]), whole[-1]]
    assert len(windows) > 3 and rebuilt == whole
