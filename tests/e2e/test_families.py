"""Every family trained by the command's own function, saved, opened, asked, and exported with its removal inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapler.backbones import BACKBONES
from adapler.checkpoint import quiet
from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.contract.exports import case_for, check_agrees, exported_runtime, run_batches
from tests.families import tiny_model, tiny_tokenizer_of
from tests.planted import write_planted_data
from tests.tiny import tiny_reducer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_planted_data(tmp_path_factory.mktemp("data"), train=48, dev=16, test=16)


@pytest.mark.parametrize("family", BACKBONES)
def test_a_family_trains_saves_opens_answers_and_exports(family: str, data: Path, tmp_path: Path) -> None:
    with quiet():
        tiny_model(family, layers=2, hidden=16, dropout=0.1, max_positions=80).save_pretrained(tmp_path / "encoder")
        tiny_tokenizer_of(family, 64).save_pretrained(tmp_path / "encoder")
    settings = {
        "model": str(tmp_path / "encoder"),
        "data": {"source": str(data), "max_length": 64},
        "finetune": {"epochs": 1, "lr": 1e-3},
        "reduce": {"epochs": 1, "lr": 1e-3, "gamma": 0.1, "phi": 0.02, "predictor_lr": 1e-2},
    }
    report = train(build_config(settings), tmp_path / "run", Silent())
    assert {row["phase"] for row in report["history"]} >= {"finetune", "reduce"} and "test" in report["splits"]
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    texts = [json.loads(line)["text"] for line in (data / "test.jsonl").read_text().splitlines()]
    opened = Classifier.from_pretrained(tmp_path / "run")
    assert opened.backbone.model.config.model_type == family
    answers = opened(texts)
    assert {answer.label for answer in answers} <= set(opened.labels)
    told = opened.explain(texts[0])
    assert [word.text for word in told.words] == texts[0].split() and told.prediction.depths == answers[0].depths
    opened.save_pretrained(tmp_path / "reduced", format="reduced")
    again = Classifier.from_pretrained(tmp_path / "reduced")(texts)
    assert [answer.depths for answer in again] == [answer.depths for answer in answers]
    # Predictors of so short a training remove nothing yet; others do, so that the graph has something to get wrong.
    made = Classifier(opened.backbone, opened.tokenizer, tiny_reducer(opened.backbone, eta=0.5, spread=1.5))
    case = case_for(made, 30)
    assert min(answer.lengths[0, -1] / len(text.ids) for text, answer in zip(case.texts, case.answers, strict=True)) < 0.6
    runtime = exported_runtime(made, tmp_path / "exported")
    for size in (1, 8):
        check_agrees(run_batches(runtime, case, size), case.answers)
