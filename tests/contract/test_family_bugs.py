"""The families' guards proved by bugs: each danger a family brings, planted where it would happen, must be noticed; and what a
view cannot do exactly is refused when it is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from adapler.backbones import BACKBONES, base, view
from adapler.backbones.base import Kept
from adapler.backbones.bert import Bert
from adapler.backbones.deberta import Deberta, DebertaBlock
from adapler.backbones.electra import Electra
from adapler.backbones.modernbert import ModernBert, ModernBertBlock, Rotary
from adapler.backbones.mpnet import MPNet, RelativeBias
from adapler.backbones.roberta import Roberta
from adapler.checkpoint import load
from adapler.cost import LayerCost
from adapler.errors import BadModel
from adapler.safefile import seal
from tests.contract.batches import Setup, family_setup
from tests.contract.test_engine_equalities import check_engine_equals_transformers, check_packed_equals_padded_equals_alone
from tests.contract.test_families import (
    check_costs_what_torch_counts,
    check_removal_is_masking_in_transformers,
    needs_layers_of_now,
)
from tests.contract.test_planted_bugs import survivors_renumbered
from tests.families import tiny_classifier_of, tiny_model, tiny_tokenizer_of

Patch = pytest.MonkeyPatch


def by_place(positions: Tensor) -> Tensor:
    """Places among the survivors instead of places in the text."""
    return torch.arange(positions.shape[-1]).expand_as(positions)


def distances_between_survivors(patch: Patch) -> None:
    call = RelativeBias.__call__
    patch.setattr(RelativeBias, "__call__", lambda self, asking, attended: call(self, by_place(asking), by_place(attended)))


def disentangled_distances_between_survivors(patch: Patch) -> None:
    bias = DebertaBlock.bias
    patch.setattr(
        DebertaBlock, "bias", lambda self, asking, attended, *heads: bias(self, *map(by_place, (asking, attended)), *heads)
    )


def window_of_survivors(patch: Patch) -> None:
    bias = ModernBertBlock.bias
    patch.setattr(
        ModernBertBlock, "bias", lambda self, asking, attended, *heads: bias(self, *map(by_place, (asking, attended)), *heads)
    )


def angles_of_survivors(patch: Patch) -> None:
    call = Rotary.__call__
    patch.setattr(Rotary, "__call__", lambda self, x, position: call(self, x, by_place(position)))


def distances_turned_round(patch: Patch) -> None:
    call = RelativeBias.__call__
    patch.setattr(RelativeBias, "__call__", lambda self, asking, attended: call(self, -asking, -attended))


def disentangled_distances_turned_round(patch: Patch) -> None:
    bias = DebertaBlock.bias
    patch.setattr(DebertaBlock, "bias", lambda self, asking, attended, *heads: bias(self, -asking, -attended, *heads))


def window_of_twice_the_reach(patch: Patch) -> None:
    bias = ModernBertBlock.bias
    patch.setattr(
        ModernBertBlock, "bias", lambda self, asking, attended, *heads: bias(self, asking // 2, attended // 2, *heads)
    )


def norm_after_the_mean(patch: Patch) -> None:
    feed, classify = ModernBertBlock.feed_forward, ModernBert.classify

    def planted(self: Any, x: Tensor) -> Tensor:
        norm, self.last_norm = self.last_norm, None
        fed = feed(self, x)
        self.last_norm = norm
        return fed

    patch.setattr(ModernBertBlock, "feed_forward", planted)
    patch.setattr(ModernBert, "classify", lambda self, pooled: classify(self, self.blocks[-1].last_norm(pooled)))


def positions_from_nothing(patch: Patch) -> None:
    for family in (Roberta, MPNet):
        patch.setattr(
            family, "embed", lambda self, ids, types, position: Bert.embed(self, ids, types, position - self.first_place)
        )


def tanh_for_gelu(patch: Patch) -> None:
    patch.setattr(Electra, "find_head_activation", Bert.find_head_activation)


def distances_for_nothing(patch: Patch) -> None:
    patch.setattr(DebertaBlock, "cost", property(lambda self: super(DebertaBlock, self).cost))


def narrow_embeddings_for_nothing(patch: Patch) -> None:
    for family in (Electra, Deberta):
        patch.setattr(family, "cost", property(lambda self: Bert.cost.fget(self)))  # type: ignore[attr-defined]


def gates_for_nothing(patch: Patch) -> None:
    cost = ModernBertBlock.cost.fget  # type: ignore[attr-defined]

    def planted(self: ModernBertBlock) -> LayerCost:
        known: LayerCost = cost(self)
        return replace(known, feed_forward=known.feed_forward - base.linear_flops(self.wide) // 2)

    patch.setattr(ModernBertBlock, "cost", property(planted))


REMOVAL, LAYOUTS, PARITY, COST = (
    check_removal_is_masking_in_transformers,
    check_packed_equals_padded_equals_alone,
    check_engine_equals_transformers,
    check_costs_what_torch_counts,
)
BUGS: list[tuple[Callable[[Patch], None], Callable[[Setup], None], str, str]] = [
    *[
        (survivors_renumbered, check, family, "")
        for check in (REMOVAL, LAYOUTS)
        for family in ("mpnet", "modernbert", "deberta-v2")
    ],
    (distances_between_survivors, REMOVAL, "mpnet", ""),
    (window_of_survivors, REMOVAL, "modernbert", ""),
    (window_of_survivors, REMOVAL, "modernbert", "mean"),
    (angles_of_survivors, REMOVAL, "modernbert", ""),
    (disentangled_distances_between_survivors, REMOVAL, "deberta-v2", ""),
    (disentangled_distances_between_survivors, REMOVAL, "deberta-v2", "own keys"),
    (distances_turned_round, PARITY, "mpnet", ""),
    (disentangled_distances_turned_round, PARITY, "deberta-v2", "one way"),
    (window_of_twice_the_reach, PARITY, "modernbert", ""),
    (norm_after_the_mean, PARITY, "modernbert", "mean"),
    (positions_from_nothing, PARITY, "xlm-roberta", ""),
    (positions_from_nothing, PARITY, "mpnet", ""),
    (tanh_for_gelu, PARITY, "electra", ""),
    (distances_for_nothing, COST, "deberta-v2", ""),
    (narrow_embeddings_for_nothing, COST, "electra", ""),
    (narrow_embeddings_for_nothing, COST, "deberta-v2", "own keys"),
    (gates_for_nothing, COST, "modernbert", ""),
]


@pytest.mark.parametrize(
    ("plant", "check", "family", "variant"),
    BUGS,
    ids=[f"{plant.__name__}-{check.__name__}-{family}-{variant}" for plant, check, family, variant in BUGS],
)
def test_a_planted_bug_is_noticed(
    plant: Callable[[Patch], None], check: Callable[[Setup], None], family: str, variant: str, monkeypatch: Patch
) -> None:
    if check in (REMOVAL, COST):
        needs_layers_of_now(family)
    dtype = torch.float64 if check in (REMOVAL, LAYOUTS) else torch.float32
    check(family_setup(family, variant, dtype))
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(family_setup(family, variant, dtype))


def test_a_token_that_lost_its_neighbours_sees_itself_alone() -> None:
    block = family_setup("modernbert").backbone.blocks[1]
    assert isinstance(block, ModernBertBlock) and block.reach == 4
    position = torch.tensor([[0, 20, 39]])
    heads = torch.zeros(1, 4, 3, 8)
    bias = block.bias(position, position, heads, heads)
    assert bias is not None and torch.equal(bias[0, 0].softmax(-1), torch.eye(3))


@pytest.mark.parametrize("variant", ["", "own keys"])
def test_what_distances_mean_follows_the_weights(variant: str, monkeypatch: Patch) -> None:
    """Kept between calls, and made anew as soon as a weight behind it changes."""
    made = family_setup("deberta-v2", variant, torch.float32)
    check_engine_equals_transformers(made)
    block = made.backbone.blocks[0]
    assert isinstance(block, DebertaBlock) and block.as_keys is not None
    with torch.no_grad():
        assert block.as_keys() is block.as_keys()
        for weight in made.backbone.model.parameters():
            weight.mul_(1.1)
    check_engine_equals_transformers(made)
    monkeypatch.setattr(Kept, "__call__", lambda self: self.__dict__.setdefault("stale", self.make()))
    check_engine_equals_transformers(made)
    with torch.no_grad():
        for weight in made.backbone.model.parameters():
            weight.mul_(1.1)
    with pytest.raises(AssertionError):
        check_engine_equals_transformers(made)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size is 3, a convolution over neighbouring tokens"),
    ("bert", {"is_decoder": True}, "is_decoder is true"),
    ("electra", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16; the family uses 32"),
    ("modernbert", {"layer_types": ["chunked_attention"] * 2}, "layer_types names 'chunked_attention'"),
]


@pytest.mark.parametrize(
    ("family", "settings", "reason"), REFUSED, ids=[f"{case[0]}-{next(iter(case[1]))}" for case in REFUSED]
)
def test_what_a_view_cannot_do_exactly_is_refused_with_the_reason(family: str, settings: dict[str, Any], reason: str) -> None:
    model = tiny_model(family, layers=2)
    for name, value in settings.items():
        setattr(model.config, name, value)
    with pytest.raises(BadModel, match=rf"this {family} model cannot be run token by token: {reason}"):
        view(model)


def test_angles_of_another_kind_are_refused() -> None:
    model = tiny_model("modernbert", layers=2)
    model.config.rope_parameters["full_attention"]["rope_type"] = "yarn"
    with pytest.raises(BadModel, match="rope_type is 'yarn'"):
        view(model)


def test_a_real_model_with_a_convolution_is_refused() -> None:
    config = AutoConfig.for_model("deberta-v2", vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config.conv_kernel_size = 3
    with pytest.raises(BadModel, match="which removing tokens would change"):
        view(AutoModelForSequenceClassification.from_config(config))


def test_an_unknown_family_is_told_the_known_ones_and_where_to_add_its_own() -> None:
    model = GPT2ForSequenceClassification(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(BadModel) as caught:
        view(model)
    said = str(caught.value)
    assert "'gpt2' is not supported" in said and ", ".join(BACKBONES) in said and "BACKBONES.add(MODEL_TYPE, " in said
    assert "docs/backbones.md" in said


def test_a_model_of_another_shape_than_its_type_is_refused() -> None:
    model = tiny_model("roberta", layers=1)
    model.config.model_type = "mpnet"
    model.config.relative_attention_num_buckets = 32
    with pytest.raises(BadModel, match="has no module 'mpnet"):
        view(model)


def refusal(folder: Path) -> str:
    """What opening a folder is refused with."""
    with pytest.raises(BadModel) as caught:
        load(folder)
    return str(caught.value)


def test_a_folder_with_a_convolution_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = tiny_model("deberta-v2", layers=1)
    model.config.conv_kernel_size = 3
    AutoModelForSequenceClassification.from_config(model.config).save_pretrained(tmp_path)
    tiny_tokenizer_of("deberta-v2").save_pretrained(tmp_path)
    assert "a convolution over neighbouring tokens, which removing tokens would change" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [("distilbert", "n_layers", 2**40), ("distilbert", "dim", 0), ("deberta-v2", "position_buckets", 2**40)],
)
def test_a_size_is_checked_under_every_name_it_has(family: str, name: str, value: int, tmp_path: Path) -> None:
    tiny_model(family, layers=1).save_pretrained(tmp_path)
    tiny_tokenizer_of(family).save_pretrained(tmp_path)
    load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    assert str(value) in refusal(tmp_path)


def test_a_reduction_for_another_size_is_refused_under_every_name(tmp_path: Path) -> None:
    tiny_classifier_of("distilbert", layers=2).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "hidden_size" not in config and config["dim"] == 32
    config["dim"] = 64
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    seal_again(tmp_path / "model")
    assert "has hidden_size 64; the reduction was made for 32" in refusal(tmp_path / "model")


def seal_again(folder: Path) -> None:
    """Hashes of a reduction's files after one was changed."""
    said = json.loads((folder / "reduction.json").read_text())
    (folder / "reduction.json").unlink()
    seal(folder / "reduction.json", {key: value for key, value in said.items() if key not in ("files", "digest")})
