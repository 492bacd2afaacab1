"""What the rows of a pilot read: the same windows of the same documents, cut down to the words a row chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from adapler import checkpoint
from adapler.data.annotated import Cutter, Document, Window, only_words, read_documents, text_groups
from adapler.data.labels import Examples, label_names, numbered
from adapler.data.load import DEFAULT_MAX_LENGTH, Dataset
from adapler.data.text import EncodedText
from adapler.errors import BadInput
from adapler.evaluation.explainers import EXPLAINERS, explain
from adapler.evaluation.rationale import Scores, top, word_scores
from adapler.problems import SINGLE
from adapler.study.rationale_plan import CHOSEN_BY, RationaleCell, RationalePlan
from adapler.training.setup import Prepared, load_backbone
from adapler.training.snapshot import write_tensors

PART = 256
"""Windows whose scores are written together."""


@dataclass(frozen=True)
class Material:
    """The documents of a task and seed, as every row gets them."""

    names: tuple[str, ...]
    windows: dict[str, list[Window]]
    documents: dict[str, int]
    """By split, how many."""
    test_texts: list[int]
    """Of each test document with a window, the number of its text: questions may share one."""
    max_length: int


def gather(plan: RationalePlan, cell: RationaleCell) -> Material:
    """Read, choose (`train_limit` and `dev_limit` by the seed alone) and cut."""
    data = cell.config.data
    read = {split: read_documents(data.source, split)[0] for split in ("train", "dev", "test")}
    for split, found in read.items():
        if not found:
            raise BadInput(f"{data.source}: no document of {split} is annotated, so no word of it can be chosen")
    values, names = label_names([document.labelled for document in read["train"]], SINGLE, None, "label")
    for split, limit in (("train", data.train_limit), ("dev", plan.dev_limit)):
        if limit is not None and limit < len(read[split]):
            chosen = np.random.default_rng(cell.seed).choice(len(read[split]), limit, replace=False)
            read[split] = [read[split][index] for index in sorted(chosen.tolist())]
    if plan.test_limit is not None and plan.test_limit < len(read["test"]):
        # spread over the file: questions about a passage stand together, and intervals are over passages
        chosen = np.linspace(0, len(read["test"]) - 1, plan.test_limit).astype(int)
        read["test"] = [read["test"][index] for index in chosen.tolist()]
    backbone, tokenizer = load_backbone(plan.model, names, cell.seed)
    max_length = min(data.max_length or DEFAULT_MAX_LENGTH, backbone.max_length)
    cutter = Cutter(tokenizer, max_length, plan.window)

    def cut(documents: list[Document]) -> list[Window]:
        labels = numbered([document.labelled for document in documents], values).numbers
        return cutter(documents, labels, most=plan.max_windows).windows

    windows = {split: cut(documents) for split, documents in read.items()}
    counts = {split: len({window.document for window in found}) for split, found in windows.items()}
    groups = text_groups(read["test"])
    texts = [groups[document] for document in sorted({window.document for window in windows["test"]})]
    return Material(names, windows, counts, texts, max_length)


def texts_of(
    plan: RationalePlan, cell: RationaleCell, windows: Sequence[Window], scores: Sequence[Scores] | None
) -> list[EncodedText]:
    """The windows as a row reads them. `scores` has a number a word; as many words are chosen as people marked."""
    if cell.row == "full":
        return [window.text for window in windows]
    if cell.row == "human":
        return [only_words(window, window.annotated, plan.positions) for window in windows]
    if scores is None:
        raise BadInput(f"row {cell.row!r} needs scores to choose words by")
    return [
        only_words(window, top(words, int(window.annotated.sum())), plan.positions)
        for window, words in zip(windows, scores, strict=True)
    ]


def prepared(plan: RationalePlan, cell: RationaleCell, material: Material, texts: dict[str, list[EncodedText]]) -> Prepared:
    """What fine-tuning starts from: the pre-trained model, and the texts of a row."""
    backbone, tokenizer = load_backbone(plan.model, material.names, cell.seed, cell.config.run.device)

    def examples(split: str) -> Examples:
        windows = material.windows[split]
        return Examples([" ".join(window.text.tokens) for window in windows], [window.label for window in windows])

    dataset = Dataset(
        name=cell.task,
        train=examples("train"),
        dev=examples("dev"),
        test=None,
        labels=material.names,
        problem=SINGLE,
        metric="accuracy",
        max_length=material.max_length,
        notes=(),
    )
    return Prepared(backbone, tokenizer, dataset, texts["train"], texts["dev"], None, material.max_length)


def choosing_scores(plan: RationalePlan, material: Material, model: Path, folder: Path) -> dict[str, dict[str, list[Any]]]:
    """By split and explainer, a score a word of each window, from the fine-tuned full-length model: of the input layer for
    saliency, of all layers for rollout.

    Computed once, in parts that are written as they come; what is there is read.
    """
    opened: checkpoint.Checkpoint | None = None
    names = list(dict.fromkeys(CHOSEN_BY.values()))
    found: dict[str, dict[str, list[Any]]] = {}
    for split, windows in material.windows.items():
        found[split] = {name: [] for name in names}
        for number, start in enumerate(range(0, len(windows), PART)):
            part, file = windows[start : start + PART], folder / f"{split}-{number:05d}.safetensors"
            if not file.exists():
                opened = opened or checkpoint.load(model)
                write_tensors(file, _scores(plan, opened, names, part))
            ends = np.cumsum([len(window.annotated) for window in part])[:-1]
            for name, tensor in load_file(file).items():
                found[split][name] += np.split(tensor.numpy(), ends)
    return found


def _scores(
    plan: RationalePlan, opened: checkpoint.Checkpoint, names: Sequence[str], windows: Sequence[Window]
) -> dict[str, torch.Tensor]:
    """Of each explainer, the words of all windows end to end."""
    labels = [window.label for window in windows] if plan.target == "gold" else None
    rows: dict[str, list[NDArray[np.float64]]] = {name: [np.zeros(0)] * len(windows) for name in names}
    for index, explained in explain(names, opened.backbone, [window.text for window in windows], labels=labels):
        window = windows[index]
        for name in names:
            layer = explained.scores[name][EXPLAINERS[name].layer]
            rows[name][index] = word_scores(layer[None], window.word_of, len(window.annotated))[0]
    return {name: torch.from_numpy(np.concatenate(row)) for name, row in rows.items()}
