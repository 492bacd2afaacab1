"""Figure 5 of the paper: how explainers agree with human rationales, layer by layer, with intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.backbones.base import Backbone
from adapler.data.annotated import Cut, Cutter, Document, Rule, Window, read_documents, text_groups
from adapler.data.labels import label_numbers, numbered
from adapler.errors import BadInput
from adapler.evaluation.evaluate import FULL_FOLDER
from adapler.evaluation.explainers import EXPLAINERS, explain
from adapler.evaluation.faithfulness import faithfulness, probabilities
from adapler.evaluation.rationale import above_uniform, agreement, combined, ranks, shares, word_scores
from adapler.methods.base import Reducer
from adapler.records import Record

RESAMPLES = 1000
ENOUGH = 0.8
"""CP's false positive rate counts where its recall is at least this share of saliency's: who selects little errs little."""
_EXPLAINING = 0.25
"""What explaining counts on the progress bar, where faithfulness is measured as well."""
LEVELS = ("fpr", "fpr_at_annotated", "fpr_at_cp")
"""False positive rates that CP's is held against: at the uniform level, and of as many words for all."""
RIVALS = ("saliency", "attention", "attention_cls", "rollout", "rollout_cls")
"""Explainers that CP's false positive rate is held against."""


@dataclass(frozen=True)
class Agreement:
    """What was measured: a value a layer and window, so that any mean and interval can be taken."""

    columns: dict[str, dict[str, NDArray[np.float64]]]
    """By explainer and measure: (layers, windows)."""
    groups: NDArray[np.int64]
    """Of each window, the text it is of: what questions ask of one passage is no independent evidence."""
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
    scale: float | None = None
    """Of the reduced model's thresholds; None as trained."""
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
    full = opened.backbone if against is None else _comparable(opened, checkpoint.load(against, device=device), against)
    reduced = None if opened.reducer is None else (opened.backbone, opened.reducer)
    cut = Cutter(opened.tokenizer, opened.max_length, question.rule)(documents, labels)
    measured = measure(full, reduced, documents, cut, question, advance)
    about = {
        "against": "the model itself" if against is None else "its full-length model",
        "max_length": opened.max_length,
        "without_rationale": without,
    }
    return replace(measured, conditions={**measured.conditions, **about})


def _comparable(opened: checkpoint.Checkpoint, other: checkpoint.Checkpoint, where: str | Path) -> Backbone:
    """The other's backbone, if it reads the same tokens and gives the same labels."""
    for what, one, two in (
        ("labels", opened.backbone.labels, other.backbone.labels),
        ("layers", len(opened.backbone.blocks), len(other.backbone.blocks)),
        ("vocabulary", opened.tokenizer.get_vocab(), other.tokenizer.get_vocab()),
    ):
        if one != two:
            told = "" if isinstance(one, dict) else f" ({two} instead of {one})"
            raise BadInput(f"{where} has other {what} than the model{told}; give the classifier the model was made from")
    if other.backbone.max_length < opened.max_length:
        raise BadInput(
            f"{where} reads {other.backbone.max_length} tokens, the model {opened.max_length}; give the classifier it was made "
            f"from"
        )
    return other.backbone


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
    passes = explain(question.explainers, full, texts, reduced=reduced, scale=question.scale, labels=labels, seed=question.seed)
    random = np.random.default_rng(question.seed)
    lots = [random.random(len(window.annotated)) for window in windows]
    for index, explained in passes:
        by_words = {name: _by_words(windows[index], scores) for name, scores in explained.scores.items()}
        counts = _selected(by_words["cp"]) if "cp" in by_words else None
        for name, words in by_words.items():
            kept[name][index] = ranks(words, range(layers)[EXPLAINERS[name].layer], lots[index])
            token_share = shares(np.asarray(explained.scores[name], dtype=float))
            for layer in range(layers):
                found = agreement(
                    words[layer],
                    windows[index].annotated,
                    order=ranks(words, layer, lots[index]),
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
        "windows_all_marked": sum(bool(window.annotated.all()) for window in windows),
        "rationales_split": cut.split,
        "marked_share": round(marked, 4),
        "seed": question.seed,
    }
    groups = text_groups(documents)
    conditions["texts"] = len({groups[window.document] for window in windows})
    return Agreement(columns, np.array([groups[window.document] for window in windows]), conditions)


def records(measured: Agreement, base: Record) -> list[Record]:
    """A record an explainer, layer and measure, with the 95% interval of resampled texts; then CP's false positive rates held
    against the others', layer by layer, on the same resamples. `base` brings task, model and conditions."""
    draws = _draws(measured.groups)
    made, drawn = [], {}
    for name, columns in measured.columns.items():
        means = combined({measure_name: _means(column, measured.groups, draws) for measure_name, column in columns.items()})
        drawn[name] = means
        for measure_name, values in means.items():
            for layer in range(values.shape[0]):
                if np.isfinite(values[layer, 0]):
                    made.append(_record(base, name, layer, measure_name, values[layer], measured.conditions))
    if "cp" not in drawn:
        return made
    for name in (rival for rival in RIVALS if rival in drawn):
        for level in LEVELS:
            for layer, (ours, theirs) in enumerate(zip(drawn["cp"][level], drawn[name][level], strict=True)):
                # As many words for all need no excuse.
                counted = level != LEVELS[0] or _selects_enough(drawn, layer)
                about = {**measured.conditions, "counted": counted}
                if np.isfinite(theirs[0] - ours[0]):
                    made.append(_record(base, name, layer, f"{level}_above_cp", theirs - ours, about))
    return made


def _selects_enough(drawn: Mapping[str, Mapping[str, NDArray[np.float64]]], layer: int) -> bool:
    """Whether CP finds enough of what saliency finds for its errors to be held against anybody's; without saliency, nobody can
    say."""
    if "saliency" not in drawn:
        return False
    ours, theirs = (float(drawn[name]["recall"][layer, 0]) for name in ("cp", "saliency"))
    return ours > 0 and ours >= ENOUGH * theirs


def _record(base: Record, name: str, layer: int, metric: str, values: NDArray[np.float64], about: dict[str, Any]) -> Record:
    """`values`: first the measured one, then those of the resamples."""
    low, high = np.nanpercentile(values[1:], [2.5, 97.5])
    return replace(
        base,
        method=name,
        layer=layer + 1,
        metric=metric,
        value=round(float(values[0]), 6),
        spread=round(float(high - low), 6),
        config={**(base.config or {}), **about, "interval_95": [round(float(low), 6), round(float(high), 6)]},
    )


def _draws(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """(1 + resamples, texts): how often each text is drawn; the first row is the data as it is."""
    count = len(np.unique(groups))
    random = np.random.default_rng(0)
    drawn = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return np.concatenate([np.ones((1, count), dtype=np.int64), drawn])


def _means(column: NDArray[np.float64], groups: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """(layers, 1 + resamples): means over windows that have a value, whole texts drawn."""
    _, owner = np.unique(groups, return_inverse=True)

    def by_group(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([np.bincount(owner, weights=row, minlength=draws.shape[1]) for row in weights])

    there = np.isfinite(column)
    sums, counts = (by_group(each) @ draws.T for each in (np.where(there, column, 0.0), there.astype(float)))
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def _by_words(window: Window, scores: NDArray[np.float32]) -> NDArray[np.float64]:
    return word_scores(scores, window.word_of, len(window.annotated))


def _selected(words: NDArray[np.float64]) -> NDArray[np.int64]:
    """Per layer, how many words lie at the uniform level or above."""
    return np.asarray(above_uniform(shares(words), words.shape[1]).sum(axis=1))
