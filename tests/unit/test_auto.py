"""Reduced models behind transformers' own doors: pipelines, the Auto classes, a folder with its own model type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from adapler.backbones import BACKBONES, view
from adapler.classifier import Classifier
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.points import Dial, Point
from tests.families import tiny_model, tiny_tokenizer_of
from tests.tiny import tiny_bert, tiny_classifier, tiny_reducer, tiny_texts, tiny_tokenizer

TEXTS = tiny_texts(24, longest=40)
PAIRS = list(zip(TEXTS[:8], TEXTS[8:16], strict=True))


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    made = tiny_classifier(spread=8.0)
    found = made(TEXTS)
    assert any(one.lengths[-1] < one.lengths[0] for one in found)  # tokens leave
    return made


def labels_and_scores(answers: list[Any]) -> list[Any]:
    return [(answer["label"], pytest.approx(answer["score"], abs=1e-5)) for answer in answers]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_pipeline_gives_the_same_answers(classifier: Classifier, batch_size: int) -> None:
    piped = pipeline("text-classification", model=classifier.model, tokenizer=classifier.tokenizer, batch_size=batch_size)
    assert [(one.label, one.score) for one in classifier(TEXTS)] == labels_and_scores(piped(TEXTS))
    pairs = [{"text": text, "text_pair": pair} for text, pair in PAIRS]
    assert [(one.label, one.score) for one in classifier(PAIRS)] == labels_and_scores(piped(pairs))


def test_it_runs_where_the_classifier_does(classifier: Classifier) -> None:
    """At another scale the same text gives other logits; at 0 the plain model's."""
    model = classifier.model
    inputs = classifier.tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    with torch.inference_mode():
        reduced, whole = model(**inputs).logits, model(**inputs, scale=0).logits
        plain = classifier.backbone.model(**inputs).logits
    torch.testing.assert_close(whole, plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(reduced, plain, atol=1e-3)


DIAL = Dial(
    data="made",
    n=1,
    metric="accuracy",
    reference="itself",
    reference_score=1.0,
    points=(
        Point(name="full", scale=0, score=1, loss_points=0, flops_speedup=1, flops_speedup_executed=1),
        Point(name="2x", scale=2, score=0.9, loss_points=10, flops_speedup=2, flops_speedup_executed=2),
        Point(
            name="1.8x+0.9",
            scale=2,
            escalate=0.9,
            careful=0,
            score=0.95,
            loss_points=5,
            flops_speedup=1.8,
            flops_speedup_executed=1.8,
        ),
    ),
)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"point": "1.8x+0.9"}, "an escalating operating point"),
        ({"escalate": 0.9}, "an escalating operating point"),
        ({"always_keep": ["film"]}, "always_keep"),
        ({"stride": 4}, "stride"),
        ({"always_keep": ["film"], "stride": 4}, "always_keep and stride"),
    ],
)
def test_what_a_transformers_model_cannot_express_is_refused(
    classifier: Classifier, tmp_path: Path, asked: dict[str, Any], named: str
) -> None:
    Classifier(classifier.backbone, classifier.tokenizer, classifier.reducer, dial=DIAL).save_pretrained(tmp_path / "model")
    with pytest.raises(BadConfig, match=f"cannot express {named} and would give other answers.*open the classifier without"):
        _ = Classifier.from_pretrained(tmp_path / "model", **asked).model


def test_a_point_of_one_run_is_piped_and_nothing_is_refused_in_vain(classifier: Classifier) -> None:
    made = Classifier(classifier.backbone, classifier.tokenizer, classifier.reducer, dial=DIAL)
    made.operate(point="2x")
    piped = pipeline("text-classification", model=made.model, tokenizer=made.tokenizer)
    assert [(one.label, one.score) for one in made(TEXTS)] == labels_and_scores(piped(TEXTS))
    whole = Classifier(tiny_bert(), tiny_tokenizer(), always_keep=["film"])  # removes nothing, so it keeps the words anyway
    assert whole.model is whole.backbone.model


