"""Explainers on a tiny model, each against a plain way to say the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText, TextEncoder
from adapler.engine import Want, encode, pack
from adapler.errors import BadConfig, BadModel, MissingExtra, UnknownName
from adapler.evaluation import explainers
from adapler.evaluation.explainers import DEFAULT, EXPLAINERS, Explained, explain
from adapler.methods.base import Reducer
from adapler.training.saliency import saliency
from tests.tiny import tiny_bert, tiny_reducer, tiny_texts, tiny_tokenizer

LAYERS = 3


@pytest.fixture(scope="module")
def models() -> tuple[Backbone, Reducer]:
    backbone = view(tiny_bert(layers=LAYERS))
    return backbone, tiny_reducer(backbone, spread=2.0)


@pytest.fixture(scope="module")
def texts() -> list[EncodedText]:
    return TextEncoder(tiny_tokenizer(), 64)(tiny_texts(9, seed=5))


@pytest.fixture(scope="module")
def found(models: tuple[Backbone, Reducer], texts: list[EncodedText]) -> list[Explained]:
    done = dict(explain(DEFAULT, models[0], texts, reduced=models))
    return [done[index] for index in range(len(texts))]


def attentions(backbone: Backbone, text: EncodedText) -> np.ndarray[Any, Any]:
    """(layers, heads, n, n) by transformers itself."""
    ids = torch.from_numpy(text.ids)[None]
    backbone.model.set_attn_implementation("eager")
    with torch.no_grad():
        answer = backbone.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    return torch.cat(answer.attentions).numpy()


def check_rollout(found: list[Explained], models: tuple[Backbone, Reducer], texts: list[EncodedText]) -> None:
    for text, explained in zip(texts, found, strict=True):
        n = len(text.ids)
        rolled = np.eye(n)
        for layer, attention in enumerate(attentions(models[0], text).mean(axis=1)):
            mixed = attention + np.eye(n)
            rolled = mixed / mixed.sum(axis=1, keepdims=True) @ rolled
            others = [sum(rolled[asking, token] for asking in range(n) if asking != token) for token in range(n)]
            np.testing.assert_allclose(explained.scores["rollout"][layer], others, atol=1e-5)
            np.testing.assert_allclose(explained.scores["rollout_cls"][layer], rolled[0], atol=1e-6)


def check_saliency(found: list[Explained], models: tuple[Backbone, Reducer], texts: list[EncodedText]) -> None:
    """By autograd, one text and one layer at a time, the layers above run by transformers."""
    model = models[0].model
    for text, explained in zip(texts[:3], found[:3], strict=True):
        ids = torch.from_numpy(text.ids)[None]
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in range(LAYERS):
            x = states[layer].clone().requires_grad_()
            h: Any = x
            for block in model.bert.encoder.layer[layer:]:
                h = block(h)
                h = h[0] if isinstance(h, tuple) else h
            logits = model.classifier(torch.tanh(model.bert.pooler.dense(h[:, 0])))[0]
            assert int(logits.argmax()) == explained.predicted
            logits[explained.predicted].backward()
            assert x.grad is not None
            by_hand = (x.grad * x.detach()).norm(dim=-1)[0].numpy()
            np.testing.assert_allclose(explained.scores["saliency"][layer], by_hand, rtol=1e-3, atol=1e-6)


def test_rollout_equals_a_plain_loop(found: Any, models: Any, texts: Any) -> None:
    check_rollout(found, models, texts)


def test_rollout_without_the_residual_would_be_noticed(models: Any, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(attentions: Tensor) -> Tensor:
        rolled = [attentions[0]]
        for layer in attentions[1:]:
            rolled.append(layer @ rolled[-1])
        return torch.stack(rolled)

    monkeypatch.setattr(explainers, "rollout", forgetful)
    done = dict(explain(["rollout", "rollout_cls"], models[0], texts))
    with pytest.raises(AssertionError):
        check_rollout([done[index] for index in range(len(texts))], models, texts)


def test_attention_is_what_others_give_and_what_the_first_token_gives(found: Any, models: Any, texts: Any) -> None:
    for text, explained in zip(texts, found, strict=True):
        mean = attentions(models[0], text).mean(axis=1)
        received = mean.sum(axis=1) - np.diagonal(mean, axis1=1, axis2=2)
        np.testing.assert_allclose(explained.scores["attention"], received, atol=1e-5)
        np.testing.assert_allclose(explained.scores["attention_cls"], mean[:, 0], atol=1e-6)


def test_saliency_equals_autograd_by_hand_at_every_layer(found: Any, models: Any, texts: Any) -> None:
    check_saliency(found, models, texts)


def test_saliency_of_another_class_would_be_noticed(models: Any, texts: Any, found: Any) -> None:
    wrong = [(explained.predicted + 1) % 3 for explained in found]
    done = dict(explain(["saliency"], models[0], texts, labels=wrong))
    with pytest.raises(AssertionError):
        check_saliency([done[index] for index in range(len(texts))], models, texts)


def test_saliency_of_the_input_is_the_predictors_teacher(found: Any, models: Any, texts: Any) -> None:
    tokens, _ = pack(models[0], texts, torch.device("cpu"))
    taught = saliency(models[0], tokens, torch.tensor([explained.predicted for explained in found]))
    own = np.concatenate([explained.scores["saliency"][0] for explained in found])
    np.testing.assert_allclose(own, taught.numpy(), rtol=1e-4, atol=1e-6)


def test_contributions_are_those_of_the_trace_and_0_for_tokens_that_are_gone(found: Any, models: Any, texts: Any) -> None:
    gone = 0
    for text, explained in zip(texts, found, strict=True):
        with torch.no_grad():
            tokens, _ = pack(models[0], [text], torch.device("cpu"))
            _, trace = encode(models[0], tokens, models[1])
        for layer in range(LAYERS):
            step, scores = trace.at(layer), explained.scores["cp"][layer]
            np.testing.assert_allclose(scores[step.position], step.decision.score, atol=1e-6)
            assert scores.sum() == pytest.approx(1, abs=1e-5)
            absent = np.setdiff1d(np.arange(len(text.ids)), step.position)
            assert not scores[absent].any()
            gone += len(absent)
            assert explained.scores["kept"][layer].sum() == trace.lengths[layer]
            assert np.flatnonzero(explained.scores["kept"][layer]).tolist() == trace.kept[layer][1].tolist()
    assert gone > 20, "the case removes tokens"


def test_every_explainer_gives_a_score_a_layer_and_token_whatever_the_batch(found: Any, models: Any, texts: Any) -> None:
    for text, explained in zip(texts, found, strict=True):
        ((_, alone),) = explain(DEFAULT, models[0], [text], reduced=models)
        for name in DEFAULT:
            scores = explained.scores[name]
            assert scores.shape == (LAYERS, len(text.ids)) and (scores >= 0).all() and np.isfinite(scores).all(), name
            np.testing.assert_allclose(scores, alone.scores[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert not np.allclose(found[0].scores["random"][0], found[0].scores["random"][1]), "layers are drawn apart"


def test_one_pass_forward_and_one_backward_serve_all(models: Any, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Any] = []

    def counted(*args: Any, **named: Any) -> Any:
        passes.append(named.get("want"))
        return encode(*args, **named)

    monkeypatch.setattr(explainers, "encode", counted)
    list(explain(DEFAULT, models[0], texts, reduced=models))
    assert sorted(passes, key=str) == [None, Want(attentions=True, hidden=True)], "one at full length, one that removes"


def test_what_cannot_be_explained_is_told(models: Any, texts: Any) -> None:
    with pytest.raises(UnknownName, match="saliency"):
        list(explain(["salience"], models[0], texts))
    with pytest.raises(BadConfig, match="no explainer"):
        list(explain([], models[0], texts))
    with pytest.raises(BadModel, match="no reduction"):
        list(explain(["cp"], models[0], texts))
    with pytest.raises(BadModel, match="layers"):
        list(explain(["cp"], view(tiny_bert(layers=2)), texts, reduced=models))


def test_integrated_gradients_are_captums_or_name_the_extra(models: Any, texts: Any) -> None:
    asked = ["integrated_gradients"]
    try:
        import captum.attr  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=r"pip install 'adapler\[captum\]'"):
            list(explain(asked, models[0], texts[:1]))
        return
    ((_, found),) = explain(asked, models[0], texts[:1])
    scores = found.scores[asked[0]]
    assert scores.shape == (LAYERS, len(texts[0].ids)) and (scores[0] == scores[1]).all()
    assert (scores[:, 1:] > 0).all() and not scores[:, 0].any(), "the first token is in the text of padding too"


def test_integrated_gradients_ask_captum_for_the_predicted_class(
    models: Any, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adapler.evaluation import integrated

    sums: list[tuple[float, float]] = []

    class Plain:
        """captum's interface; the sum by hand, steps laid beside each other as rows."""

        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def attribute(self, x: Tensor, *, baselines: Tensor, target: int, n_steps: int, internal_batch_size: int) -> Tensor:
            assert internal_batch_size < n_steps and baselines.shape == x.shape
            share = (torch.arange(n_steps) + 0.5) / n_steps
            rows = (baselines + share[:, None, None] * (x - baselines)).requires_grad_()
            logits = self.answer(rows)
            (gradient,) = torch.autograd.grad(logits[:, target].sum(), rows)
            found = gradient.mean(dim=0, keepdim=True) * (x - baselines)
            whole, nothing = (float(self.answer(end)[0, target].detach()) for end in (x, baselines))
            sums.append((float(found.sum()), whole - nothing))
            return found

    monkeypatch.setattr(integrated, "_captum", lambda: Plain)
    done = dict(explain(["integrated_gradients", "saliency"], models[0], texts[:3]))
    assert [sum_ for sum_, _ in sums] == pytest.approx([change for _, change in sums], abs=1e-2), "they add up to the answer"
    for index, explained in done.items():
        scores = explained.scores["integrated_gradients"]
        assert scores.shape == (LAYERS, len(texts[index].ids)) and (scores[0] == scores[-1]).all()


def test_the_table_lists_every_explainer() -> None:
    assert [EXPLAINERS[name].layer in (0, -1) for name in EXPLAINERS] == [True] * len(EXPLAINERS)
    assert set(EXPLAINERS) - set(DEFAULT) == {"integrated_gradients"}
