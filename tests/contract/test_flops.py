"""FLOPs formulas against torch's own counter, and the speedups against sums done by hand.

The counter does not see the fused kernel on the CPU, so runs use the eager products, which compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adapler.attention import eager
from adapler.cost import LayerCost, ModelCost, speedups
from adapler.engine import Want, encode, model_cost
from adapler.methods.adapler import AdapLeR
from tests.contract.batches import Setup, assert_worth_testing, end_to_end, setup
from tests.tiny import tiny_bert

Patch = pytest.MonkeyPatch
T = TypeVar("T")


def counted(run: Callable[[], T]) -> tuple[int, T]:
    """FLOPs torch counts while `run` runs, and what it returns."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        result = run()
    return int(counter.get_total_flops()), result


@pytest.fixture
def visible_attention(monkeypatch: Patch) -> None:
    """The fused kernel replaced by the products the counter sees; which tokens ask stays as it is."""
    monkeypatch.setattr(
        "adapler.layout.fused_attention", lambda *heads, scale, dropout: eager(*heads, scale=scale, dropout=dropout)[0]
    )


def check_full_model(made: Setup) -> None:
    """Full length, a text at a time: the engine, and transformers' own model, cost what the formula says."""
    cost = model_cost(made.backbone, None)
    theirs = tiny_bert(len(made.backbone.blocks))
    theirs.set_attn_implementation("eager")
    for text in made.texts:
        n, tokens = text.ids.numel(), end_to_end(made.backbone, [text])
        ours, _ = counted(partial(encode, made.backbone, tokens, want=Want(attentions=True)))
        assert ours == cost.full(n), f"engine, {n} tokens"
        flops, _ = counted(partial(theirs, input_ids=text.ids[None], token_type_ids=text.types[None]))
        assert flops == cost.full(n), f"transformers, {n} tokens"


def check_reduced_run(made: Setup, *, executed: bool = False) -> None:
    """Reduced, a text at a time, predictors included: every layer complete, or the last on the first token alone."""
    cost = model_cost(made.backbone, made.reducer)
    runs = []
    for text in made.texts:
        n, tokens = text.ids.numel(), end_to_end(made.backbone, [text])
        flops, (_, trace) = counted(partial(encode, made.backbone, tokens, made.reducer, want=Want(attentions=not executed)))
        lengths = torch.cat(trace.lengths).long()
        assert flops == cost.reduced(n, lengths.tolist(), executed=executed), f"{n} tokens, of which {lengths.tolist()}"
        runs.append(lengths)
    assert_worth_testing(list(torch.stack(runs, dim=1)), made.counts)


def check_executed_run(made: Setup) -> None:
    """As the engine really runs, with a reducer and without: the last layer on the first token alone."""
    check_reduced_run(made, executed=True)
    cost = model_cost(made.backbone, None)
    for text in made.texts:
        flops, _ = counted(partial(encode, made.backbone, end_to_end(made.backbone, [text])))
        assert flops == cost.full(text.ids.numel(), executed=True), f"{text.ids.numel()} tokens"


def check_speedups_by_hand(_: Setup | None = None) -> None:
    """Two layers whose parts have round costs; 33 texts, so that the last is padded by itself."""
    layer = LayerCost(query=1, key_value=2, merge=3, feed_forward=4, pair=5)
    cost = ModelCost(layers=(layer, layer), head=7, predictors=(10, 20))
    found = speedups(cost, [4] * 31 + [6, 2], [[3, 2]] * 31 + [[4, 2], [2, 1]])
    # Complete layers, n tokens: n (1 + 2 + 3 + 4) + 5 n n. Full: 7 + 2 of them. n = 2: 87, n = 4: 247, n = 6: 487.
    full = 31 * 247 + 487 + 87
    # 4 -> 3 -> 2: head 7, predictors 10 * 4 + 20 * 3, layers 75 and 40. 6 -> 4 -> 2, 2 -> 2 -> 1 likewise.
    reduced = 31 * (7 + 40 + 60 + 75 + 40) + (7 + 60 + 80 + 120 + 40) + (7 + 20 + 40 + 40 + 15)
    # The last layer for one asking token among n: 1 + 2 n + 5 n + 3 + 4.
    full_executed = 31 * (7 + 120 + 36) + (7 + 240 + 50) + (7 + 40 + 22)
    reduced_executed = 31 * (7 + 40 + 60 + 75 + 22) + (7 + 60 + 80 + 120 + 22) + (7 + 20 + 40 + 40 + 15)
    padded = 32 * 487 + 87
    assert found.flops_speedup == full / reduced
    assert found.flops_speedup_executed == full_executed / reduced_executed
    assert found.flops_speedup_padded == padded / reduced
    assert found.to_dict().keys() == {"flops_speedup", "flops_speedup_executed", "flops_speedup_padded"}


