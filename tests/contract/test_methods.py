"""What every method of the table must do, on the one engine: agree between layouts, be counted right, be saved and opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from adapler import checkpoint
from adapler.backbones.bert import Bert
from adapler.bench.run import built, own_makers
from adapler.classifier import Classifier
from adapler.cli import app
from adapler.engine import Want, encode, model_cost
from adapler.folder import check_folder
from adapler.methods import METHODS
from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import contribution_losses, length_loss
from adapler.methods.base import Reducer
from adapler.methods.power import Power
from adapler.methods.settings import SETTINGS, PowerSettings
from adapler.methods.trbert import TrBert
from adapler.runtimes.torch_packed import TorchPacked
from adapler.tokens import Tokens
from tests.contract.batches import LAYOUTS, Text, end_to_end, in_rows, random_texts
from tests.contract.methods import EARLY, TINY, plain_early, plain_power, plain_trbert, tiny_power
from tests.contract.test_engine_equalities import close, same_kept
from tests.tiny import tiny_bert, tiny_texts, tiny_tokenizer

LENGTHS = (23, 1, 40, 2, 17, 31, 8, 40)


@pytest.fixture(params=TINY)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(method: str, dtype: torch.dtype = torch.float64) -> tuple[Bert, Reducer, list[Text]]:
    backbone = Bert(tiny_bert(6))
    reducer = TINY[method](backbone).to(dtype)
    backbone.model.to(dtype)
    return backbone, reducer, random_texts(LENGTHS)


def test_the_tables_name_the_same_methods() -> None:
    assert set(METHODS) == set(SETTINGS) == set(TINY) - {EARLY}


def test_every_method_has_as_many_speeds_to_choose_from() -> None:
    """A study takes the fastest point within its margin: who has more of them comes nearer to it."""
    assert len({len(METHODS[name].scales) for name in METHODS}) == 1
    for name in METHODS:
        scales = METHODS[name].scales
        assert scales[0] == 0 and 1 in scales and list(scales) == sorted(set(scales))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_rows_end_to_end_and_alone_agree(method: str, pooling: str) -> None:
    backbone, reducer, texts = made(method)
    backbone.pooling = pooling
    for scale in (None, 0.7, 1.3):
        scales = None if scale is None else torch.full((len(texts),), scale, dtype=torch.float64)
        (rows, in_rows_trace), (logits, trace) = (
            encode(backbone, arrange(backbone, texts), reducer, scale=scales) for arrange in (in_rows, end_to_end)
        )
        same_kept(in_rows_trace.kept, trace.kept, "rows and end to end")
        close(rows, logits, "rows and end to end")
        for at_layer, other in zip(in_rows_trace.feed_forward_lengths, trace.feed_forward_lengths, strict=True):
            assert torch.equal(at_layer, other)
        for row, text in enumerate(texts):
            alone, alone_trace = encode(
                backbone, end_to_end(backbone, [text]), reducer, scale=None if scales is None else scales[:1]
            )
            of_text = [(torch.zeros_like(place[of == row]), place[of == row]) for of, place in trace.kept]
            same_kept(alone_trace.kept, of_text, f"text {row} alone")
            close(alone[0], logits[row], f"text {row} alone")
    assert float(trace.lengths[-1].sum()) < 0.8 * sum(LENGTHS), "nothing left, nothing tested"


@torch.no_grad()
def test_the_last_layer_on_the_first_token_alone_is_the_whole_one(method: str) -> None:
    backbone, reducer, texts = made(method)
    for arrange in LAYOUTS.values():
        tokens = arrange(backbone, texts)
        short, trace = encode(backbone, tokens, reducer)
        whole, seen = encode(backbone, tokens, reducer, want=Want(hidden=True))
        close(short, whole, method)
        assert torch.equal(torch.stack(trace.feed_forward_lengths), torch.stack(seen.feed_forward_lengths))


@torch.no_grad()
def test_flops_follow_from_the_lengths_alone(method: str) -> None:
    backbone, reducer, texts = made(method)
    _, trace = encode(backbone, end_to_end(backbone, texts), reducer)
    cost = model_cost(backbone, reducer)
    for row, text in enumerate(texts):
        lengths, fed = ([int(n[row]) for n in per_layer] for per_layer in (trace.lengths, trace.feed_forward_lengths))
        assert cost.reduced(text.ids.numel(), lengths) == cost.reduced(text.ids.numel(), lengths, fed)


def test_a_larger_scale_keeps_fewer_tokens_and_zero_keeps_all(method: str) -> None:
    backbone, reducer, texts = made(method)
    kept = []
    for scale in (0.0, 0.5, 1.0, 1.5):
        with torch.no_grad():
            _, trace = encode(
                backbone,
                end_to_end(backbone, texts),
                reducer,
                scale=torch.full((len(texts),), scale, dtype=torch.float64),
            )
        kept.append(int(torch.stack(trace.lengths).sum()))
    assert kept[0] == sum(LENGTHS) * len(backbone.blocks)
    assert kept == sorted(kept, reverse=True) and kept[-1] < kept[0]


def test_a_saved_model_opens_and_answers_the_same(method: str, tmp_path: Path) -> None:
    backbone, reducer, _ = made(method, torch.float32)
    classifier = Classifier(TorchPacked(backbone, reducer), tiny_tokenizer(), max_length=64)
    texts = tiny_texts(20)
    before = classifier(texts)
    classifier.save_pretrained(tmp_path / "model")
    after = Classifier.from_pretrained(tmp_path / "model")(texts)
    assert [a.label for a in before] == [a.label for a in after]
    assert [a.lengths for a in before] == [a.lengths for a in after]
    assert [a.flops for a in before] == [a.flops for a in after]
    assert sum(a.flops for a in after) < sum(a.flops_full for a in after)


def test_every_verb_takes_a_saved_model(method: str, tmp_path: Path) -> None:
    backbone, reducer, _ = made(method, torch.float32)
    classifier = Classifier(TorchPacked(backbone, reducer), tiny_tokenizer(), max_length=64)
    classifier.save_pretrained(tmp_path / "model")
    texts = tiny_texts(40)
    rows = [{"text": text, "label": answer.label} for text, answer in zip(texts, classifier(texts), strict=True)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, given = str(tmp_path / "model"), ["--data", str(data)]
    for command in (
        ["dial", model, *given, "--quiet"],
        ["info", model],
        ["evaluate", model, *given],
        ["doctor", model],
        ["predict", model, str(data), "--tokens", "--quiet", "--speedup", "1.1"],
        ["explain", model, "--file", str(data), "--text", "text", "--limit", "2", "--point", "trained"],
        ["diff", model, *given, "--limit", "2"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{command}: {done.output}"


def test_a_method_without_an_onnx_form_is_timed_in_torch_alone(tmp_path: Path) -> None:
    backbone, reducer, _ = made("power", torch.float32)
    Classifier(TorchPacked(backbone, reducer), tiny_tokenizer(), max_length=64).save_pretrained(tmp_path / "model")
    folder = check_folder(tmp_path / "model")
    said: list[str] = []
    makers = own_makers(folder, checkpoint.load(folder), tmp_path, 1, [])
    found = built(makers, list(makers), said.append)
    assert list(found) == ["torch"] and any("no ONNX form" in line for line in said)


@torch.no_grad()
@pytest.mark.parametrize(("name", "plain"), [("power", plain_power), ("trbert", plain_trbert), (EARLY, plain_early)])
def test_the_rule_is_the_papers_over_transformers_layers(name: str, plain: Any) -> None:
    backbone, reducer, texts = made(name)
    logits, trace = encode(backbone, end_to_end(backbone, texts), reducer)
    after_attention = name == "power"
    for row, text in enumerate(texts):
        expected, kept = plain(backbone.model, reducer, text.ids, text.types)
        close(logits[row], expected, f"text {row}")
        for layer, (of, place) in enumerate(trace.kept[1:] if after_attention else trace.kept):
            assert place[of == row].tolist() == kept[layer], f"text {row}, layer {layer}"


def test_a_short_text_keeps_what_it_has_of_the_configuration() -> None:
    """The paper's own example, appendix C."""
    configuration = (153, 125, 111, 105, 85, 80, 72, 48, 35, 27, 22, 5)
    reducer = Power(PowerSettings(ranks=256), 12)
    with torch.no_grad():
        for layer, count in enumerate(configuration):
            reducer.retention[layer] = (torch.arange(256) < count).float()
    went_on = [int(reducer.going_on(torch.tensor([75.0]), layer, scale=None)) for layer in range(12)]
    assert went_on == [75, 75, 75, 75, 75, 75, 72, 48, 35, 27, 22, 5]


