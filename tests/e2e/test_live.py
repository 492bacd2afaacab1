"""Models and data in memory: reduced in one call; learnt and asked through an estimator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import adapler
from adapler.config import build_config
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.planted import PLANTED, planted_settings

FEW = {"finetune": {"epochs": 5, "lr": 3e-3}, "reduce": {"epochs": 2, "lr": 1e-3, "predictor_lr": 1e-2}}
QUICK = {"finetune": {"epochs": 1}, "reduce": {"epochs": 1}, "data": {"max_length": 64}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("live")
    train(build_config(planted_settings(folder), FEW), folder / "first", Silent())
    return folder


def split(folder: Path, name: str) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in (folder / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def test_a_live_model_is_reduced_and_left_as_it_is(made: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(made / "first" / "work" / "full").eval()
    tokenizer = AutoTokenizer.from_pretrained(made / "first" / "work" / "full")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = {name: split(made, name) for name in ("train", "dev", "test")}
    settings = {"reduce": FEW["reduce"], "data": {"max_length": 64}}
    classifier = adapler.reduce(model, tokenizer, data, out=tmp_path / "run", settings=settings)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert any("phase 1 is skipped" in note for note in report["notes"])
    texts, labels = data["test"]
    found = classifier(texts)
    assert np.mean([one.label == label for one, label in zip(found, labels, strict=True)]) > 0.9
    assert sum(one.flops_full for one in found) / sum(one.flops for one in found) > 1.2
    again = adapler.reduce(model, tokenizer, data, out=tmp_path / "run", settings=settings)  # is finished, so nothing is done
    assert [one.label for one in again(texts)] == [one.label for one in found]


def test_an_estimator_behaves_like_one(made: Path, tmp_path: Path) -> None:
    texts, labels = split(made, "train")
    asked, right = split(made, "test")
    estimator = adapler.Estimator(model=str(made / "encoder"), settings={**FEW, "data": {"max_length": 64}}, seed=3)
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(BadModel, match="call fit first"):
        estimator.predict(asked)
    numbers = np.asarray([PLANTED.index(label) for label in labels])
    estimator.fit(np.asarray(texts), numbers)
    assert estimator.classes_.tolist() == [0, 1, 2]
    assert estimator.score(asked, [PLANTED.index(label) for label in right]) > 0.9
    shares = estimator.predict_proba(np.asarray(asked))
    assert shares.shape == (len(asked), 3)
    assert np.allclose(shares.sum(axis=1), 1)
    assert (estimator.classes_[shares.argmax(axis=1)] == estimator.predict(asked)).all()
    joblib.dump(estimator, tmp_path / "estimator.joblib")
    again = joblib.load(tmp_path / "estimator.joblib")
    assert (again.predict(asked) == estimator.predict(asked)).all() and again.get_params() == estimator.get_params()
    np.testing.assert_allclose(again.predict_proba(asked), shares, atol=1e-6)
    assert not hasattr(clone(again), "classifier_")  # the same settings, nothing learnt


def test_an_estimator_takes_a_table_of_labels(made: Path) -> None:
    texts, labels = split(made, "train")
    table = np.asarray([[int(label == word) for word in PLANTED] + [0] for label in labels])  # nobody has the last
    estimator = adapler.Estimator(model=str(made / "encoder"), settings=QUICK).fit(texts, table)
    assert estimator.predict(texts[:5]).shape == (5, 4)
    assert (estimator.predict_proba(texts[:5])[:, 3] == 0).all()
    assert 0 <= estimator.score(texts[:20], table[:20]) <= 1


def test_rows_of_0_and_1_and_lists_of_names_are_scored_as_they_are_learnt(made: Path) -> None:
    texts, labels = split(made, "train")
    rows = [[int(label == word) for word in PLANTED] for label in labels]
    by_rows = adapler.Estimator(model=str(made / "encoder"), settings=QUICK).fit(texts, rows)
    assert by_rows.classes_.tolist() == [0, 1, 2] and by_rows.predict(texts[:5]).shape == (5, 3)
    assert by_rows.score(texts[:20], rows[:20]) == by_rows.score(texts[:20], np.asarray(rows[:20]))
    by_names = adapler.Estimator(model=str(made / "encoder"), settings=QUICK).fit(texts, [[label] for label in labels])
    table = [[int(label == name) for name in by_names.classes_] for label in labels]
    assert by_names.classes_.tolist() == sorted(PLANTED)
    assert by_names.score(texts[:20], [[label] for label in labels[:20]]) == by_names.score(texts[:20], table[:20])
    with pytest.raises(BadInput, match="the labels hold 'other', the estimator has learnt"):
        by_names.score(texts[:1], [["other"]])
    with pytest.raises(BadInput, match="the labels hold a table of 2 columns"):
        by_names.score(texts[:1], [[0, 1]])


def test_an_estimator_reads_data_frames(made: Path) -> None:
    pandas = pytest.importorskip("pandas")
    texts, labels = split(made, "train")
    pairs = pandas.DataFrame({"premise": texts, "hypothesis": texts[::-1]})
    wanted = pandas.DataFrame({"label": [float(PLANTED.index(label)) for label in labels]})  # as merging leaves whole numbers
    estimator = adapler.Estimator(model=str(made / "encoder"), settings=QUICK).fit(pairs, wanted)
    assert estimator.classes_.tolist() == [0.0, 1.0, 2.0]
    alone = estimator.predict(list(zip(texts[:6], texts[::-1][:6], strict=True)))
    assert estimator.predict(pairs[:6]).tolist() == estimator.predict(pairs[:6].to_numpy()).tolist() == alone.tolist()
    assert estimator.score(pairs[:40], wanted[:40]) == estimator.score(pairs[:40], wanted[:40]["label"])


def test_an_estimator_scores_quantities_by_what_they_explain(made: Path) -> None:
    texts, labels = split(made, "train")
    wanted = np.asarray([PLANTED.index(label) - 0.5 for label in labels])
    estimator = adapler.Estimator(model=str(made / "encoder"), settings=QUICK).fit(texts, wanted)
    answers = estimator.predict(texts[:50])
    left = ((wanted[:50] - answers) ** 2).sum() / ((wanted[:50] - wanted[:50].mean()) ** 2).sum()
    assert estimator.score(texts[:50], wanted[:50]) == pytest.approx(1 - left)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"tran": (["a"], ["b"])}, BadConfig, "no split 'tran'"),
        ((["a", "b"], ["c"]), BadInput, "2 texts and 1 labels"),
        ((["a", 3], ["c", "d"]), BadInput, "expected"),
        ({"train": (["a", "b"], [["x", "y"], ["x"]]), "dev": (["c"], [[0, 1]])}, BadInput, "train none, dev 2.*write"),
    ],
)
def test_data_that_does_not_fit_is_refused(made: Path, data: Any, error: type[Exception], message: str) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(made / "first" / "work" / "full")
    tokenizer = AutoTokenizer.from_pretrained(made / "first" / "work" / "full")
    with pytest.raises(error, match=message):
        adapler.reduce(model, tokenizer, data)
