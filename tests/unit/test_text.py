"""Texts are read exactly as transformers reads them, however long and odd; batches keep to their budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice, pairwise, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from adapler.data import text as text_module
from adapler.data.text import Text, TextEncoder, as_text, budget_batches, windows
from adapler.errors import BadConfig, BadInput
from tests.tiny import WORDS, tiny_tokenizer, tiny_vocab

PIECES = (
    "good", "films", "unbelievable", "[SEP]", "[MASK]", "[CLS]", "<s>", "</s>", "\n", "\t", "é", "e\u0301", "日本",
    "👩\u200d👩\u200d👧", "\u200d", "İ", "xyzzy" * 30, "...", "don't", "a-b",
    "\x00", "\x1b[31m", "\ufffd", "\u0301", "ﬁ", "\u202eשלום",
    "12345", "  ", "",
)  # fmt: skip
"""What texts are put together from: known words, what looks like a special token, characters that normalisers change."""
LENGTHS = (3, 4, 5, 9, 16, 17, 64, 127, 128)


def pair_tokenizer() -> PreTrainedTokenizerFast:
    """BERT's: the second text of a pair is of segment 1."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """RoBERTa's kind: byte-level BPE, four special tokens around a pair."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(WORDS)], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def sentence_tokenizer() -> PreTrainedTokenizerFast:
    """DeBERTa-v3's kind: unigram pieces over words marked with their space, after Unicode normalisation."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["[CLS]", "[SEP]", "[UNK]"], unk_token="[UNK]", show_progress=False
    )
    backend.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "words": tiny_tokenizer,
    "pairs": pair_tokenizer,
    "bytes": byte_tokenizer,
    "sentences": sentence_tokenizer,
}


def random_text(draw: random.Random, pieces: int) -> str:
    return "".join(draw.choice(PIECES + WORDS) + draw.choice(("", " ", " ")) for _ in range(pieces))


def random_inputs(draw: random.Random, count: int, max_length: int) -> list[Text]:
    """Texts and pairs, short to far too long, with every mixture of lengths in a pair."""

    def text() -> str:
        return random_text(draw, draw.choice((0, 1, 3, max_length // 3, max_length, 4 * max_length)))

    return [text() if draw.random() < 0.4 else (text(), text()) for _ in range(count)]


def reference(tokenizer: Any, item: Text, max_length: int) -> tuple[list[int], list[int], bool]:
    """Ids, segments and whether something was cut, from transformers. In lists, as datasets are tokenised: alone, transformers
    takes an empty second text for none."""
    texts = ([item],) if isinstance(item, str) else ([item[0]], [item[1]])
    cut = tokenizer(*texts, truncation=True, max_length=max_length)
    ids = cut["input_ids"][0]
    types = cut["token_type_ids"][0] if "token_type_ids" in cut else [0] * len(ids)
    return ids, types, len(tokenizer(*texts)["input_ids"][0]) > max_length


def check_reads_as_transformers(tokenizer: Any, max_length: int, inputs: list[Text]) -> None:
    for item, encoded in zip(inputs, TextEncoder(tokenizer, max_length)(inputs), strict=True):
        ids, types, cut = reference(tokenizer, item, max_length)
        assert encoded.ids.tolist() == ids
        assert encoded.types.tolist() == types
        assert len(encoded.tokens) == len(ids)
        assert encoded.truncated == cut


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_transformers(name: str, count: Callable[[int, int], int]) -> None:
    tokenizer = TOKENIZERS[name]()
    draw = random.Random(name)
    for max_length in LENGTHS:
        if max_length >= tokenizer.num_special_tokens_to_add(pair=True):
            check_reads_as_transformers(tokenizer, max_length, random_inputs(draw, count(34, 300), max_length))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("max_length", [16, 128, 129])
@pytest.mark.parametrize("side", ["right", "left"])
def test_long_pairs_are_cut_as_transformers_cuts_them(name: str, max_length: int, side: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.truncation_side = side
    draw = random.Random(f"{name}{max_length}")
    sizes = (0, max_length // 2, max_length, 2 * max_length, 5 * max_length)
    pairs: list[Text] = [(random_text(draw, one), random_text(draw, two)) for one in sizes for two in sizes]
    long = [pair for pair in pairs if sum(map(len, pair)) > 8 * max_length]
    assert len(long) > len(pairs) // 3
    check_reads_as_transformers(tokenizer, max_length, pairs)


def test_cutting_each_text_by_itself_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an odd number of tokens is left, the last goes to the longer text: a cut must not change which that is."""

    def heads(self: Any, first: str, second: str) -> tuple[str, str]:
        one, two = (self._whole.encode(text, add_special_tokens=False) for text in (first, second))
        one_end, two_end = (text_module._word_end(encoding, self.max_length) for encoding in (one, two))
        return text_module._head(first, one, one_end), text_module._head(second, two, two_end)

    monkeypatch.setattr(TextEncoder, "_shortened", heads)
    longer, shorter = "good " * 3000, "good " * 128 + "unbelievable " * 300
    with pytest.raises(AssertionError):
        check_reads_as_transformers(tiny_tokenizer(), 128, [(longer, shorter)])


