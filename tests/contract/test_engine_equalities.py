"""Runs that must agree: the engine and transformers, rows and end to end, soft at its steepest and hard, one token and all.

Each equality is a `check_*` function of a `Setup`; `test_planted_bugs.py` plants errors that they must notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from adapler.engine import Want, encode
from adapler.tokens import Trace
from tests.contract.batches import (
    LAYOUTS,
    Setup,
    assert_worth_testing,
    end_to_end,
    in_rows,
    places,
    random_texts,
    setup,
    setup_with_ties,
)
from tests.families import has_segments

STEEPEST = 1e20
DTYPES = [torch.float32, torch.float64]
UNREDUCED = {"1": [1], "2": [2], "17": [17], "128": [128], "512": [512], "mixed": [3, 17, 40, 1, 9, 64]}


def close(actual: Tensor, expected: Tensor, what: str) -> None:
    # Two orders of summation through a few layers: some thousand roundings of values of size 1.
    atol = 1e-5 if expected.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(actual, expected, atol=atol, rtol=atol, msg=lambda message: f"{what}: {message}")


def same_kept(actual: Sequence[tuple[Tensor, Tensor]], expected: Sequence[tuple[Tensor, Tensor]], what: str) -> None:
    for layer, pairs in enumerate(zip(actual, expected, strict=True)):
        for got, wanted in zip(*pairs, strict=True):
            assert torch.equal(got, wanted), f"{what}: layer {layer} keeps other tokens"


@torch.no_grad()
def check_engine_equals_transformers(made: Setup) -> None:
    """Without a reducer, the transformers forward; every second text is a pair with its own token types."""
    width = int(made.counts.max())
    model = made.backbone.model
    padding = getattr(model.config, "pad_token_id", 0)
    ids, types, real = (torch.full((len(made.texts), width), fill) for fill in (padding, 0, 0))
    for row, text in enumerate(made.texts):
        length = text.ids.numel()
        ids[row, :length], types[row, :length], real[row, :length] = text.ids, text.types, 1
    segments = {"token_type_ids": types} if has_segments(model) else {}
    expected = model(input_ids=ids, attention_mask=real, **segments).logits
    for name, arrange in LAYOUTS.items():
        close(encode(made.backbone, arrange(made.backbone, made.texts))[0], expected, name)


@torch.no_grad()
def check_engine_equals_plain_loop(made: Setup) -> None:
    """Hard removal end to end is the paper's rule in its shortest form, over transformers' own layers, a text at a time."""
    logits, trace = encode(made.backbone, end_to_end(made.backbone, made.texts), made.reducer)
    model = made.backbone.model
    for row, text in enumerate(made.texts):
        x = model.bert.embeddings(input_ids=text.ids[None], token_type_ids=text.types[None])[0]
        position = torch.arange(len(x))
        for index, layer in enumerate(model.bert.encoder.layer):
            keep = made.reducer.predictors[index](x).softmax(0) >= made.reducer.eta[index] / len(x)
            keep[0] = True
            x, position = layer(x[keep][None])[0], position[keep]
            of, place = trace.kept[index]
            assert place[of == row].tolist() == position.tolist(), f"text {row}, layer {index}"
        close(logits[row], model.classifier(model.bert.pooler(x[None]))[0], f"text {row}")
    assert_worth_testing(trace.lengths, made.counts)


@torch.no_grad()
def check_packed_equals_padded_equals_alone(made: Setup) -> None:
    """Hard removal keeps the same tokens and gives the same logits in rows, end to end, and a text at a time."""
    (in_rows_logits, in_rows_trace), (logits, trace) = (
        encode(made.backbone, arrange(made.backbone, made.texts), made.reducer) for arrange in (in_rows, end_to_end)
    )
    same_kept(in_rows_trace.kept, trace.kept, "rows and end to end")
    close(in_rows_logits, logits, "rows and end to end")
    for row, text in enumerate(made.texts):
        for name, arrange in LAYOUTS.items():
            alone, alone_trace = encode(made.backbone, arrange(made.backbone, [text]), made.reducer)
            of_text = [(torch.zeros_like(place[of == row]), place[of == row]) for of, place in trace.kept]
            same_kept(alone_trace.kept, of_text, f"text {row} alone, {name}")
            close(alone[0], logits[row], f"text {row} alone, {name}")
    assert_worth_testing(trace.lengths, made.counts)


@torch.no_grad()
def check_steepest_soft_equals_hard(made: Setup) -> None:
    """Soft removal at lambda 1e20 is hard removal: the same survivors with weights of exactly 0 and 1, ties included."""
    for name, arrange in LAYOUTS.items():
        tokens = arrange(made.backbone, made.texts)
        hard_logits, hard = encode(made.backbone, tokens, made.reducer)
        soft_logits, soft = encode(made.backbone, tokens, made.reducer, soft=STEEPEST)
        same_kept([places(step, step.weight_after > 0.5) for step in soft.steps], hard.kept, name)
        for layer, (weighed, counted) in enumerate(zip(soft.lengths, hard.lengths, strict=True)):
            assert torch.equal(weighed, counted), f"{name}: lengths of layer {layer}"
        close(soft_logits, hard_logits, name)
        assert_worth_testing(hard.lengths, made.counts)


@torch.no_grad()
def check_ties_stay(made: Setup) -> None:
    """In the layers of `setup_with_ties` where every token has exactly the share it needs, nobody leaves, hard or soft."""
    for name, arrange in LAYOUTS.items():
        for soft in (None, STEEPEST):
            _, trace = encode(made.backbone, arrange(made.backbone, made.texts), made.reducer, soft=soft)
            lengths = [made.counts, *trace.lengths]
            for layer in range(0, len(trace.lengths), 2):
                assert torch.equal(lengths[layer + 1].long(), lengths[layer].long()), f"{name}, soft {soft}: layer {layer}"
            assert_worth_testing(trace.lengths, made.counts)


@torch.no_grad()
def check_first_token_alone_equals_full_last_layer(made: Setup) -> None:
    """The last layer on the pooled token alone gives what the complete one gives; wanting hidden states asks for that."""
    for name, arrange in LAYOUTS.items():
        for soft in (None, 10.0):
            tokens = arrange(made.backbone, made.texts)
            short, trace = encode(made.backbone, tokens, made.reducer, soft=soft)
            full, seen = encode(made.backbone, tokens, made.reducer, soft=soft, want=Want(hidden=True))
            assert seen.hidden[-1].shape[:-1] == seen.hidden[-2].shape[:-1], "the last layer ran on every token"
            close(short, full, f"{name}, soft {soft}")
            if soft is None:
                assert_worth_testing(trace.lengths, made.counts)


def check_soft_packed_equals_soft_padded(made: Setup) -> None:
    """Soft removal agrees between layouts in logits, lengths, scores, and in the gradients of all three."""
    model, reducer = made.backbone.model, made.reducer
    followed = {**dict(reducer.predictors.named_parameters()), "eta": reducer.eta}
    followed |= {name: weight for name, weight in model.named_parameters() if "embed" in name or "relative" in name}
    for lam in (10.0, 100.0):
        runs = []
        for arrange in LAYOUTS.values():
            logits, trace = encode(made.backbone, arrange(made.backbone, made.texts), reducer, soft=lam)
            lengths = torch.stack(trace.lengths)
            loss = logits.square().sum() + lengths.sum() + sum(_sharpness(trace))
            runs.append((logits, lengths, torch.autograd.grad(loss, list(followed.values()))))
        (rows_logits, rows_lengths, rows_gradients), (logits, lengths, gradients) = runs
        close(rows_logits, logits, f"lambda {lam}: logits")
        close(rows_lengths, lengths, f"lambda {lam}: lengths")
        for name, got, expected in zip(followed, rows_gradients, gradients, strict=True):
            size = max(1.0, float(expected.abs().max()))
            close(got / size, expected / size, f"lambda {lam}: gradient of {name}")
        assert float(gradients[list(followed).index("eta")].abs().min()) > 0, "every threshold has a gradient"
        assert_worth_testing(list(lengths), made.counts)


def _sharpness(trace: Trace) -> list[Tensor]:
    """A loss on the scores, so that gradients also pass where a layer's score is read by a loss."""
    return [step.decision.score.square().sum() for step in trace.steps]


