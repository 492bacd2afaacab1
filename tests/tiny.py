"""Tiny real models: transformers classifiers and tokenizers made from a config and a seed. Nothing is downloaded."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.classifier import Classifier
from adapler.methods.adapler import AdapLeR, ContributionPredictor
from adapler.methods.settings import AdapLeRSettings

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ENGLISH = """
a about acting action again all also an and any are as at awful bad be beautiful because been best better boring brilliant
but by cast character charming clever cold comedy could did director do does dull end even ever every fails fast feels film
find first for from full fun funny get gives good great had happy hard has have he heart her here him his hope how idea if
in into is it its just kind know lack less life like little long look lost love made make many me mess more most movie much
music never new no not nothing of off on one only or other our out over own part people perfect play plot poor quite real
really rich sad same say scene script see she short slow so some still story strong such sweet take tale tedious than that
the their them then there they thing think this time to too true two up very want warm was waste watch way we weak well were
what when which while who will with work world worst would year yet you young
"""
WORDS = tuple(_ENGLISH.split())
_SUFFIXES = ("ing", "ed", "er", "est", "ly", "ness", "less", "ful", "ment", "tion", "able", "es", "al", "ity")
_CHARACTERS = string.ascii_lowercase + string.digits


def tiny_vocab() -> dict[str, int]:
    """WordPiece entries: everything in printable ASCII can be spelt, common words and endings are one token."""
    pieces = [*SPECIAL, *_CHARACTERS, *string.punctuation, *(f"##{c}" for c in _CHARACTERS)]
    pieces += [f"##{suffix}" for suffix in _SUFFIXES]
    pieces += [word for word in WORDS if len(word) > 1]
    return {piece: number for number, piece in enumerate(pieces)}


def tiny_tokenizer(max_length: int = 512) -> PreTrainedTokenizerFast:
    """BERT's uncased tokenizer with a vocabulary of a few hundred pieces."""
    vocab = tiny_vocab()
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def tiny_bert(
    layers: int = 4,
    hidden: int = 32,
    heads: int = 4,
    labels: int = 3,
    seed: int = 0,
    dropout: float = 0.0,
    max_positions: int = 512,
    vocab: int | None = None,
) -> BertForSequenceClassification:
    """A BERT classifier with random weights, large enough ones that texts differ in their answers. In eval mode."""
    config = BertConfig(
        vocab_size=len(tiny_vocab()) if vocab is None else vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * hidden,
        max_position_embeddings=max_positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.1,
        num_labels=labels,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForSequenceClassification(config).eval()


def tiny_reducer(
    backbone: Backbone, eta: float = 0.6, seed: int = 0, spread: float = 1.0, site: str = "layer_input"
) -> AdapLeR:
    """An AdapLeR reducer that removes some tokens in front of every layer; more with a larger `spread` of the scores."""
    reducer = AdapLeR.for_backbone(backbone, AdapLeRSettings.model_validate({"eta": eta, "site": site}))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for predictor in reducer.predictors.children():
            assert isinstance(predictor, ContributionPredictor)
            for dense in (predictor.dense_in, predictor.dense_out):
                dense.weight.normal_(std=dense.in_features**-0.5, generator=random)
                dense.bias.normal_(std=0.1, generator=random)
            predictor.dense_out.weight.mul_(spread)
    return reducer.eval()


def tiny_classifier(
    layers: int = 4,
    hidden: int = 32,
    heads: int = 4,
    labels: int = 3,
    seed: int = 0,
    eta: float = 0.6,
    spread: float = 1.0,
    reduced: bool = True,
    max_length: int | None = None,
    token_budget: int = 4096,
    site: str = "layer_input",
) -> Classifier:
    """A whole classifier; with `reduced=False` one that runs at full length."""
    backbone = view(tiny_bert(layers, hidden, heads, labels, seed))
    reducer = tiny_reducer(backbone, eta, seed, spread, site) if reduced else None
    return Classifier(backbone, tiny_tokenizer(), reducer, max_length=max_length, token_budget=token_budget)


def tiny_texts(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Texts of 1 to `longest` known words."""
    random = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=random))

    return [" ".join(WORDS[draw(len(WORDS))] for _ in range(1 + draw(longest))) for _ in range(count)]


def saved_with_answers(folder: Path, texts: int) -> list[str]:
    """A reduced model saved as `folder / "model"`, and texts with its own answers as `folder / "data.jsonl"`; the texts."""
    made = tiny_classifier(eta=0.4)
    made.save_pretrained(folder / "model")
    given = tiny_texts(texts, seed=3)
    rows = [{"text": text, "label": answer.label} for text, answer in zip(given, made(given), strict=True)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return given
