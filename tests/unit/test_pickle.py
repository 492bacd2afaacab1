"""A classifier in a pickle: what comes out answers as what went in, in this process and in another."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adapler.backbones import BACKBONES, view
from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.methods import METHODS
from adapler.points import Operating
from tests.contract.methods import TINY
from tests.families import tiny_model, tiny_tokenizer_of
from tests.tiny import tiny_bert, tiny_classifier, tiny_reducer, tiny_texts, tiny_tokenizer

TEXTS: list[Text] = [*tiny_texts(8, longest=60), ("a good film", "a bad story"), ""]


def again(made: Classifier) -> Classifier:
    opened: Classifier = pickle.loads(pickle.dumps(made))
    return opened


def check_same(one: Classifier, other: Classifier, texts: list[Text] = TEXTS) -> None:
    for mine, theirs in zip(one(texts), other(texts), strict=True):
        assert (mine.labels, mine.tokens, mine.depths) == (theirs.labels, theirs.tokens, theirs.depths)
        assert (mine.flops, mine.windows, mine.thresholds) == (theirs.flops, theirs.windows, theirs.thresholds)
        assert mine.scores == pytest.approx(theirs.scores, abs=1e-6)  # float32; where weights lie in memory changes sums


@pytest.mark.parametrize("family", BACKBONES)
def test_every_family_answers_the_same(family: str) -> None:
    backbone = view(tiny_model(family, layers=2))
    made = Classifier(backbone, tiny_tokenizer_of(family), tiny_reducer(backbone, spread=2.0))
    made("a good film")  # so that what views keep of their weights is made
    check_same(made, again(made))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_the_same(method: str) -> None:
    backbone = view(tiny_bert())
    made = Classifier(backbone, tiny_tokenizer(), TINY[method](backbone))
    check_same(made, again(made))


def test_a_model_that_removes_nothing_answers_the_same() -> None:
    check_same(made := tiny_classifier(reduced=False), again(made))


def test_what_a_classifier_was_told_is_kept(tmp_path: Path) -> None:
    model = tiny_bert()
    model.config.problem_type = "multi_label_classification"
    tokenizer = tiny_tokenizer()
    tokenizer.split_special_tokens = True  # which a tokenizer's own pickle forgets
    backbone = view(model)
    made = Classifier(
        backbone,
        tokenizer,
        tiny_reducer(backbone, spread=8.0),
        max_length=16,
        token_budget=64,
        always_keep=["film"],
        stride=4,
    )
    made.set_thresholds({made.labels[1]: 0.25})
    made.operating = Operating(1.5)
    made.folder, made.digest = tmp_path, "ab"
    opened = again(made)
    assert (opened.max_length, opened.token_budget, opened.labels) == (16, 64, made.labels)
    assert (opened.operating, opened.folder, opened.digest) == (made.operating, tmp_path, "ab")
    assert list(opened.runtime.thresholds or ()) == [0.5, 0.25, 0.5]
    texts: list[Text] = [*TEXTS, "a [SEP] film and a story"]
    check_same(made, opened, texts)
    assert [told.rationale() for told in opened.explain(texts)] == [told.rationale() for told in made.explain(texts)]


def test_another_process_opens_it(tmp_path: Path) -> None:
    made = tiny_classifier(spread=2.0)
    (tmp_path / "made.pickle").write_bytes(pickle.dumps(made))
    program = (
        "import json, pickle, sys\n"
        "opened = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(json.dumps(opened(sys.argv[2]).to_dict()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "made.pickle"), "a good film"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    expected = made("a good film").to_dict()
    assert told["scores"] == pytest.approx(expected["scores"]) and told["kept"] == expected["kept"]


def test_a_copy_has_weights_of_its_own() -> None:
    made = tiny_classifier(spread=2.0)
    before, copied = made("a good film").score, copy.deepcopy(made)
    with torch.no_grad():
        for weight in made.backbone.model.parameters():
            weight.mul_(1.5)
    assert copied("a good film").score == pytest.approx(before, abs=1e-6) != made("a good film").score
