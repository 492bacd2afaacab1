"""Labelled texts from files, folders of splits, named tasks and the hub. Never sees a model.

Whatever is wrong with the data is a `BadInput` that names file, line and column; what is only odd is a note for the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from adapler.config import DataSettings
from adapler.data.files import cell, format_of, no_column, open_table, text_columns
from adapler.data.labels import (
    Examples,
    Labelled,
    check_label,
    check_text,
    label_names,
    label_numbers,
    labels_seen,
    numbered,
    problem_seen,
)
from adapler.data.tasks import TASKS, Task
from adapler.data.text import Text
from adapler.data.unlabelled import unlabelled_texts
from adapler.errors import BadInput, MissingExtra, OtherLabels
from adapler.problems import METRICS_OF, REGRESSION, SINGLE, Problem

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
DEFAULT_MAX_LENGTH = 128
LABEL_FLAG = "--label"
_IMBALANCE = 10
_UNLABELLED = -1
"""How the hub marks the test splits of benchmarks that keep their labels to themselves."""


@dataclass(frozen=True)
class Dataset:
    """A dataset ready to train on."""

    name: str
    train: Examples
    dev: Examples
    test: Examples | None
    labels: tuple[str, ...]
    problem: Problem
    metric: str
    max_length: int
    notes: tuple[str, ...]
    """What the user should know: a carved dev split, duplicates across splits, an imbalance."""
    unlabelled: tuple[Text, ...] = ()
    """For a trained model to answer."""


@dataclass(frozen=True)
class Known:
    """Labels that a model has already learnt."""

    labels: tuple[str, ...]
    problem: Problem


def load_dataset(settings: DataSettings, seed: int, known: Known | None = None) -> Dataset:
    """Read, check and split. The choice of a carved dev split, of `train_limit` and of `dev_limit` depends on `seed` alone.

    Labels are numbered as the model that has them `known` does; that the data's are others raises `OtherLabels`.
    """
    source = Path(settings.source)
    task = _task(settings)
    rows = {split: list(read()) for split, read in _split_readers(settings, source, task).items()}
    if "train" not in rows:
        raise BadInput(f"{settings.source}: no train split; expected a file named train.csv, train.jsonl, train.parquet ...")
    problem = settings.problem or problem_seen(rows["train"])
    if known is None:
        values, names = label_names(rows["train"], problem, task, settings.label)
    else:
        values, names = _known_values(rows["train"], problem, known), known.labels
    examples = {split: numbered(found, values, problem) for split, found in rows.items()}
    notes: list[str] = []
    train, random = examples["train"], np.random.default_rng(seed)
    if "dev" not in examples:
        order = random.permutation(len(train))
        size = max(1, round(settings.dev_share * len(train)))
        if size >= len(train):
            raise BadInput(f"{settings.source}: {len(train)} examples are too few to carve a dev split from; add some")
        examples["dev"] = train.only(sorted(order[:size].tolist()))
        train = train.only(sorted(order[size:].tolist()))
        notes.append(f"no dev split: {size} examples of train were carved off as dev (seed {seed})")
    whole = train
    if settings.train_limit is not None and settings.train_limit < len(train):
        train = train.only(sorted(random.choice(len(train), settings.train_limit, replace=False).tolist()))
        notes.append(f"train limited to {len(train)} examples (seed {seed})")
    if problem == SINGLE and len(set(train.labels)) < 2:  # of the file's labels only one was drawn
        raise BadInput(
            f"{cell(settings.source, settings.label)} holds the same label in all {len(train)} examples that are left to train "
            f"on; a classifier needs at least two. Add examples, raise train_limit or take another seed"
        )
    judging = [text for split in ("dev", "test") if split in examples for text in examples[split].texts]
    unlabelled, said = unlabelled_texts(settings, whole.texts if whole is not train else (), train.texts, judging, random)
    notes += said
    dev = examples["dev"]
    if settings.dev_limit is not None and settings.dev_limit < len(dev):
        dev = dev.only(sorted(random.choice(len(dev), settings.dev_limit, replace=False).tolist()))
        notes.append(f"dev limited to {len(dev)} examples (seed {seed})")
    dataset = Dataset(
        name=task.name if task else source.stem.split(".")[0] if source.exists() else settings.source,
        train=train,
        dev=dev,
        test=examples.get("test") if settings.test else None,
        labels=names,
        problem=problem,
        metric=settings.metric or (task.metric if task else METRICS_OF[problem][0]),
        max_length=settings.max_length or (task.max_length if task else DEFAULT_MAX_LENGTH),
        notes=tuple(notes),
        unlabelled=unlabelled,
    )
    return replace(dataset, notes=(*notes, *_oddities(dataset, settings)))


def _task(settings: DataSettings) -> Task | None:
    """The named task that a source is: by its name, or by that of its folder or file."""
    source = Path(settings.source)
    return TASKS.get(source.name if source.exists() else settings.source)


def read_split(settings: DataSettings, split: str, names: Sequence[str], problem: Problem = SINGLE) -> tuple[Examples, str]:
    """One split for a model that knows its labels' names, and the metric of the data. A single file is every split."""
    source = Path(settings.source)
    task = _task(settings)
    readers = _split_readers(settings, source, task)
    if source.is_file():
        split = "train"
    if split not in readers:
        raise BadInput(f"{settings.source}: no {split} split; there are: {', '.join(readers) or 'none'}")
    metric = settings.metric or (task.metric if task else METRICS_OF[problem][0])
    return numbered(list(readers[split]()), label_numbers(names), problem, "the model"), metric


def has_test(settings: DataSettings) -> bool:
    """Whether there is a split of its own to test on; a single file has none."""
    source = Path(settings.source)
    task = _task(settings)
    return not source.is_file() and "test" in _split_readers(settings, source, task)


