"""The settings that take parts of AdapLeR away or put others in their place, each on its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from adapler.backbones import view
from adapler.config import build_config
from adapler.data.text import TextEncoder
from adapler.engine import encode, pack
from adapler.methods.adapler_losses import DIVERGENCES, objective
from adapler.training.progress import Silent
from adapler.training.run import train
from adapler.training.saliency import MEASURES
from tests.planted import planted_settings
from tests.tiny import tiny_bert, tiny_reducer, tiny_texts, tiny_tokenizer


def test_divergences_are_what_their_names_say() -> None:
    target, score = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    inclusive = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    exclusive = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    middle = (0.625, 0.375)
    both = [
        sum(p * math.log(p / m) for p, m in zip(probabilities, middle, strict=True))
        for probabilities in ((0.75, 0.25), (0.5, 0.5))
    ]
    expected = {"inclusive": inclusive, "exclusive": exclusive, "jensen_shannon": sum(both) / 2}
    assert {name: float(measure(target, score).sum()) for name, measure in DIVERGENCES.items()} == pytest.approx(expected)
    gone = torch.tensor([1.0, 0.0])
    assert all(float(measure(gone, gone)[1]) == 0 for measure in DIVERGENCES.values()), "absent tokens cost nothing"


def test_a_merged_length_loss_reaches_the_weights() -> None:
    backbone = view(tiny_bert())
    reducer = tiny_reducer(backbone)
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(6))
    tokens, _ = pack(backbone, texts, torch.device("cpu"))
    logits, trace = encode(backbone, tokens, reducer, soft=20.0)
    saliency = torch.ones_like(tokens.weight)
    labels = torch.zeros(6, dtype=torch.int64)
    apart, merged = (
        objective(reducer, logits, trace, labels, saliency, gamma=0.1, phi=0.5, merged=merged) for merged in (False, True)
    )
    assert float((merged.total - apart.total).detach()) == pytest.approx(0.5 * float(apart.length.detach()), rel=1e-5)
    assert torch.equal(merged.combined, apart.combined)


@pytest.mark.parametrize("apart", [False, True])
def test_predictors_that_stand_apart_do_not_change_the_network(apart: bool) -> None:
    backbone = view(tiny_bert())
    reducer = tiny_reducer(backbone)
    reducer.apart = apart
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(6))
    tokens, _ = pack(backbone, texts, torch.device("cpu"))
    logits, trace = encode(backbone, tokens, reducer, soft=20.0)
    saliency = torch.linspace(0, 1, len(tokens.weight))
    losses = objective(reducer, logits, trace, torch.zeros(6, dtype=torch.int64), saliency, gamma=0.1, phi=0.5)

    def reached(loss: torch.Tensor, parameters: list[torch.nn.Parameter]) -> bool:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        return any(each is not None and bool(each.abs().max() > 0) for each in found)

    network = list(backbone.model.parameters())
    assert reached(losses.contribution, network) is not apart
    assert reached(losses.label, network) and reached(losses.contribution, list(reducer.predictors.parameters()))
    reducer.apart = not apart
    torch.testing.assert_close(encode(backbone, tokens, reducer, soft=20.0)[0], logits, atol=0, rtol=0)


def test_attention_as_the_target_is_what_each_token_receives_from_the_others() -> None:
    model = tiny_bert(layers=2)
    backbone = view(model)
    texts = TextEncoder(tiny_tokenizer(), 64)(tiny_texts(3))
    tokens, counts = pack(backbone, texts, torch.device("cpu"))
    found = MEASURES["attention"](backbone, tokens, torch.zeros(3, dtype=torch.int64)).split(counts.tolist())
    model.set_attn_implementation("eager")
    for text, row in zip(texts, found, strict=True):
        ids = torch.from_numpy(text.ids)[None]
        with torch.no_grad():
            attentions = model(input_ids=ids, output_attentions=True).attentions
        mean = torch.stack(attentions).mean(dim=2)[:, 0]  # layers, asking, attended
        expected = (mean.sum(dim=1) - mean.diagonal(dim1=1, dim2=2)).mean(dim=0)
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"divergence": "exclusive"},
        {"divergence": "jensen_shannon", "learn_theta": False},
        {"merged": True, "target": "attention"},
    ],
    ids=str,
)
def test_a_run_with_parts_taken_away_ends(change: dict[str, Any], tmp_path: Path) -> None:
    settings = planted_settings(tmp_path)
    settings["finetune"]["epochs"] = 2
    settings["reduce"] |= {"epochs": 1, **change}
    report = train(build_config(settings), tmp_path / "run", Silent())
    (last,) = [row for row in report["history"] if row["phase"] == "reduce"]
    assert (last["theta"] == [1.0, 1.0]) is (change.get("learn_theta") is False)
