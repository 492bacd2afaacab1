"""The floor of every comparison: a classifier that only counts words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler.data.text import Text
from adapler.problems import Label


def bag_of_words(texts: Sequence[Text], labels: Sequence[Label], asked: Sequence[Text]) -> NDArray[np.int64]:
    """Answers of word and word-pair counts under logistic regression, learnt from `texts`; a pair is read as one text."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    model.fit([_joined(text) for text in texts], list(labels))
    return np.asarray(model.predict([_joined(text) for text in asked]), dtype=np.int64)


def beginnings(texts: Sequence[Text], tokenizer: Any, tokens: int) -> list[Text]:
    """Of each text what an encoder reads that is given so many tokens."""
    return [_beginning(text, tokenizer, tokens) for text in texts]


def _beginning(text: Text, tokenizer: Any, tokens: int) -> Text:
    whole = (text,) if isinstance(text, str) else text
    read = tokenizer(*whole, truncation=True, max_length=tokens, return_offsets_mapping=True)
    ends = [0] * len(whole)
    for part, (_, end) in zip(read.sequence_ids(), read["offset_mapping"], strict=True):
        if part is not None:
            ends[part] = end
    cut = [each[:end] for each, end in zip(whole, ends, strict=True)]
    return cut[0] if len(cut) == 1 else (cut[0], cut[1])


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else " ".join(text)