def test_a_classifier_can_be_made_of_it(classifier: Classifier) -> None:
    again = Classifier(classifier.model, classifier.tokenizer)
    assert [one.depths for one in again(TEXTS)] == [one.depths for one in classifier(TEXTS)]


@pytest.mark.parametrize("family", BACKBONES)
def test_every_family_is_padded_on_either_side_and_piped(family: str) -> None:
    backbone = view(tiny_model(family))
    made = Classifier(backbone, tiny_tokenizer_of(family), tiny_reducer(backbone, spread=8.0), max_length=60)
    expected = made(TEXTS)
    sides = []
    for side in ("left", "right"):
        tokenizer = tiny_tokenizer_of(family)
        tokenizer.padding_side = side
        inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=60, return_tensors="pt")
        with torch.inference_mode():
            sides.append(made.model(**inputs).logits)
    torch.testing.assert_close(*sides, atol=1e-5, rtol=1e-5)
    piped = pipeline("text-classification", model=made.model, tokenizer=made.tokenizer, truncation=True, max_length=60)
    assert [answer["label"] for answer in piped(TEXTS, batch_size=7)] == [answer.label for answer in expected]


def test_a_reduced_folder_opens_reduced_everywhere(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path / "model", format="reduced")
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "adapler"
    program = (
        "import sys, torch, adapler.auto\n"
        "from transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
        "model, tokenizer = M.from_pretrained(sys.argv[1]).eval(), T.from_pretrained(sys.argv[1])\n"
        "print(model(**tokenizer(sys.argv[2], return_tensors='pt')).logits.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model"), TEXTS[0]], capture_output=True, text=True, check=True
    )
    with torch.inference_mode():
        expected = classifier.model(**classifier.tokenizer(TEXTS[0], return_tensors="pt")).logits
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected, atol=1e-5, rtol=1e-5)
    again = Classifier.from_pretrained(tmp_path / "model")
    for one, other in zip(again(TEXTS), classifier(TEXTS), strict=True):
        assert (one.label, one.depths) == (other.label, other.depths)
    again.save_pretrained(tmp_path / "plain")  # and back
    assert json.loads((tmp_path / "plain" / "config.json").read_text(encoding="utf-8"))["model_type"] != "adapler"
    assert Classifier.from_pretrained(tmp_path / "plain")(TEXTS[0]).depths == classifier(TEXTS[0]).depths


def test_the_plain_folder_opens_plain(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path / "model")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path / "model")(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(plain(**inputs).logits, classifier.backbone.model(**inputs).logits)


def test_what_cannot_be_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no format 'tidy'"):
        classifier.save_pretrained(tmp_path / "model", format="tidy")
    with pytest.raises(BadModel, match="no reduction"):
        Classifier(tiny_bert(), tiny_tokenizer()).save_pretrained(tmp_path / "model", format="reduced")
    assert not list(tmp_path.iterdir())
    ids = torch.full((1, 600), 5)
    with pytest.raises(BadInput, match="truncation=True"):
        classifier.model(input_ids=ids)
    with pytest.raises(BadInput, match="nothing but padding"):
        classifier.model(input_ids=ids[:, :4], attention_mask=torch.zeros(1, 4))


@pytest.mark.parametrize("damage", [{"reduction": {"method": "none"}}, {"backbone": 3}, {"backbone": {"model_type": "gpt"}}])
def test_a_damaged_reduced_folder_is_refused(classifier: Classifier, tmp_path: Path, damage: dict[str, Any]) -> None:
    classifier.save_pretrained(tmp_path / "model", format="reduced")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | damage), encoding="utf-8")
    with pytest.raises(BadModel):
        Classifier.from_pretrained(tmp_path / "model")


def test_a_loss_is_given_where_labels_are(classifier: Classifier) -> None:
    inputs = classifier.tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    out = classifier.model(**inputs, labels=torch.tensor([0, 1, 0, 1]))
    assert out.loss.item() == pytest.approx(torch.nn.functional.cross_entropy(out.logits, torch.tensor([0, 1, 0, 1])).item())
    assert len(classifier.model(**inputs, return_dict=False)) == 1
