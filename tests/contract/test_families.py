"""Every family in the table keeps what is promised of one: the engine is transformers' forward, removal leaves positions alone,
layouts agree, soft is hard at its steepest, every weight learns, costs are counted, folders open again.

Runs over `BACKBONES`; a family without a tiny model in `tests/families.py` fails here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from adapler.attention import eager
from adapler.backbones import BACKBONES, view
from adapler.backbones.deberta import Deberta, DebertaBlock
from adapler.classifier import Classifier
from adapler.engine import Want, encode, model_cost
from adapler.methods import METHODS
from adapler.tokens import LOG_WEIGHT_FLOOR
from adapler.training.optim import decayed
from tests.contract.batches import Setup, Text, assert_worth_testing, end_to_end, family_setup, in_rows
from tests.contract.methods import TINY
from tests.contract.test_engine_equalities import (
    check_engine_equals_transformers,
    check_first_token_alone_equals_full_last_layer,
    check_packed_equals_padded_equals_alone,
    check_soft_packed_equals_soft_padded,
    check_steepest_soft_equals_hard,
)
from tests.contract.test_flops import counted
from tests.families import CASES, SETTINGS, has_segments, tiny_classifier_of, tiny_model, tiny_tokenizer_of
from tests.tiny import tiny_texts

LENGTHS = {"1": [1], "2": [2], "17": [17], "300": [300], "mixed": [3, 17, 40, 1, 9, 64]}
every_case = pytest.mark.parametrize(("family", "variant"), CASES, ids=["-".join(filter(None, case)) for case in CASES])
every_family = pytest.mark.parametrize("family", BACKBONES)


@torch.no_grad()
def check_removal_is_masking_in_transformers(made: Setup) -> None:
    """Hard removal end to end is transformers' own forward over the whole text, where from each layer on nobody sees what the
    paper's rule removes there. Nothing is ever shortened on that side, so every position, window and distance is original."""
    logits, trace = encode(made.backbone, end_to_end(made.backbone, made.texts), made.reducer)
    for row, text in enumerate(made.texts):
        with masking(made) as kept:
            expected = plain_logits(made, text, kept)
        for layer, (of, place) in enumerate(trace.kept):
            assert place[of == row].tolist() == kept[layer].nonzero().flatten().tolist(), f"text {row}, layer {layer}"
        # float32 inside: some families turn queries and keys in it, whatever the model's type.
        assert torch.allclose(logits[row], expected, atol=1e-5, rtol=1e-5), f"text {row}"
    assert_worth_testing(trace.lengths, made.counts)


def needs_layers_of_now(family: str) -> None:
    """Skip a test that looks into transformers' layers where they were written otherwise. What the engine computes is held
    against the whole model by other tests, in every version."""
    if family == "modernbert" and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 22):
        pytest.skip("masks go into this family's layers another way before transformers 5.22")