def test_a_hundred_thousand_characters_are_read_from_their_beginning() -> None:
    tokenizer = tiny_tokenizer()
    encoder = TextEncoder(tokenizer, 512)
    start = random_text(random.Random(1), 3000)
    for item in (start + "a" * 100_000, start + "日" * 100_000, start + "film " * 20_000):
        pair = (item, item)
        one, both = encoder([item, pair])
        assert one.ids.tolist() == encoder([start])[0].ids.tolist()
        assert both.ids.tolist() == encoder([(start, start)])[0].ids.tolist()
        assert one.truncated and both.truncated


def test_a_special_token_in_a_text_is_read_as_transformers_reads_it() -> None:
    tokenizer = tiny_tokenizer()
    text = "a film [SEP] a [MASK] story [CLS]"
    ids = TextEncoder(tokenizer, 64)([text])[0].ids.tolist()
    assert ids == tokenizer(text)["input_ids"]
    assert ids.count(tiny_vocab()["[SEP]"]) == 2
    tokenizer.split_special_tokens = True
    ids = TextEncoder(tokenizer, 64)([text])[0].ids.tolist()
    assert ids == tokenizer(text)["input_ids"]
    assert ids.count(tiny_vocab()["[SEP]"]) == 1


def test_segments_are_told_apart_only_where_the_tokenizer_says_so() -> None:
    pair = ("a film", "a story")
    assert TextEncoder(pair_tokenizer(), 64)([pair])[0].types.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert TextEncoder(tiny_tokenizer(), 64)([pair])[0].types.tolist() == [0] * 7


def test_a_tokenizer_that_cuts_the_beginning_still_does() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.truncation_side = "left"
    draw = random.Random(3)
    check_reads_as_transformers(tokenizer, 16, [*random_inputs(draw, 20, 16), ("good " * 40 + "end", "bad " * 60 + "end")])


def test_an_encoder_that_cuts_the_other_side_reads_as_such_a_tokenizer_does() -> None:
    tokenizer = tiny_tokenizer()
    inputs = random_inputs(random.Random(4), 20, 16)
    cutting = TextEncoder(tokenizer, 16).cutting("left")
    tokenizer.truncation_side = "left"
    expected = TextEncoder(tokenizer, 16)(inputs)
    assert [one.ids.tolist() for one in cutting(inputs)] == [other.ids.tolist() for other in expected]
    assert any(one.truncated for one in expected)


def test_the_beginnings_of_two_long_texts_are_dropped_in_no_time() -> None:
    encoder = TextEncoder(tiny_tokenizer(), 512).cutting("left")
    end = random_text(random.Random(1), 3000)
    one, two = encoder([("film " * 20_000 + end, "film " * 20_000 + end), (end, end)])
    assert one.ids.tolist() == two.ids.tolist()
    assert one.truncated


def test_a_text_is_counted_whole() -> None:
    tokenizer = tiny_tokenizer()
    encoder = TextEncoder(tokenizer, 16)
    for item in random_inputs(random.Random(5), 20, 16):
        texts = (item,) if isinstance(item, str) else item
        assert encoder.count(item) == len(tokenizer(*[[text] for text in texts])["input_ids"][0])


def test_neither_the_tokenizer_nor_a_call_before_changes_what_is_read() -> None:
    tokenizer = tiny_tokenizer()
    encoder = TextEncoder(tokenizer, 8)
    text = "a good film about people"
    before = encoder([text])[0].ids.tolist()
    tokenizer(["a", "longer one " * 50], padding=True, truncation=True, max_length=4)
    assert encoder([text])[0].ids.tolist() == before
    assert encoder([text, "good " * 100])[0].ids.tolist() == before  # no padding to the longest


