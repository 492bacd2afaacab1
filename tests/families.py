"""A tiny real model and tokenizer of every supported family, made from a config and a seed. Nothing is downloaded.

`SETTINGS` must have an entry for every key of `BACKBONES`: the contract tests run over all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from adapler.backbones import view
from adapler.classifier import Classifier
from tests.tiny import WORDS, tiny_reducer, tiny_vocab

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {"": {}},
    "roberta": {"": {}, "one segment": {"type_vocab_size": 1}},
    "xlm-roberta": {"": {"type_vocab_size": 1}},
    "camembert": {"": {"type_vocab_size": 1}},
    "electra": {"": {"embedding_size": 16, "hidden_act": "relu"}, "wide": {"embedding_size": 32}},
    "distilbert": {"": {}},
    "mpnet": {"": {}},
    "modernbert": {
        "": {"local_attention": 8, "global_attn_every_n_layers": 2},
        "mean": {"local_attention": 12, "classifier_pooling": "mean"},
        "biases": {"local_attention": 8, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    },
    "deberta-v2": {
        "": {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": "p2c|c2p",
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        "own keys": {
            "relative_attention": True,
            "max_relative_positions": 24,
            "pos_att_type": ["c2p", "p2c"],
            "type_vocab_size": 2,
            "embedding_size": 16,
            "pooler_hidden_act": "tanh",
        },
        "one way": {"relative_attention": True, "position_buckets": 6, "pos_att_type": ["p2c"], "type_vocab_size": 2},
        "no distances": {"pos_att_type": ["c2p"], "position_biased_input": True},
    },
}
"""Settings of a family's variants beside the common ones; the first variant is what the family's usual models are like."""

CASES = [(family, variant) for family, variants in SETTINGS.items() for variant in variants]
_RENAMED = {
    "distilbert": {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    | {
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    "modernbert": {"hidden_dropout_prob": "mlp_dropout", "attention_probs_dropout_prob": "attention_dropout"},
}
_SPELLING = {"roberta": "bytes", "modernbert": "bytes", "xlm-roberta": "pieces", "camembert": "pieces", "deberta-v2": "pieces"}
"""How a family's tokenizer spells, where not in WordPieces."""
_TYPED = {"bert", "electra", "deberta-v2"}
_ANGLED = {"roberta", "xlm-roberta", "camembert", "mpnet"}
"""Families whose special tokens are <s>, <pad>, </s>, in this order, and which number positions after the padding."""


def has_segments(model: PreTrainedModel) -> bool:
    """Whether a model tells the texts of a pair apart."""
    return getattr(model.config, "type_vocab_size", 0) > 1


def tiny_model(
    family: str,
    variant: str = "",
    *,
    layers: int = 4,
    hidden: int = 32,
    labels: int = 3,
    seed: int = 0,
    dropout: float = 0.0,
    max_positions: int = 320,
) -> PreTrainedModel:
    """A classifier with random weights, all unlike, so that none could stand in for another. In eval mode."""
    if family not in SETTINGS:
        raise KeyError(f"no tiny model of {family!r}: add its settings to {__file__}")
    common = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": hidden + 16,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    renamed = _RENAMED.get(family, {})
    special: dict[str, Any] = {"pad_token_id": 1 if family in _ANGLED else 0, "bos_token_id": None, "eos_token_id": None}
    if family == "modernbert":
        special |= {"cls_token_id": None, "sep_token_id": None}
    if family == "distilbert":
        special |= {"seq_classif_dropout": dropout}
    config = AutoConfig.for_model(
        family,
        vocab_size=len(family_vocab(family)),
        max_position_embeddings=max_positions,
        initializer_range=0.15,
        num_labels=labels,
        **{renamed.get(name, name): value for name, value in common.items()},
        **special,
        **SETTINGS[family][variant],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1 if parameter.ndim == 1 else 0.02)
    return model


def tiny_tokenizer_of(family: str, max_length: int = 300) -> PreTrainedTokenizerFast:
    """A tokenizer that spells as the family's do, with a vocabulary of a few hundred tokens."""
    first, pad, last, unknown, mask = _specials(family)
    spelling = _SPELLING.get(family, "words")
    vocab = family_vocab(family)
    if spelling == "words":
        backend = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    elif spelling == "bytes":
        backend = Tokenizer(models.BPE(vocab, _merges(), unk_token=unknown))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        scored = [(piece, -4.0 if len(piece) > 2 else -9.0) for piece in vocab]
        backend = Tokenizer(models.Unigram(scored, unk_id=vocab[unknown], byte_fallback=False))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
    typed = family in _TYPED
    between = f"{last}:0 {last}:0" if family in _ANGLED else f"{last}:0"
    second = 1 if typed else 0
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {between} $B:{second} {last}:{second}",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        cls_token=first,
        pad_token=pad,
        sep_token=last,
        unk_token=unknown,
        mask_token=mask,
        model_input_names=["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"],
    )


def tiny_classifier_of(family: str, variant: str = "", *, layers: int = 4, eta: float = 0.6) -> Classifier:
    """A whole reduced classifier."""
    backbone = view(tiny_model(family, variant, layers=layers))
    return Classifier(backbone, tiny_tokenizer_of(family), tiny_reducer(backbone, eta, spread=2.0))


def family_vocab(family: str) -> dict[str, int]:
    """The tokens of a family's tiny tokenizer."""
    spelling = _SPELLING.get(family, "words")
    if spelling == "words":
        pieces = [piece for piece in tiny_vocab() if not (piece.startswith("[") and len(piece) > 1)]
    elif spelling == "bytes":
        pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in _merges()]
    else:
        letters = [chr(number) for number in range(33, 127)]
        pieces = ["▁", *letters, *(f"▁{letter}" for letter in letters), *(f"▁{word}" for word in WORDS if len(word) > 1), "ing"]
    return {piece: number for number, piece in enumerate(dict.fromkeys([*_specials(family), *pieces]))}


def _specials(family: str) -> tuple[str, str, str, str, str]:
    """First, padding, last, unknown, mask."""
    if family in _ANGLED:
        return "<s>", "<pad>", "</s>", "<unk>", "<mask>"
    return "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"


def _merges() -> list[tuple[str, str]]:
    """Of a word with the space before it, letter by letter."""
    words = [f"Ġ{word}" for word in WORDS if len(word) > 1]
    return list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))
