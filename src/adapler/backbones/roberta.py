"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions start after the padding's number, with a head of its own."""

from __future__ import annotations

from typing import ClassVar

from transformers import PreTrainedModel

from adapler.backbones.bert import Bert, HeadNames

DENSE_HEAD = HeadNames(
    before="classifier.dropout", dense="classifier.dense", between="classifier.dropout", out="classifier.out_proj"
)


class Roberta(Bert):
    encoder: ClassVar[str] = "roberta"
    head: ClassVar[HeadNames] = DENSE_HEAD

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.first_place = int(self.places.padding_idx) + 1
