"""Table 1 of the AdapLeR paper (ACL 2022, BERT-base), to stand beside this machine's: score in points and speedup."""

from __future__ import annotations

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "sst2": {"full": (92.7, 1.0), "distilled": (92.2, 2.0), "power": (92.1, 1.18), "trbert": (92.1, 1.46),
             "adapler": (92.3, 1.49)},
    "imdb": {"full": (93.8, 1.0), "distilled": (92.9, 2.0), "power": (92.2, 1.70), "trbert": (93.2, 2.90),
             "adapler": (91.7, 3.21)},
    "hatexplain": {"full": (68.3, 1.0), "distilled": (68.2, 2.0), "power": (66.9, 2.69), "trbert": (67.9, 2.23),
                   "adapler": (68.6, 4.73)},
    "mrpc": {"full": (87.5, 1.0), "distilled": (88.0, 2.0), "power": (88.0, 1.07), "trbert": (81.9, 1.16),
             "adapler": (87.6, 1.27)},
    "mnli": {"full": (84.2, 1.0), "distilled": (81.8, 2.0), "power": (82.9, 1.10), "trbert": (84.8, 1.00),
             "adapler": (82.9, 1.42)},
    "qnli": {"full": (90.3, 1.0), "distilled": (88.1, 2.0), "power": (89.7, 1.23), "trbert": (89.0, 1.09),
             "adapler": (89.3, 1.47)},
    "ag_news": {"full": (94.4, 1.0), "distilled": (94.2, 2.0), "power": (92.1, 12.50), "trbert": (93.2, 10.20),
                "adapler": (92.5, 17.10)},
    "dbpedia14": {"full": (99.3, 1.0), "distilled": (99.3, 2.0), "power": (98.1, 14.80), "trbert": (98.9, 10.01),
                  "adapler": (98.9, 22.23)},
}  # fmt: skip
"""By task and method. MNLI is the mean of matched and mismatched there; GLUE scores come from the test server."""

NAMES = {
    "words": "bag of words",
    "full": "full length",
    "distilled": "distilled",
    "power": "PoWER-BERT",
    "trbert": "TR-BERT",
    "adapler": "AdapLeR",
    "adapler_paper": "AdapLeR, paper's settings",
}
"""Methods as tables show them, in their order."""

PAPER_PILOT: dict[str, dict[str, tuple[float, float]]] = {
    "eraser_movies": {"full": (93.3, 1.0), "human": (96.7, 3.7), "saliency": (92.3, 3.7), "attention_all": (78.5, 3.7),
                      "attention_cls": (70.3, 3.7)},
    "eraser_multirc": {"full": (67.7, 1.0), "human": (76.6, 4.6), "saliency": (66.4, 4.4), "attention_all": (62.9, 4.4),
                       "attention_cls": (63.7, 4.4)},
}  # fmt: skip
"""Table 2: accuracy in points and speedup of models that read only the words a row chooses."""


def paper_loss(task: str, method: str) -> float | None:
    """Points the paper's method lost against its BERT."""
    row, method = PAPER.get(task, {}), method.removesuffix("_paper")
    return round(row["full"][0] - row[method][0], 1) if method in row else None


def paper_speedup(task: str, method: str) -> float | None:
    """The paper's speedup."""
    row, method = PAPER.get(task, {}), method.removesuffix("_paper")
    return row[method][1] if method in row else None