@contextmanager
def masking(made: Setup) -> Iterator[list[Tensor]]:
    """While open, a text run through transformers' model loses tokens layer by layer; which are left, per layer (n,)."""
    kept: list[Tensor] = []

    def before(index: int, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        x = named["hidden_states"] if "hidden_states" in named else args[0]
        alive = kept[-1].clone() if kept else torch.ones(x.shape[1], dtype=torch.bool)
        share = made.reducer.predictors[index](x[0, alive]).softmax(0)
        alive[alive.clone()] = share >= made.reducer.eta[index] / len(share)
        alive[0] = True
        kept.append(alive)
        if "attention_mask" in named:
            return args, {**named, "attention_mask": thinned(named["attention_mask"], alive, x.dtype)}
        return (x, thinned(args[1], alive, x.dtype), *args[2:]), named

    with ExitStack() as hooks:
        for index, layer in enumerate(layers_of(made.backbone.model)):
            hook = layer.register_forward_pre_hook(partial(before, index), with_kwargs=True)
            hooks.callback(hook.remove)
        yield kept


def thinned(mask: Tensor | None, alive: Tensor, dtype: torch.dtype) -> Tensor:
    """An attention mask of transformers, added or multiplied, that hides what is not alive."""
    if mask is not None and not mask.is_floating_point():
        return mask * alive
    gone = torch.zeros(alive.numel(), dtype=dtype).masked_fill(~alive, LOG_WEIGHT_FLOOR)
    return gone[None, None, None] if mask is None else mask + gone


def plain_logits(made: Setup, text: Text, kept: list[Tensor]) -> Tensor:
    """transformers' logits of one text. A mean is taken over the survivors by hand: transformers knows only the first mask."""
    model = made.backbone.model
    model.set_attn_implementation("eager")
    segments = {"token_type_ids": text.types[None]} if has_segments(model) else {}
    given = {"input_ids": text.ids[None], "attention_mask": torch.ones(1, text.ids.numel(), dtype=torch.int64), **segments}
    if made.backbone.pooling == "first":
        logits: Tensor = model(**given).logits[0]
        return logits
    last = model.base_model(**given).last_hidden_state
    return made.backbone.classify(last[:, kept[-1]].mean(dim=1))[0]


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The layers of a model: its one list of modules."""
    (found,) = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return found


def check_costs_what_torch_counts(made: Setup) -> None:
    """Full length, every layer complete, a text at a time: the engine, and transformers' own model, cost what is said."""
    cost = model_cost(made.backbone, None)
    made.backbone.model.requires_grad_(False)  # the counter stumbles over a part of a weight that could learn
    with torch.no_grad():
        encode(made.backbone, end_to_end(made.backbone, made.texts))  # what depends on weights alone is made once and kept
    for text in made.texts:
        n, tokens = text.ids.numel(), end_to_end(made.backbone, [text])
        embedded, _ = counted(partial(end_to_end, made.backbone, [text]))
        ours, _ = counted(partial(encode, made.backbone, tokens, want=Want(attentions=True)))
        assert embedded + ours == cost.full(n), f"engine, {n} tokens"
        theirs, _ = counted(partial(plain_logits, made, text, [torch.ones(n, dtype=torch.bool)]))
        assert theirs == cost.full(n) + made_every_time(made), f"transformers, {n} tokens"


def made_every_time(made: Setup) -> int:
    """FLOPs that transformers spends on weights alone at every call, and the engine once."""
    if not isinstance(made.backbone, Deberta):
        return 0
    flops = 0
    for block in made.backbone.blocks:
        assert isinstance(block, DebertaBlock)
        projections = sum(part is not None for part in (block.as_keys, block.as_queries))
        if projections:
            shared = getattr(made.backbone.model.config, "share_att_key", False)
            flops += (
                (2 if shared else projections) * 2 * block.positions * made.backbone.hidden_size * block.heads * block.width
            )
    return flops


def test_every_family_has_a_tiny_model() -> None:
    assert set(SETTINGS) == set(BACKBONES), "tests/families.py and the table of backbones name different families"
    assert all("" in variants for variants in SETTINGS.values())


@every_case
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_engine_is_the_transformers_forward(family: str, variant: str, lengths: str) -> None:
    check_engine_equals_transformers(family_setup(family, variant, torch.float32, lengths=LENGTHS[lengths], layers=3))


@every_case
def test_removal_is_masking_in_transformers_own_layers(family: str, variant: str) -> None:
    needs_layers_of_now(family)
    check_removal_is_masking_in_transformers(family_setup(family, variant))


@every_case
def test_rows_end_to_end_and_alone_agree(family: str, variant: str) -> None:
    check_packed_equals_padded_equals_alone(family_setup(family, variant))


@every_case
def test_soft_removal_at_its_steepest_is_hard_removal(family: str, variant: str) -> None:
    check_steepest_soft_equals_hard(family_setup(family, variant))


@every_family
def test_soft_removal_agrees_between_layouts_with_its_gradients(family: str) -> None:
    check_soft_packed_equals_soft_padded(family_setup(family))


@every_family
def test_the_last_layer_needs_only_the_first_token(family: str) -> None:
    check_first_token_alone_equals_full_last_layer(family_setup(family))


@every_case
def test_half_precision_runs_and_stays_near(family: str, variant: str) -> None:
    made = family_setup(family, variant, torch.float32)
    half = family_setup(family, variant, torch.bfloat16)
    for arrange in (in_rows, end_to_end):
        with torch.no_grad():
            expected = encode(made.backbone, arrange(made.backbone, made.texts))[0]
            whole = encode(half.backbone, arrange(half.backbone, half.texts))[0]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                mixed = encode(made.backbone, arrange(made.backbone, made.texts))[0]
        assert whole.dtype == torch.bfloat16
        for got in (whole, mixed):
            assert float((got.float() - expected).abs().max()) < 0.1 * float(expected.abs().max()), "bfloat16 has 8 bits"


@every_family
def test_norms_and_biases_are_not_decayed(family: str) -> None:
    model = tiny_model(family, layers=2)
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(prefix=path, recurse=False):
            plain = not isinstance(module, nn.LayerNorm) and not name.endswith("bias")
            assert decayed(name) == (plain and "relative_attention_bias" not in name), name


@every_family
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_the_same_in_rows_and_end_to_end(family: str, method: str) -> None:
    made = family_setup(family)
    reducer = TINY[method](made.backbone).to(torch.float64)  # a fresh one removes nothing
    with torch.no_grad():
        (rows, seen), (logits, trace) = (
            encode(made.backbone, arrange(made.backbone, made.texts), reducer) for arrange in (in_rows, end_to_end)
        )
    torch.testing.assert_close(rows, logits, atol=1e-10, rtol=1e-10)
    assert all(torch.equal(one, other) for one, other in zip(seen.lengths, trace.lengths, strict=True))
    assert int(trace.lengths[-1].sum()) < int(trace.lengths[0].sum()) <= sum(made.counts), "something left"


@every_case
def test_gradients_reach_the_weights_that_transformers_reaches(family: str, variant: str) -> None:
    made = family_setup(family, variant, torch.float32, layers=2)
    model = made.backbone.model
    text = made.texts[0]

    def gradients(logits: Tensor) -> dict[str, Tensor | None]:
        weights = dict(model.named_parameters())
        found = torch.autograd.grad(logits.square().sum(), list(weights.values()), allow_unused=True)
        return dict(zip(weights, found, strict=True))

    theirs = gradients(plain_logits(made, text, [torch.ones(text.ids.numel(), dtype=torch.bool)]))
    for arrange in (in_rows, end_to_end):
        ours = gradients(encode(made.backbone, arrange(made.backbone, [text]))[0])
        for name, expected in theirs.items():
            got = ours[name]
            assert (got is None) == (expected is None), name
            if got is not None and expected is not None:
                assert torch.allclose(got, expected, atol=1e-4, rtol=1e-3), name
    reached = [name for name, gradient in theirs.items() if gradient is not None and gradient.abs().sum() > 0]
    assert len(reached) >= 0.9 * len(theirs)


@every_case
def test_costs_are_what_torch_counts(family: str, variant: str) -> None:
    needs_layers_of_now(family)
    check_costs_what_torch_counts(family_setup(family, variant, torch.float32, lengths=[1, 9, 40], layers=2))


@every_case
def test_the_executed_run_costs_what_torch_counts(family: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "adapler.layout.fused_attention", lambda *heads, scale, dropout: eager(*heads, scale=scale, dropout=0)[0]
    )
    made = family_setup(family, variant, torch.float32, lengths=[1, 9, 40], layers=3)
    cost = model_cost(made.backbone, made.reducer)
    for text in made.texts:
        run = partial(encode, made.backbone, end_to_end(made.backbone, [text]), made.reducer)
        run()
        with torch.no_grad():
            run()
        flops, (_, trace) = counted(run)
        lengths = [int(length) for length in torch.cat(trace.lengths)]
        assert flops + cost.embedding * text.ids.numel() == cost.reduced(text.ids.numel(), lengths, executed=True)


@every_case
def test_a_saved_model_answers_as_before_and_transformers_opens_it(family: str, variant: str, tmp_path: Path) -> None:
    made = tiny_classifier_of(family, variant, layers=3)
    texts: list[Any] = [*tiny_texts(12), "", ("a film", "a really bad story"), "x" * 900, "naïve 日本 🙂"]
    made.save_pretrained(tmp_path / "model")
    opened = Classifier.from_pretrained(tmp_path / "model")
    for before, after in zip(made(texts), opened(texts), strict=True):
        assert (before.label, before.tokens, before.kept) == (after.label, after.tokens, after.kept)
        assert before.scores == pytest.approx(after.scores, abs=1e-6)
    assert min(len(answer.kept[-1]) / len(answer.tokens) for answer in opened(texts)) < 0.7, "nothing is removed"
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", local_files_only=True).eval()
    full = Classifier(model, tiny_tokenizer_of(family))
    with torch.no_grad():
        for text in texts[:12]:
            expected = model(**full.tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
            got = torch.tensor([full(text).scores[label] for label in full.labels])
            torch.testing.assert_close(got, expected.to(got.dtype), atol=1e-5, rtol=1e-5)


@every_family
def test_a_tokenizer_that_pads_on_the_left_changes_nothing(family: str) -> None:
    backbone = view(tiny_model(family, layers=2))
    texts: Sequence[Any] = [*tiny_texts(8), ("a film", "a really bad story")]
    plain, left = tiny_tokenizer_of(family), tiny_tokenizer_of(family)
    left.padding_side = "left"
    left.backend_tokenizer.enable_padding(direction="left", pad_id=left.pad_token_id, pad_token=left.pad_token, length=64)
    assert left.backend_tokenizer.encode(texts[0]).ids[0] == left.pad_token_id, "the tokenizer does pad"
    for expected, got in zip(Classifier(backbone, plain)(texts), Classifier(backbone, left)(texts), strict=True):
        assert (got.tokens, got.scores) == (expected.tokens, expected.scores)
