"""Rationale measures on cases worked out by hand, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import auc, average_precision_score, f1_score, precision_recall_curve

from adapler.evaluation.rationale import (
    MEASURES,
    Marks,
    Scores,
    above_uniform,
    agreement,
    budget,
    combined,
    expected_top,
    iou_precision_recall,
    precision_recall_areas,
    ranks,
    rates,
    shares,
    spans,
    token_f1,
    top,
    word_scores,
)


def marks(text: str) -> Marks:
    return np.array([letter == "x" for letter in text])


def measured(words: Scores, annotated: Marks, k_cp: int | None = None) -> dict[str, float]:
    places = np.arange(len(words))
    order = ranks(words[None], 0, -places.astype(float))  # of equals the earlier
    return agreement(words, annotated, order=order, share=0.25, token_share=shares(words), word_of=places, k_cp=k_cp)


def test_pieces_are_summed_over_words_and_what_is_no_word_is_left_out() -> None:
    # [CLS] good act ##ing [SEP]; a third word without a piece
    scores = np.array([[9.0, 1.0, 2.0, 3.0, 7.0], [0.0, 4.0, 0.5, 0.25, 0.0]])
    found = word_scores(scores, np.array([-1, 0, 1, 1, -1]), 3)
    assert found.tolist() == [[1.0, 5.0, 0.0], [4.0, 0.75, 0.0]]


def test_the_uniform_level_keeps_equals_and_nothing_of_nothing() -> None:
    assert above_uniform(shares(np.full(7, 0.3)), 7).all(), "each has exactly its share, whatever rounding says"
    assert above_uniform(shares(np.array([4.0, 3.0, 2.0, 3.0])), 4).tolist() == [True, True, False, True]
    assert not above_uniform(shares(np.zeros(5)), 5).any()


def test_false_positive_rate_and_recall_by_hand() -> None:
    annotated = marks("xx......")  # two of eight
    assert rates(marks("x.xxx..."), annotated) == (3 / 6, 1 / 2)
    assert rates(marks("........"), annotated) == (0.0, 0.0)
    assert rates(marks("xxxxxxxx"), annotated) == (1.0, 1.0)
    assert np.isnan(rates(marks("xx"), marks("xx"))[0]) and rates(marks("xx"), marks("xx"))[1] == 1.0


def test_average_precision_and_auprc_by_hand_and_by_scikit_learn() -> None:
    # ranked: marked, not, marked, not: precision 1 at recall 1/2, then 2/3 at recall 1
    scores, annotated = np.array([0.9, 0.8, 0.7, 0.1]), marks("x.x.")
    by_steps, by_trapezoids = precision_recall_areas(scores, annotated)
    assert by_steps == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert by_trapezoids == pytest.approx(0.5 * 1 + 0.5 * (1 / 2 + 2 / 3) / 2)  # at recall 1/2 precision falls to 1/2 first
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, annotated = random.integers(0, 6, 30).astype(float), random.random(30) < 0.3
        annotated[0] = True
        precision, recall, _ = precision_recall_curve(annotated, scores)
        assert precision_recall_areas(scores, annotated) == pytest.approx(
            (average_precision_score(annotated, scores), auc(recall, precision))
        )


def test_equals_are_drawn_by_lot_where_numbers_are_equal() -> None:
    assert expected_top(np.array([3.0, 1.0, 2.0]), 2).tolist() == [1, 0, 1]
    assert expected_top(np.array([3.0, 0.0, 0.0, 0.0, 0.0]), 3).tolist() == [1, 0.5, 0.5, 0.5, 0.5]
    assert expected_top(np.zeros(4), 0).tolist() == [0] * 4 and expected_top(np.ones(2), 5).tolist() == [1, 1]
    assert top(np.array([1.0, 2.0, 2.0, 0.0]), 1).tolist() == [False, True, False, False]
    random = np.random.default_rng(1)
    scores, annotated = random.integers(0, 3, 12).astype(float), random.random(12) < 0.4
    drawn = [rates(top(scores + 1e-3 * random.random(12), 5), annotated) for _ in range(4000)]
    assert rates(expected_top(scores, 5), annotated) == pytest.approx(np.mean(drawn, axis=0), abs=0.02)


def test_token_f1_by_hand_and_by_scikit_learn() -> None:
    assert token_f1(marks("xxx."), marks("x..x")) == pytest.approx(2 * (1 / 3 * 1 / 2) / (1 / 3 + 1 / 2))
    assert token_f1(marks("...."), marks("x..x")) == 0
    random = np.random.default_rng(2)
    for _ in range(10):
        chosen, annotated = random.random(20) < 0.4, random.random(20) < 0.4
        assert token_f1(chosen, annotated) == pytest.approx(f1_score(annotated, chosen, zero_division=0))


def test_iou_f1_by_hand() -> None:
    assert spans(marks("xx..x.xxx")) == [(0, 2), (4, 5), (6, 9)] and spans(marks("...")) == []
    # Marked 0-4 and 8-10. Found 1-4 overlaps in 3 of 4: a hit; 9-14 in 1 of 6: none; 6-7: none.
    annotated, chosen = marks("xxxx....xx....."), marks(".xxx..x..xxxxx.")
    assert iou_precision_recall(chosen, annotated) == (1 / 3, 1 / 2)
    assert iou_precision_recall(marks("xx"), marks("xx")) == (1.0, 1.0)
    assert iou_precision_recall(marks("xx.."), marks("xxxx")) == (1.0, 1.0), "half is enough"
    assert iou_precision_recall(marks("x..."), marks("xxxx")) == (0.0, 0.0)
    assert iou_precision_recall(marks("...."), marks("xxxx")) == (0.0, 0.0)
    # Over texts ERASER takes the F1 of mean precision (1/2) and mean recall (3/4), not the mean of F1s.
    means = combined({"iou_precision": np.array([0.5]), "iou_recall": np.array([0.75]), "map": np.array([0.3])})
    assert means["iou_f1"].tolist() == pytest.approx([2 * 0.5 * 0.75 / 1.25]) and means["map"].tolist() == [0.3]
    assert combined({"iou_precision": np.zeros(1), "iou_recall": np.zeros(1)})["iou_f1"].tolist() == [0.0]


def test_every_measure_of_one_text_by_hand() -> None:
    words, annotated = np.array([5.0, 1.0, 3.0, 0.0, 0.5, 0.5, 0.0, 0.0]), marks("x.......")
    annotated[1] = True
    found = measured(words, annotated, k_cp=1)
    # 1/n of the sum of 10 is 1.25: words 0 and 2
    assert (found["fpr"], found["recall"], found["selected"]) == (1 / 6, 1 / 2, 2 / 8)
    # of five words with any share, 1/5 of 10 is 2: the same two
    assert (found["fpr_of_left"], found["recall_of_left"]) == (1 / 6, 1 / 2)
    assert (found["fpr_at_annotated"], found["recall_at_annotated"]) == (1 / 6, 1 / 2)
    assert (found["fpr_at_cp"], found["recall_at_cp"]) == (0.0, 1 / 2)
    assert found["map"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["token_f1"] == pytest.approx(0.5) and budget(0.25, 8) == 2
    assert (found["iou_precision"], found["iou_recall"]) == (1 / 2, 1.0)  # the span of word 0 covers half of 0-2
    assert set(found) - {"iou_precision", "iou_recall"} | {"iou_f1", "comprehensiveness", "sufficiency"} == set(MEASURES)


def test_the_level_over_all_tokens_counts_special_ones() -> None:
    # [CLS] takes most: over words two stand out, over tokens none reaches 1/5 of the whole
    tokens, word_of = np.array([90.0, 4.0, 4.0, 1.0, 1.0]), np.array([-1, 0, 1, 2, 3])
    words = word_scores(tokens[None], word_of, 4)[0]
    token_share = shares(tokens)
    found = agreement(words, marks("x..."), order=words, share=0.25, token_share=token_share, word_of=word_of, k_cp=None)
    assert (found["fpr"], found["recall"]) == (1 / 3, 1.0)
    assert (found["fpr_of_tokens"], found["recall_of_tokens"]) == (0.0, 0.0)


def test_the_level_over_what_is_left_rises_as_words_leave() -> None:
    # Two of ten words are left with shares of 0.6 and 0.4: both above 1/10, one above 1/2.
    words = np.array([0.0, 0.6, 0.4, *[0.0] * 7])
    found = measured(words, marks(".x........"))
    assert (found["fpr"], found["recall"]) == (1 / 9, 1.0) and (found["fpr_of_left"], found["recall_of_left"]) == (0.0, 1.0)


def test_a_text_that_is_marked_throughout_has_no_false_positives_to_count() -> None:
    found = measured(np.array([1.0, 0.0, 2.0]), marks("xxx"), k_cp=1)
    nothing = {name for name, value in found.items() if np.isnan(value)}
    assert nothing == {"map", "auprc", "fpr", "fpr_of_tokens", "fpr_of_left", "fpr_at_annotated", "fpr_at_cp"}
    assert found["recall"] == 2 / 3 or found["recall"] == 1 / 3


def test_equals_are_told_apart_by_where_words_left_then_by_lot() -> None:
    # Words 0 and 1 stay; 2 left last, 3 and 4 left first, of which 4 had more; 5 and 6 were never worth anything.
    scores = np.array([[1, 1, 1, 0.1, 0.2, 0, 0], [1, 1, 0.5, 0, 0, 0, 0], [0.4, 0.6, 0, 0, 0, 0, 0]])
    lot = np.array([0.0, 0, 0, 0, 0, 0.9, 0.1])
    order = ranks(scores, 2, lot)
    assert np.argsort(-order).tolist() == [1, 0, 2, 4, 3, 5, 6] and len(set(order)) == 7
    assert np.argsort(-ranks(scores, 2, lot[[0, 1, 2, 3, 4, 6, 5]]))[-2:].tolist() == [6, 5], "not the earlier one"


def test_removing_everything_does_not_look_good() -> None:
    annotated = marks("x..x......")
    nothing, perfect = measured(np.zeros(10), annotated, k_cp=0), measured(annotated.astype(float), annotated, k_cp=2)
    assert nothing["fpr"] == 0 == perfect["fpr"], "by its rate of false positives alone it could not be told apart"
    assert nothing["recall"] == 0 and perfect["recall"] == 1
    assert nothing["map"] == pytest.approx(0.2) and nothing["fpr_at_annotated"] == pytest.approx(0.2)  # chance
    assert nothing["recall_at_annotated"] == pytest.approx(0.2) and perfect["recall_at_annotated"] == 1
    assert nothing["token_f1"] < 0.3 and nothing["auprc"] < 0.7


def test_measures_say_which_way_is_better() -> None:
    annotated = marks("xx...x....")
    good, bad = measured(annotated + 0.01, annotated, k_cp=3), measured(1.01 - annotated, annotated, k_cp=3)
    for name, measure in MEASURES.items():
        if name in good and name != "selected":
            assert (good[name] > bad[name]) == measure.higher_is_better, name
