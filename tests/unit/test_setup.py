"""What training starts from: folders it cannot take are refused with what they are and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.errors import BadModel
from adapler.training.setup import load_backbone, trained_classifier
from tests.tiny import tiny_classifier, tiny_texts

WAYS: dict[str, Callable[[str], Any]] = {
    "with its head": trained_classifier,
    "with a fresh head": lambda folder: load_backbone(folder, ("no", "yes"), seed=0),
}
"""Both ways into training."""


def refusal(way: Callable[[str], Any], folder: Path) -> str:
    with pytest.raises(BadModel) as caught:
        way(str(folder))
    return str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_pickle_is_refused_in_the_words_of_the_classifier(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_classifier(reduced=False).save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(WAYS[way], folder)
    assert "holds only pytorch_model.bin, a pickle" in said and "save it again with safetensors" in said
    with pytest.raises(BadModel) as caught:
        Classifier.from_pretrained(folder)
    assert str(caught.value) == said


@pytest.mark.parametrize("way", WAYS)
def test_a_reduced_folder_is_refused_and_what_to_do_instead_works(way: str, tmp_path: Path) -> None:
    made = tiny_classifier()
    made.save_pretrained(tmp_path / "reduced", format="reduced")
    said = refusal(WAYS[way], tmp_path / "reduced")
    assert "format='reduced' (model_type 'adapler')" in said and "out of date" not in said
    assert "Classifier.from_pretrained(FOLDER).save_pretrained(OTHER)" in said
    Classifier.from_pretrained(tmp_path / "reduced").save_pretrained(tmp_path / "plain")
    backbone, tokenizer = WAYS[way](str(tmp_path / "plain"))
    if way == "with its head":
        texts = tiny_texts(5)
        full = [answer.scores for answer in made(texts, point="full")]
        assert [answer.scores for answer in Classifier(backbone, tokenizer)(texts)] == [pytest.approx(row) for row in full]


@pytest.mark.parametrize("way", WAYS)
def test_a_family_that_transformers_does_not_know_either_is_refused_by_name(way: str, tmp_path: Path) -> None:
    tiny_classifier(reduced=False).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"model_type": "brandnew"}), encoding="utf-8")
    assert "model_type 'brandnew' is not supported; supported: bert" in refusal(WAYS[way], tmp_path / "model")