def test_full_length_costs_what_torch_counts() -> None:
    check_full_model(setup(torch.float32))


def test_a_reduced_run_costs_what_torch_counts() -> None:
    check_reduced_run(setup(torch.float32))


@pytest.mark.usefixtures("visible_attention")
@pytest.mark.parametrize("executed", [False, True])
def test_leaving_before_the_feed_forward_part_costs_what_torch_counts(executed: bool) -> None:
    made = setup(torch.float32)
    early = made.reducer.settings.model_copy(update={"site": "after_attention"})
    made.reducer.settings = early
    check_reduced_run(made, executed=executed)


@pytest.mark.usefixtures("visible_attention")
def test_the_executed_run_costs_what_torch_counts() -> None:
    check_executed_run(setup(torch.float32))


def test_speedups_are_ratios_of_sums_over_texts() -> None:
    check_speedups_by_hand()


def predictors_charged_after_removal(patch: Patch) -> None:
    """As the authors' counter does: a layer's predictor costs only the tokens that stay."""

    def planted(self: ModelCost, n: int, lengths: Any, fed: Any = None, *, executed: bool = False) -> int:
        spent: int = sum(flops * length for flops, length in zip(self.predictors, lengths, strict=True))
        return self._run(n, lengths, lengths, predictors=(), executed=executed) + spent

    patch.setattr(ModelCost, "reduced", planted)


def padding_counted(patch: Patch) -> None:
    """Lengths are charged as rows of a multiple of 8."""
    of = LayerCost.of
    patch.setattr(LayerCost, "of", lambda self, *lengths: of(self, *(-(-length // 8) * 8 for length in lengths)))


def predictors_free(patch: Patch) -> None:
    patch.setattr(AdapLeR, "flops_per_token", ())


def attention_pairs_forgotten(patch: Patch) -> None:
    of = LayerCost.of

    def planted(self: LayerCost, asking: float, attended: float, fed: float) -> float:
        return of(self, asking, attended, fed) - self.pair * asking * attended

    patch.setattr(LayerCost, "of", planted)


def padded_over_all_texts(patch: Patch) -> None:
    patch.setattr("adapler.cost.PADDED_BATCH", 64)


def last_layer_complete(patch: Patch) -> None:
    run = ModelCost._run
    patch.setattr(
        ModelCost,
        "_run",
        lambda self, *lengths, predictors, executed: run(self, *lengths, predictors=predictors, executed=False),
    )


BUGS = [
    (padding_counted, check_full_model),
    (attention_pairs_forgotten, check_full_model),
    (predictors_charged_after_removal, check_reduced_run),
    (predictors_free, check_reduced_run),
    (padding_counted, check_reduced_run),
    (attention_pairs_forgotten, check_reduced_run),
    (predictors_charged_after_removal, check_executed_run),
    (last_layer_complete, check_executed_run),
    (predictors_charged_after_removal, check_speedups_by_hand),
    (padding_counted, check_speedups_by_hand),
    (padded_over_all_texts, check_speedups_by_hand),
    (last_layer_complete, check_speedups_by_hand),
]


@pytest.mark.parametrize(("plant", "check"), BUGS)
@pytest.mark.usefixtures("visible_attention")
def test_a_wrong_formula_would_be_noticed(
    plant: Callable[[Patch], None], check: Callable[[Setup], None], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(setup(torch.float32))
