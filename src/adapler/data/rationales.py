"""Documents with human rationales cut into windows of tokens. Knows a word tokeniser, never a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WordTokenizer = Callable[[str], Sequence[int]]
NO_WORD = -1
"""Rationale and word number of special tokens and padding."""


@dataclass(frozen=True)
class SpecialIds:
    """Token ids a window is framed and filled with."""

    cls: int
    sep: int
    pad: int


@dataclass(frozen=True)
class RationaleWindow:
    """One window, padded to the maximum length, every list of that length."""

    input_ids: list[int]
    attention_mask: list[int]
    label: int
    rationale: list[int]
    """1-based number of the evidence each token belongs to, 0 for none, -1 for special tokens and padding."""
    word_index: list[int]
    """Word of each token, counted from 0 in each window."""
    start_token_index: int
    end_token_index: int
    """The window's tokens in the document: [start, end)."""
    example_id: int


def chunk_windows(
    words: Sequence[str],
    rationale: Sequence[int],
    label: int,
    example_id: int,
    tokenize: WordTokenizer,
    special: SpecialIds,
    max_length: int,
) -> Iterator[RationaleWindow]:
    """The authors' windows: plain chunks of `max_length` - 2 tokens; a chunk without a rationale token is dropped.

    A rationale may be cut at a border (their code means to avoid it and does not).
    """
    ids, evidence, word_of = _word_tokens(words, rationale, tokenize)
    size = max_length - 2
    for start in range(0, len(ids), size):
        end = min(start + size, len(ids))
        if not any(evidence[start:end]):
            continue
        first_word = word_of[start]
        fill = size - (end - start)
        yield RationaleWindow(
            input_ids=[special.cls, *ids[start:end], special.sep, *[special.pad] * fill],
            attention_mask=[1] * (end - start + 2) + [0] * fill,
            label=label,
            rationale=[NO_WORD, *evidence[start:end], *[NO_WORD] * (fill + 1)],
            word_index=[NO_WORD, *(word - first_word for word in word_of[start:end]), *[NO_WORD] * (fill + 1)],
            start_token_index=start,
            end_token_index=end,
            example_id=example_id,
        )


@dataclass(frozen=True)
class RationaleOnly:
    """Only a document's rationale, at its original positions."""

    input_ids: list[int]
    attention_mask: list[int]
    position_ids: list[int]
    label: int


def rationale_only(
    words: Sequence[str],
    rationale: Sequence[int],
    label: int,
    tokenize: WordTokenizer,
    special: SpecialIds,
    max_length: int,
) -> RationaleOnly | None:
    """The tokens of evidence 1 alone, as the authors cut them; None where they do not fit.

    Positions are token indices in the document (not shifted by the [CLS] in front); what follows counts on from the last.
    """
    ids, evidence, _ = _word_tokens(words, rationale, tokenize)
    chosen = [index for index, number in enumerate(evidence) if number == 1]
    if not chosen or len(chosen) > max_length - 2:
        return None
    fill = max_length - 2 - len(chosen)
    after = chosen[-1] + 1
    return RationaleOnly(
        input_ids=[special.cls, *(ids[index] for index in chosen), special.sep, *[special.pad] * fill],
        attention_mask=[1] * (len(chosen) + 2) + [0] * fill,
        position_ids=[0, *chosen, *range(after, after + fill + 1)],
        label=label,
    )


def _word_tokens(
    words: Sequence[str], rationale: Sequence[int], tokenize: WordTokenizer
) -> tuple[list[int], list[int], list[int]]:
    """Token ids, the evidence number of each, the word of each."""
    ids: list[int] = []
    evidence: list[int] = []
    word_of: list[int] = []
    for number, (word, mark) in enumerate(zip(words, rationale, strict=True)):
        pieces = tokenize(word)
        ids.extend(pieces)
        evidence.extend([mark] * len(pieces))
        word_of.extend([number] * len(pieces))
    return ids, evidence, word_of