def read_labelled(settings: DataSettings, path: Path) -> Iterator[Labelled]:
    """Rows of one file with their labels."""
    with open_table(path) as table:
        if settings.label not in table.columns:  # asked first: without it, which column is the text cannot be seen
            raise no_column(table.name, settings.label, table.columns, LABEL_FLAG)
        others = [column for column in table.columns if column != settings.label]
        text, pair = settings.text, settings.pair
        if text is None and pair is None and len(others) == 1:
            text = others[0]
        columns = text_columns(table.name, table.columns, text, pair)
        for place, values in table.rows([*columns, settings.label]):
            *texts, label = values
            yield _labelled(table.where(place), dict(zip(columns, texts, strict=True)), label, settings)


def _labelled(where: str, texts: Mapping[str, Any], label: Any, settings: DataSettings) -> Labelled:
    """A row, once its cells are checked; one text or two, by their columns."""
    for column, text in texts.items():
        check_text(cell(where, column), text)
    place = cell(where, settings.label)
    check_label(place, label, settings.problem)
    first, *second = texts.values()
    return place, (first, second[0]) if second else first, label


def _split_readers(settings: DataSettings, source: Path, task: Task | None) -> dict[str, Callable[[], Iterable[Labelled]]]:
    if source.is_dir():
        return {split: lambda file=file: read_labelled(settings, file) for split, file in split_files(source).items()}  # type: ignore[misc]
    if source.exists():
        return {"train": lambda: read_labelled(settings, source)}
    if not settings.source:
        raise BadInput("no data given; name a task, a folder of splits, a file or a hub dataset id")
    return _hub_readers(settings, task)


def split_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that hold its splits."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        stem = file.name.split(".")[0]
        for split, names in SPLITS.items():
            if stem in names and file.is_file() and format_of(file) != "lines":
                if split in found:
                    raise BadInput(f"{folder}: both {found[split].name} and {file.name} could be the {split} split; remove one")
                found[split] = file
    return found


def _hub_readers(settings: DataSettings, task: Task | None) -> dict[str, Callable[[], Iterable[Labelled]]]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"{settings.source!r} is no file or folder here; hub datasets need: pip install 'adapler[hub]'"
        ) from error
    if task is not None and task.hub is None:
        raise BadInput(
            f"{task.name} has no labelled texts on the hub, only what they are made from; give a folder of splits with the "
            f"columns {task.text!r} and {settings.label!r}"
        )
    name, configuration = task.hub if task and task.hub else (settings.source, None)
    try:
        loaded = datasets.load_dataset(name, configuration, download_config=datasets.DownloadConfig(max_retries=1))
    except Exception as error:  # the library raises what its network stack raises
        reason = str(error).strip().splitlines()[0][:200]
        raise BadInput(
            f"no file or folder {settings.source!r} here, and the hub could not give dataset {name!r} ({reason}). "
            f"Check the name; without network, give a folder with train and dev files"
        ) from error
    text = settings.text or (task.text if task else "text")
    pair = settings.pair or (task.pair if task else None)

    def rows(split: str) -> Iterator[Labelled]:
        table = loaded[split]
        if settings.label not in table.column_names:
            raise no_column(f"{name} {split}", settings.label, table.column_names, LABEL_FLAG)
        for column in filter(None, (text, pair)):
            if column not in table.column_names:
                raise no_column(f"{name} {split}", column, table.column_names)
        feature = table.features[settings.label]
        for number, row in enumerate(table, start=1):
            place, label = f"{name} {split} row {number}", row[settings.label]
            if label == _UNLABELLED and hasattr(feature, "int2str"):
                raise BadInput(f"{place}: column {settings.label!r} holds {label}, the hub's mark of a text without a label")
            named = feature.int2str(label) if hasattr(feature, "int2str") and label is not None else label
            yield _labelled(place, {column: row[column] for column in (text, pair) if column}, named, settings)

    def labelled(split: str) -> bool:
        table = loaded[split]
        return settings.label not in table.column_names or any(label != _UNLABELLED for label in table[settings.label])

    readers: dict[str, Callable[[], Iterable[Labelled]]] = {}
    for split, names in SPLITS.items():
        for candidate in (*names, *(f"{name}_matched" for name in names)):
            if candidate in loaded and labelled(candidate):
                readers.setdefault(split, lambda candidate=candidate: rows(candidate))  # type: ignore[misc]
    return readers


def _known_values(train: Sequence[Labelled], problem: Problem, known: Known) -> dict[str, int]:
    values = label_numbers(known.labels)
    if problem != known.problem:
        raise OtherLabels(f"the data is a {problem} problem, the model's own a {known.problem} problem")
    others = sorted(labels_seen(train, problem) - values.keys())
    if others and problem != REGRESSION:
        raise OtherLabels(f"the data has the label {others[0]!r}, the model was trained for {', '.join(known.labels)}")
    return values


def _oddities(dataset: Dataset, settings: DataSettings) -> Iterator[str]:
    splits = [("train", dataset.train), ("dev", dataset.dev), *([("test", dataset.test)] if dataset.test else [])]
    for (other, before), (name, split) in combinations(splits, 2):  # dev against test too: dev chooses the model
        seen = set(before.texts)
        doubled = sum(text in seen for text in split.texts)
        if doubled:
            yield f"{doubled} texts of {name} are in {other} as well; its score is too good by them"
    if dataset.problem != SINGLE:
        return
    counts = Counter(dataset.train.labels)
    most, least = max(counts.values()), min(counts.get(number, 0) for number in range(len(dataset.labels)))
    if most >= _IMBALANCE * max(least, 1) and not settings.class_weights:
        yield f"the commonest label has {most} examples, the rarest {least}; --class-weights may help"
