"""Figure 5 of the paper: how explainers agree with human rationales, layer by layer, with intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.backbones.base import Backbone
from adapler.data.annotated import Cut, Cutter, Document, Rule, Window, read_documents
from adapler.data.labels import label_numbers, numbered
from adapler.errors import BadInput
from adapler.evaluation.evaluate import FULL_FOLDER
from adapler.evaluation.explainers import EXPLAINERS, explain
from adapler.evaluation.faithfulness import faithfulness, probabilities
from adapler.evaluation.rationale import above_uniform, agreement, combined, shares, word_scores
from adapler.methods.base import Reducer
from adapler.records import Record

RESAMPLES = 1000
ENOUGH = 0.8
"""CP's false positive rate counts where its recall is at least this share of saliency's: who selects little errs little."""
_EXPLAINING = 0.25
"""What explaining counts on the progress bar, where faithfulness is measured as well."""
RIVALS = ("saliency", "attention", "attention_cls", "rollout", "rollout_cls")
"""Explainers that CP's false positive rate is held against."""


@dataclass(frozen=True)
class Agreement:
    """What was measured: a value a layer and window, so that any mean and interval can be taken."""

    columns: dict[str, dict[str, NDArray[np.float64]]]
    """By explainer and measure: (layers, windows)."""
    documents: NDArray[np.int64]
    """Of each window, its document."""
    conditions: dict[str, Any]
    """What the numbers depend on."""


@dataclass(frozen=True)
class Question:
    """What is to be measured."""

    explainers: tuple[str, ...]
    rule: Rule = "whole"
    gold: bool = False
    """Explain the true class instead of the predicted one."""
    limit: int | None = None
    """Only so many documents, the first ones."""
    faithful: bool = True
    """Also comprehensiveness and sufficiency, which take some forty passes a window."""
    seed: int = 0


def measure_folder(
    model: str | Path,
    source: str,
    split: str,
    question: Question,
    *,
    against: str | Path | None = None,
    device: str = "cpu",
    advance: Callable[[float], None] = lambda share: None,
) -> Agreement:
    """Of a model folder on a split of annotated documents. `against` is the full-length classifier that the other explainers
    explain: by default the phase-1 model of a run folder, else the model itself at full length."""
    opened = checkpoint.load(model, device=device)
    documents, without = read_documents(source, split)
    if not documents:
        raise BadInput(f"{source}: no document of {split} is annotated ({without} rows have no rationale)")
    documents = documents[: question.limit]
    labels = numbered([d.labelled for d in documents], label_numbers(opened.backbone.labels), where_known="the model").numbers
    if against is None and (Path(model) / FULL_FOLDER).is_dir():
        against = Path(model) / FULL_FOLDER
    full = opened.backbone if against is None else checkpoint.load(against, device=device).backbone
    reduced = None if opened.reducer is None else (opened.backbone, opened.reducer)
    cut = Cutter(opened.tokenizer, opened.max_length, question.rule)(documents, labels)
    measured = measure(full, reduced, documents, cut, question, advance)
    about = {
        "against": "the model itself" if against is None else "its full-length model",
        "max_length": opened.max_length,
        "without_rationale": without,
    }
    return replace(measured, conditions={**measured.conditions, **about})