def test_a_maximum_length_below_the_special_tokens_is_refused() -> None:
    with pytest.raises(BadConfig, match="at least 4"):
        TextEncoder(byte_tokenizer(), 3)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a \ud800 b", "a \ufffd b"),
        ("\udc00", "\ufffd"),
        ("\ud800", "\ufffd"),
        ("\ud800\ud800a", "\ufffd\ufffda"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("a \ud83d\ude00 b", "a 😀 b"),
        ("\ufeffa \ud800", "\ufeffa \ufffd"),
        ("no \U0001f600 change \x00", "no \U0001f600 change \x00"),
    ],
)
def test_half_characters_are_read_as_the_replacement_character(text: str, read: str) -> None:
    tokenizer = byte_tokenizer()  # spells every character
    encoder = TextEncoder(tokenizer, 64)
    assert encoder([text])[0].ids.tolist() == tokenizer(read)["input_ids"]
    assert encoder([(text, text)])[0].ids.tolist() == tokenizer(read, read)["input_ids"]


BAD_ITEMS: tuple[object, ...] = (
    None, 5, 1.5, True, b"bytes", {"text": "a"}, ("a", "b", "c"), ("a",), ("a", None), ["a", 5], [], (), object(), ["a", ["b"]],
)  # fmt: skip


@pytest.mark.parametrize("item", BAD_ITEMS, ids=[repr(item)[:20] for item in BAD_ITEMS])
def test_what_is_no_text_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(BadInput, match=r"^item 7: expected a string or a pair of strings, got "):
        as_text(item, 7)
    with pytest.raises(BadInput, match=r"^item 2: "):
        list(windows(["a", ("a", "b"), item]))


def test_a_long_wrong_item_is_not_quoted_whole() -> None:
    with pytest.raises(BadInput) as caught:
        as_text(["x" * 10_000], 0)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("texts", [b"bytes", bytearray(b"bytes"), {"text": "a film"}, b"", {}])
def test_a_mapping_or_bytes_are_no_collection_of_texts(texts: Any) -> None:
    with pytest.raises(BadInput, match="expected texts, got"):
        list(windows(texts))


def test_strings_pairs_and_lists_of_two_are_texts() -> None:
    assert as_text("a", 0) == "a"
    assert as_text(("a", "b"), 0) == ("a", "b")
    assert as_text(["a", "b"], 0) == ("a", "b")
    assert as_text(np.str_("a"), 0) == "a"


def test_windows_hold_every_text_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "WINDOW_TEXTS", 7)
    monkeypatch.setattr(text_module, "WINDOW_CHARACTERS", 20)
    texts = ["x" * (number % 9) for number in range(100)] + [("y" * 15, "y" * 15)]
    cut = list(windows(texts))
    assert [text for window in cut for text in window] == texts
    assert all(1 <= len(window) <= 7 for window in cut)
    assert all(sum(map(len, window[:-1])) < 20 for window in cut)  # closed by the text that reaches the limit
    assert list(windows([])) == []


def test_an_endless_stream_is_read_one_window_at_a_time_and_the_first_is_small() -> None:
    taken = read = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for text in repeat("a film"):
            taken += 1
            yield text

    sizes = []
    for window in islice(windows(endless()), 5):
        sizes.append(len(window))
        read += len(window)
        assert taken == read
    assert sizes[0] == text_module.FIRST_WINDOW and sizes[-1] == text_module.WINDOW_TEXTS
    assert len(next(windows(["a film"] * 5000))) == text_module.WINDOW_TEXTS


def test_a_wrong_item_is_named_by_its_place_in_the_whole_stream() -> None:
    place = text_module.WINDOW_TEXTS + 5
    stream = iter([*repeat("a", place), None])
    with pytest.raises(BadInput, match=f"^item {place}: "):
        list(windows(stream))


@given(lengths=st.lists(st.integers(0, 600), max_size=200), budget=st.integers(1, 5000))
def test_batches_keep_to_the_budget_and_hold_every_text_once(lengths: list[int], budget: int) -> None:
    batches = budget_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=200), budget=st.integers(600, 5000))
def test_batches_are_no_smaller_than_they_must_be(lengths: list[int], budget: int) -> None:
    batches = budget_batches(lengths, budget)
    for batch, after in pairwise(batches):
        longest = max(lengths[index] for index in batch)
        assert longest >= lengths[after[0]]
        assert longest * (len(batch) + 1) > budget


def test_texts_of_one_length_make_batches_of_their_own() -> None:
    lengths = [10] * 40 + [7] * 3 + [12] * 30 + [5]
    batches = budget_batches(lengths, 100, even=200)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(max(lengths[i] for i in batch) * len(batch) <= 100 for batch in batches)
    mixed = [batch for batch in batches if len({lengths[i] for i in batch}) > 1]
    assert mixed == [[40, 41, 42, 73]]  # too few of either to be worth a batch