@pytest.mark.parametrize("name", UNREDUCED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_reducer_the_engine_is_the_transformers_forward(name: str, dtype: torch.dtype) -> None:
    check_engine_equals_transformers(setup(dtype, lengths=UNREDUCED[name]))
    pair = random_texts([4, UNREDUCED[name][0]])[1:]  # the second text made is a pair
    check_engine_equals_transformers(replace(setup(dtype), texts=pair))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_removal_is_the_papers_rule_over_transformers_layers(dtype: torch.dtype) -> None:
    check_engine_equals_plain_loop(setup(dtype))


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_end_to_end_and_alone_agree(relative: bool, pooling: str, dtype: torch.dtype) -> None:
    made = setup(dtype, relative=relative)
    made.backbone.pooling = pooling
    check_packed_equals_padded_equals_alone(made)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_removal_at_its_steepest_is_hard_removal(dtype: torch.dtype) -> None:
    check_steepest_soft_equals_hard(setup(dtype))
    check_steepest_soft_equals_hard(setup_with_ties(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_with_exactly_its_threshold_stays(dtype: torch.dtype) -> None:
    check_ties_stay(setup_with_ties(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_layer_needs_only_the_first_token(dtype: torch.dtype) -> None:
    check_first_token_alone_equals_full_last_layer(setup(dtype))


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_soft_removal_agrees_between_layouts_with_its_gradients(relative: bool) -> None:
    check_soft_packed_equals_soft_padded(setup(relative=relative))
