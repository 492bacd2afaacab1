"""Guards are proved by bugs: errors a person could write, planted one at a time, that the equalities must notice.

A plant is named after what it does wrong. `BUGS` says which check notices it, on which case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from adapler.attention import fused
from adapler.backbones.bert import Bert
from adapler.buckets import Buckets
from adapler.layout import Packed, Padded
from adapler.methods import adapler as method
from adapler.methods.adapler import AdapLeR
from adapler.tokens import LOG_WEIGHT_FLOOR, Tokens
from tests.contract.batches import Setup, setup, setup_with_ties
from tests.contract.test_engine_equalities import (
    check_engine_equals_plain_loop,
    check_engine_equals_transformers,
    check_first_token_alone_equals_full_last_layer,
    check_packed_equals_padded_equals_alone,
    check_soft_packed_equals_soft_padded,
    check_steepest_soft_equals_hard,
    check_ties_stay,
)

Check = Callable[[Setup], None]
Plant = Callable[[pytest.MonkeyPatch], None]


def original_length_in_the_threshold(patch: pytest.MonkeyPatch) -> None:
    decide, first = AdapLeR.decide, {}

    def planted(self: Any, tokens: Tokens, site: str, layer: int, **rest: Any) -> Any:
        length = tokens.layout.length(tokens)
        if site == "layer_input":
            first.update({"length": length} if layer == 0 else {})
        return decide(self, tokens, site, layer, **{**rest, "scale": length / first["length"]})

    patch.setattr(AdapLeR, "decide", planted)


def length_remembered_by_the_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Padded, "length", lambda self, tokens: self.total(_at_first(self, tokens)))


def ties_leave(patch: pytest.MonkeyPatch) -> None:
    _redecide(patch, lambda decision, tokens: (decision.score > decision.threshold) | tokens.protected)


def first_token_may_leave(patch: pytest.MonkeyPatch) -> None:
    _redecide(patch, lambda decision, tokens: decision.score >= decision.threshold)


def first_token_may_fade(patch: pytest.MonkeyPatch) -> None:
    fade = Tokens.fade

    def planted(self: Tokens, log_weight: Tensor) -> Tokens:
        bare = replace(self, protected=torch.zeros_like(self.protected))
        return replace(fade(bare, log_weight), protected=self.protected)

    patch.setattr(Tokens, "fade", planted)


def survivors_renumbered(patch: pytest.MonkeyPatch) -> None:
    remove = Packed.remove

    def planted(self: Packed, tokens: Tokens, keep: Tensor) -> Tokens:
        return _renumbered(remove(self, tokens, keep))

    patch.setattr(Packed, "remove", planted)


def attention_sees_renumbered_positions(patch: pytest.MonkeyPatch) -> None:
    attend = Packed.attend

    def planted(self: Packed, block: Any, asking: Tokens, tokens: Tokens, **rest: Any) -> Any:
        renumbered = _renumbered(tokens)
        return attend(self, block, renumbered if asking is tokens else _renumbered(asking), renumbered, **rest)

    patch.setattr(Packed, "attend", planted)


def padding_in_the_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Padded, "length", lambda self, tokens: self.total(tokens.weight.where(_at_first(self, tokens) > 0, 1.0)))


def padding_in_the_softmax(patch: pytest.MonkeyPatch) -> None:
    _reweigh_share(patch, lambda layout, tokens: tokens.weight.where(_at_first(layout, tokens) > 0, 1.0))


def removed_tokens_in_the_softmax(patch: pytest.MonkeyPatch) -> None:
    _reweigh_share(patch, lambda layout, tokens: _at_first(layout, tokens))


def removed_tokens_come_back(patch: pytest.MonkeyPatch) -> None:
    with_x = Tokens.with_x

    def planted(self: Tokens, x: Tensor) -> Tokens:
        if isinstance(self.layout, Packed) or self.weight.shape[1] == 1:
            return with_x(self, x)
        weight = _at_first(self.layout, self)
        return replace(
            with_x(self, x), weight=weight, log_weight=torch.where(weight > 0, 0.0, LOG_WEIGHT_FLOOR).to(weight.dtype)
        )

    share = Padded.share
    patch.setattr(Tokens, "with_x", planted)
    patch.setattr(Padded, "share", lambda self, tokens, logit: (_at_first(self, tokens), share(self, tokens, logit))[1])


def attention_across_texts(patch: pytest.MonkeyPatch) -> None:
    attend = Packed.attend

    def planted(self: Packed, block: Any, asking: Tokens, tokens: Tokens, **rest: Any) -> Any:
        one = replace(tokens, layout=Packed(torch.tensor([tokens.position.numel()])))
        ask = one if asking is tokens else replace(asking, layout=Packed(torch.tensor([asking.position.numel()])))
        return attend(one.layout, block, ask, one, **rest)  # type: ignore[arg-type]

    patch.setattr(Packed, "attend", planted)


def packed_attention_without_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Packed, "mask", lambda self, tokens, dtype: None)
    patch.setattr(Buckets, "filled", lambda self, values, fill: values.new_zeros(self.places))


def padded_attention_without_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Padded, "mask", lambda self, tokens, dtype: torch.zeros_like(tokens.weight, dtype=dtype)[:, None, None, :])


def packed_attention_ignores_fading(patch: pytest.MonkeyPatch) -> None:
    attend = Packed.attend

    def planted(self: Packed, block: Any, asking: Tokens, tokens: Tokens, **rest: Any) -> Any:
        bold = replace(tokens, log_weight=torch.zeros_like(tokens.log_weight))
        return attend(self, block, bold if asking is tokens else asking, bold, **rest)

    patch.setattr(Packed, "attend", planted)


def sums_without_gradient(patch: pytest.MonkeyPatch) -> None:
    total = Packed.total
    patch.setattr(Packed, "total", lambda self, values: total(self, values.detach()))


def scores_normalised_twice(patch: pytest.MonkeyPatch) -> None:
    for layout in (Padded, Packed):
        share = layout.share

        def planted(self: Any, tokens: Tokens, logit: Tensor, share: Any = share) -> Tensor:
            score = share(self, tokens, logit)
            normalised: Tensor = score / self.spread(self.total(score))
            return normalised

        patch.setattr(layout, "share", planted)


def amplifier_rounds_the_score(patch: pytest.MonkeyPatch) -> None:
    def planted(tokens: Tokens, score: Tensor, amplifier: Tensor) -> Tensor:
        grown = torch.where(tokens.protected, score * amplifier, score)
        return grown / tokens.layout.spread(tokens.layout.total(grown) + 1e-15)

    patch.setattr(method, "_amplified", planted)


def first_token_sees_only_itself(patch: pytest.MonkeyPatch) -> None:
    attend = Packed.attend

    def planted(self: Packed, block: Any, asking: Tokens, tokens: Tokens, **rest: Any) -> Any:
        return attend(asking.layout, block, asking, asking, **rest)  # type: ignore[arg-type]

    patch.setattr(Packed, "attend", planted)


def mean_over_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Padded, "pool", lambda self, tokens, how: tokens.x.mean(dim=1))


def token_types_ignored(patch: pytest.MonkeyPatch) -> None:
    embed = Bert.embed
    patch.setattr(Bert, "embed", lambda self, ids, types, position: embed(self, ids, torch.zeros_like(types), position))


def scores_unscaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("adapler.layout.fused_attention", lambda *heads, scale, dropout: fused(*heads, scale=1.0, dropout=dropout))


def _at_first(layout: Any, tokens: Tokens) -> Tensor:
    """The weights a layout of rows was first asked about: what a mask built before layer 0 would hold."""
    weight: Tensor = layout.__dict__.setdefault("first_weight", tokens.weight)
    return weight


def _redecide(patch: pytest.MonkeyPatch, keep: Callable[[Any, Tokens], Tensor]) -> None:
    decide = AdapLeR.decide

    def planted(self: Any, tokens: Tokens, site: str, layer: int, **rest: Any) -> Any:
        decision = decide(self, tokens, site, layer, **rest)
        return decision and replace(decision, keep=keep(decision, tokens))

    patch.setattr(AdapLeR, "decide", planted)


def _reweigh_share(patch: pytest.MonkeyPatch, weight: Callable[[Any, Tokens], Tensor]) -> None:
    share = Padded.share
    patch.setattr(Padded, "share", lambda self, tokens, logit: share(self, replace(tokens, weight=weight(self, tokens)), logit))


def _renumbered(tokens: Tokens) -> Tokens:
    layout = tokens.layout
    assert isinstance(layout, Packed)
    return replace(tokens, position=torch.arange(layout.text.numel()) - layout.start[layout.text])


def _mean() -> Setup:
    made = setup()
    made.backbone.pooling = "mean"
    return made


def _tied() -> Setup:
    return setup_with_ties(torch.float64)


def _relative() -> Setup:
    return setup(relative=True)


def _single() -> Setup:
    return setup(torch.float32)


BUGS: list[tuple[Plant, Check, Callable[[], Setup]]] = [
    (token_types_ignored, check_engine_equals_transformers, _single),
    (scores_unscaled, check_engine_equals_transformers, _single),
    (padded_attention_without_mask, check_engine_equals_transformers, _single),
    (packed_attention_without_mask, check_engine_equals_transformers, _single),
    (attention_across_texts, check_engine_equals_transformers, _single),
    (original_length_in_the_threshold, check_engine_equals_plain_loop, setup),
    (first_token_may_leave, check_engine_equals_plain_loop, setup),
    (survivors_renumbered, check_engine_equals_plain_loop, setup),
    (attention_across_texts, check_engine_equals_plain_loop, setup),
    (length_remembered_by_the_rows, check_packed_equals_padded_equals_alone, setup),
    (survivors_renumbered, check_packed_equals_padded_equals_alone, setup),
    (attention_sees_renumbered_positions, check_packed_equals_padded_equals_alone, _relative),
    (padding_in_the_length, check_packed_equals_padded_equals_alone, setup),
    (padding_in_the_softmax, check_packed_equals_padded_equals_alone, setup),
    (removed_tokens_in_the_softmax, check_packed_equals_padded_equals_alone, setup),
    (removed_tokens_come_back, check_packed_equals_padded_equals_alone, setup),
    (attention_across_texts, check_packed_equals_padded_equals_alone, setup),
    (packed_attention_without_mask, check_packed_equals_padded_equals_alone, setup),
    (mean_over_padding, check_packed_equals_padded_equals_alone, _mean),
    (ties_leave, check_ties_stay, _tied),
    (ties_leave, check_steepest_soft_equals_hard, _tied),
    (scores_normalised_twice, check_ties_stay, _tied),
    (amplifier_rounds_the_score, check_steepest_soft_equals_hard, _tied),
    (first_token_may_leave, check_steepest_soft_equals_hard, setup),
    (first_token_may_fade, check_steepest_soft_equals_hard, setup),
    (first_token_sees_only_itself, check_first_token_alone_equals_full_last_layer, setup),
    (packed_attention_ignores_fading, check_soft_packed_equals_soft_padded, setup),
    (sums_without_gradient, check_soft_packed_equals_soft_padded, setup),
    (padding_in_the_length, check_soft_packed_equals_soft_padded, setup),
    (padding_in_the_softmax, check_soft_packed_equals_soft_padded, setup),
]


@pytest.mark.parametrize(
    ("plant", "check", "case"), BUGS, ids=[f"{plant.__name__}-{check.__name__}" for plant, check, _ in BUGS]
)
def test_a_planted_bug_is_noticed(
    plant: Plant, check: Check, case: Callable[[], Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case())
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(case())