def measure(
    full: Backbone,
    reduced: tuple[Backbone, Reducer] | None,
    documents: Sequence[Document],
    cut: Cut,
    question: Question,
    advance: Callable[[float], None] = lambda share: None,
) -> Agreement:
    """Scores of every window by every explainer, held against the marks."""
    windows = cut.windows
    if not windows:
        raise BadInput("no document has a marked word; there is nothing to agree with")
    marked = float(np.mean([window.annotated.mean() for window in windows]))
    labels = [window.label for window in windows] if question.gold else None
    layers = len(full.blocks)
    columns: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in question.explainers}
    kept: dict[str, list[NDArray[np.float64]]] = {name: [np.zeros(0)] * len(windows) for name in question.explainers}
    texts = [window.text for window in windows]
    passes = explain(question.explainers, full, texts, reduced=reduced, labels=labels, seed=question.seed)
    for index, explained in passes:
        by_words = {name: _by_words(windows[index], scores) for name, scores in explained.scores.items()}
        counts = _selected(by_words["cp"]) if "cp" in by_words else None
        for name, words in by_words.items():
            kept[name][index] = words[EXPLAINERS[name].layer]
            token_share = shares(np.asarray(explained.scores[name], dtype=float))
            for layer in range(layers):
                found = agreement(
                    words[layer],
                    windows[index].annotated,
                    share=marked,
                    token_share=token_share[layer],
                    word_of=windows[index].word_of,
                    k_cp=None if counts is None else int(counts[layer]),
                )
                for measure_name, value in found.items():
                    column = columns[name].setdefault(measure_name, np.zeros((layers, len(windows))))
                    column[layer, index] = value
        advance((_EXPLAINING if question.faithful else 1.0) / len(windows))
    if question.faithful:
        whole = probabilities(full, texts)
        for name in question.explainers:
            lost = faithfulness(full, windows, kept[name], whole)
            for measure_name, values in zip(("comprehensiveness", "sufficiency"), lost, strict=True):
                column = np.full((layers, len(windows)), np.nan)
                column[EXPLAINERS[name].layer] = values.mean(axis=1)
                columns[name][measure_name] = column
            advance((1 - _EXPLAINING) / len(question.explainers))
    conditions = {
        "window": question.rule,
        "class": "gold" if question.gold else "predicted",
        "documents": len({window.document for window in windows}),
        "windows": len(windows),
        "windows_unmarked": cut.unmarked,
        "rationales_split": cut.split,
        "marked_share": round(marked, 4),
        "seed": question.seed,
    }
    return Agreement(columns, np.array([window.document for window in windows]), conditions)


def records(measured: Agreement, base: Record) -> list[Record]:
    """A record an explainer, layer and measure, with the 95% interval of resampled documents; then CP's false positive rate
    held against the others', layer by layer, on the same resamples. `base` brings task, model and conditions."""
    draws = _draws(measured.documents)
    made, drawn = [], {}
    for name, columns in measured.columns.items():
        means = combined({measure_name: _means(column, measured.documents, draws) for measure_name, column in columns.items()})
        drawn[name] = means
        for measure_name, values in means.items():
            for layer in range(values.shape[0]):
                if np.isfinite(values[layer, 0]):
                    made.append(_record(base, name, layer, measure_name, values[layer], measured.conditions))
    if "cp" not in drawn:
        return made
    for name in (rival for rival in RIVALS if rival in drawn):
        for layer, (ours, theirs) in enumerate(zip(drawn["cp"]["fpr"], drawn[name]["fpr"], strict=True)):
            about = dict(measured.conditions)
            if "saliency" in drawn:
                enough = drawn["cp"]["recall"][layer, 0] >= ENOUGH * drawn["saliency"]["recall"][layer, 0]
                about["counted"] = bool(enough)
            made.append(_record(base, name, layer, "fpr_above_cp", theirs - ours, about))
    return made


def _record(base: Record, name: str, layer: int, metric: str, values: NDArray[np.float64], about: dict[str, Any]) -> Record:
    """`values`: first the measured one, then those of the resamples."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return replace(
        base,
        method=name,
        layer=layer + 1,
        metric=metric,
        value=round(float(values[0]), 6),
        spread=round(float(high - low), 6),
        config={**(base.config or {}), **about, "interval_95": [round(float(low), 6), round(float(high), 6)]},
    )


def _draws(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """(1 + resamples, documents): how often each document is drawn; the first row is the data as it is."""
    count = len(np.unique(documents))
    random = np.random.default_rng(0)
    drawn = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return np.concatenate([np.ones((1, count), dtype=np.int64), drawn])


def _means(column: NDArray[np.float64], documents: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """(layers, 1 + resamples): means over windows, whole documents drawn."""
    _, owner = np.unique(documents, return_inverse=True)
    sums = np.stack([np.bincount(owner, weights=row, minlength=draws.shape[1]) for row in column])
    return np.asarray(sums @ draws.T / (draws @ np.bincount(owner)))


def _by_words(window: Window, scores: NDArray[np.float32]) -> NDArray[np.float64]:
    return word_scores(scores, window.word_of, len(window.annotated))


def _selected(words: NDArray[np.float64]) -> NDArray[np.int64]:
    """Per layer, how many words lie at the uniform level or above."""
    return np.asarray(above_uniform(shares(words), words.shape[1]).sum(axis=1))