def test_a_configuration_never_grows_and_never_ends() -> None:
    reducer = Power(PowerSettings(ranks=8), 4)
    with torch.no_grad():
        reducer.retention.copy_(torch.tensor([[0.5] * 8, [0.7] * 8, [0.05] * 8, [1.0] * 8]))
    assert reducer.lengths().tolist() == [4, 4, 1, 1]


def test_a_configuration_of_one_token_everywhere_can_still_be_slowed() -> None:
    """A speed nobody can reach must not scale a configuration below one token, where the dial would stand still."""
    reducer = Power(PowerSettings(ranks=8), 3)
    with torch.no_grad():
        reducer.retention.copy_(torch.tensor([[0.75] * 8, [0.5] * 8, [0.25] * 8]))
    _, high = reducer.scale_range()
    reducer.rescale(high)
    assert reducer.lengths().tolist() == [1, 1, 1]
    assert reducer.scale_range() == pytest.approx((1 / 8, 1.0))
    reducer.rescale(1 / 6)
    assert reducer.lengths().tolist() == [6, 4, 2], "what each layer had is still told apart"


def test_searching_shrinks_vectors_by_rank_alike_in_both_layouts() -> None:
    backbone, reducer, texts = made("power")
    assert isinstance(reducer, Power)
    with torch.no_grad():
        reducer.retention.copy_(torch.rand(reducer.retention.shape, generator=torch.Generator().manual_seed(0)))
    runs = []
    for arrange in LAYOUTS.values():
        logits, trace = encode(backbone, arrange(backbone, texts), reducer, soft=1.0)
        (gradient,) = torch.autograd.grad(logits.square().sum(), reducer.retention)
        assert all(torch.equal(length, trace.lengths[0]) for length in trace.lengths), "nobody leaves"
        runs.append((logits, gradient))
    close(runs[0][0], runs[1][0], "logits")
    close(runs[0][1], runs[1][1], "gradient")
    assert float(runs[0][1][:, 0].abs().min()) > 0, "every layer's first rank is learnt"


