"""Rows of a few widths: every token has one place, padding is the text's own, and attention does not notice."""

from __future__ import annotations

import pytest
import torch

from adapler import buckets as buckets_module
from adapler.buckets import FEWEST_TEXTS, VECTOR, Buckets
from adapler.engine import encode
from adapler.layout import Packed
from tests.contract.batches import end_to_end, setup


def made(counts: list[int]) -> tuple[Packed, Buckets]:
    packed = Packed(torch.tensor(counts))
    return packed, Buckets(packed.counts, packed.start, packed.text)


def test_every_token_has_one_place_in_the_rows_of_its_text() -> None:
    counts = [3, 40, 16, 17, 5, 100, 1, 33] * 6
    packed, buckets = made(counts)
    assert len(buckets.buckets) > 1
    assert torch.equal(buckets.source[buckets.slot], torch.arange(sum(counts)))
    assert torch.equal(buckets.order[buckets.back], torch.arange(len(counts)))
    rows = [row for bucket in buckets.buckets for row in bucket.rows(packed.text[buckets.source])]
    for row, text in zip(rows, buckets.order.tolist(), strict=True):
        assert (row == text).all()  # also where it is padding
        assert len(row) % VECTOR == 0 and len(row) >= counts[text]


def test_small_buckets_join_the_next_wider() -> None:
    _, buckets = made([5] * FEWEST_TEXTS + [20] * (FEWEST_TEXTS - 1) + [40])
    assert [bucket.width for bucket in buckets.buckets] == [16, 48]
    _, alone = made([5] * (FEWEST_TEXTS - 1))
    assert [bucket.width for bucket in alone.buckets] == [16]


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_buckets_change_no_answer(monkeypatch: pytest.MonkeyPatch, relative: bool, reduced: bool) -> None:
    given = setup(torch.float64, lengths=(1, 2, 40, 5, 3, 33, 2, 9) * 6, relative=relative)
    answers = {}
    for worth in (1.0, 0.0):
        monkeypatch.setattr(buckets_module, "WORTH", worth)
        tokens = end_to_end(given.backbone, given.texts)
        assert isinstance(tokens.layout, Packed) and (len(tokens.layout.buckets.buckets) > 1) is (worth == 1.0)
        with torch.inference_mode():
            answers[worth], _ = encode(given.backbone, tokens, given.reducer if reduced else None)
    assert torch.allclose(answers[1.0], answers[0.0], atol=1e-12)