def test_an_actor_decides_instead_of_the_threshold() -> None:
    backbone, reducer, texts = made("trbert")
    assert isinstance(reducer, TrBert)
    seen = []

    def every_second(tokens: Tokens, probability: torch.Tensor, layer: int) -> torch.Tensor:
        seen.append(layer)
        return tokens.position % 2 == 0

    with reducer.acting(every_second):
        logits, trace = encode(backbone, end_to_end(backbone, texts), reducer)
    assert seen == list(reducer.sites) == [1, 3]
    text, place = trace.kept[1]
    assert bool((place % 2 == 0).all()) and int((text == 2).sum()) == 20
    likelihood = trace.at(1).decision.logit
    assert likelihood is not None and likelihood.requires_grad and reducer.actor is None
    assert not torch.equal(logits, encode(backbone, end_to_end(backbone, texts), reducer)[0])


@pytest.mark.parametrize("bug", ["own attention", "later places"])
def test_a_planted_bug_in_the_significance_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapler.layout import Packed, Padded

    received = Padded.received

    def planted(self: Any, tokens: Tokens, probabilities: torch.Tensor) -> Any:
        if bug == "own attention":
            return self.unrows(probabilities.mean(dim=1).sum(dim=-2))
        return received(self, tokens, probabilities) + 0.05 * tokens.position

    for layout in (Padded, Packed):
        monkeypatch.setattr(layout, "received", planted)
    with pytest.raises(AssertionError):
        test_the_rule_is_the_papers_over_transformers_layers("power", plain_power)


@pytest.mark.parametrize("bug", ["predictor of the layer itself", "after the feed-forward part"])
def test_a_planted_bug_in_early_leaving_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = AdapLeR._predictor

    def planted(self: AdapLeR, site: str, layer: int) -> int | None:
        if bug == "after the feed-forward part":
            return layer if site == "layer_input" else None
        found = asked(self, site, layer)
        return found if found is None else layer

    monkeypatch.setattr(AdapLeR, "_predictor", planted)
    with pytest.raises(AssertionError):
        test_the_rule_is_the_papers_over_transformers_layers(EARLY, plain_early)


def test_early_leaving_learns_alike_in_both_layouts_and_is_charged_for_attention() -> None:
    backbone, reducer, texts = made(EARLY)
    assert isinstance(reducer, AdapLeR)
    runs = []
    for arrange in LAYOUTS.values():
        _, trace = encode(backbone, arrange(backbone, texts), reducer, soft=50.0)
        saliency = torch.ones_like(trace.steps[0].weight)
        losses = contribution_losses(reducer, trace, saliency)
        gradients = torch.autograd.grad(losses.sum() + length_loss(trace), [reducer.eta, *reducer.predictors.parameters()])
        runs.append((losses, length_loss(trace), *gradients))
        entered, fed = torch.stack(trace.lengths), torch.stack(trace.feed_forward_lengths)
        close(fed[:-1], entered[1:], "who is fed enters the next layer")
        close(runs[-1][1], (entered / 3 + fed * 2 / 3).sum(dim=0).mean(), "length")
        assert [step.in_front for step in trace.steps] == list(range(len(backbone.blocks)))
    for number, (one, other) in enumerate(zip(*runs, strict=True)):
        close(one, other, f"part {number}")


def test_power_of_one_layer_of_everything_is_the_full_model() -> None:
    backbone = Bert(tiny_bert(3))
    texts = random_texts([5, 9])
    reducer = tiny_power(backbone, kept=(64.0, 64.0, 64.0))
    with torch.no_grad():
        close(
            encode(backbone, end_to_end(backbone, texts), reducer)[0],
            encode(backbone, end_to_end(backbone, texts))[0],
            "nothing leaves",
        )
