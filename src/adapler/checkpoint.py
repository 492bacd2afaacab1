"""Model folders: written whole or not at all, opened only when every check of `folder.py` has passed."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.errors import BadConfig, BadModel
from adapler.folder import CONFIG_JSON, EXPORT_JSON, REDUCTION_TENSORS, Folder, Reduction, check_folder, write_reduction
from adapler.hub import locate
from adapler.methods import METHODS
from adapler.methods.base import Reducer
from adapler.points import Dial
from adapler.safefile import typed

FORMATS = ("plain", "reduced")
_SLACK = 2  # a shared layer or a tied weight is stored once
_UNKNOWN = "\U0002a6a5"  # a character so rare that it is in no vocabulary
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)


@dataclass(frozen=True)
class Checkpoint:
    """An opened model folder. `reducer` is None for a plain transformers classifier."""

    backbone: Backbone
    tokenizer: Any
    reducer: Reducer | None
    max_length: int
    dial: Dial | None = None


def load(name: str | Path | Folder, device: str = "cpu") -> Checkpoint:
    """Open a folder, a hub id or a folder already checked, reduced where it holds a reduction. Failures are `BadModel`s."""
    folder = name if isinstance(name, Folder) else check_folder(locate(name))
    with typed(folder.path, "the model"), quiet():
        model = _load_model(folder).to(device).eval()
        backbone = model.view if folder.joint else view(model)
    with typed(folder.path, "the tokenizer"), quiet():
        tokenizer = _load_tokenizer(folder, backbone)
    if folder.reduction is None:
        limit = min(backbone.max_length, int(tokenizer.model_max_length))
        return Checkpoint(backbone, tokenizer, None, limit)
    with typed(folder.path, "the reduction"):
        reducer = model.reducer if folder.joint else _load_reducer(folder, folder.reduction, backbone).to(device).eval()
    limit = min(folder.reduction.max_length, backbone.max_length)
    return Checkpoint(backbone, tokenizer, reducer, limit, folder.reduction.dial)


def save(
    path: str | Path,
    backbone: Backbone,
    tokenizer: Any,
    reducer: Reducer | None,
    max_length: int,
    *,
    dial: Dial | None = None,
    overwrite: bool = False,
    format: str = "plain",  # noqa: A002 (what users write)
) -> None:
    """Write a folder that transformers opens as the plain classifier and adapler opens reduced.

    In the format `reduced` transformers opens it reduced as well, where `adapler.auto` is imported, and not at all elsewhere.
    """
    if format not in FORMATS:
        raise BadConfig(f"no format {format!r}; there are {' and '.join(FORMATS)}")
    if format == "reduced" and reducer is None:
        raise BadModel("the model has no reduction, so it cannot be saved as a reduced one; leave out the format")

    def write(staging: Path) -> None:
        if format == "reduced" and reducer is not None:
            from adapler.auto import joined

            with quiet():
                joined(backbone, reducer, max_length, dial).save_pretrained(staging)
                tokenizer.save_pretrained(staging)
            return
        with quiet():
            backbone.model.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
        if reducer is None:
            return
        from safetensors.torch import save_file

        state = {name: tensor.detach().float().cpu().contiguous() for name, tensor in reducer.state_dict().items()}
        save_file(state, staging / REDUCTION_TENSORS)
        write_reduction(
            staging,
            Reduction(
                method=reducer.name,
                settings=reducer.settings,
                model_type=backbone.model.config.model_type,
                hidden_size=backbone.hidden_size,
                layers=len(backbone.blocks),
                max_length=max_length,
                dial=dial,
            ),
        )

    write_folder(Path(path), write, overwrite=overwrite)


def write_folder(target: Path, write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Let `write` fill a staging folder beside `target`, force it to disk, and put it in place in one rename.

    Whatever happens on the way, `target` is either what it was or the whole new folder.
    """
    target = Path(os.path.realpath(target))  # what a link points to is replaced, not the link
    if target.exists() and not overwrite:
        raise BadModel(f"{target} exists; choose another folder or pass overwrite=True")
    ours = any((target / name).exists() for name in (CONFIG_JSON, EXPORT_JSON))
    if target.exists() and not ours and (not target.is_dir() or any(target.iterdir())):
        raise BadModel(f"{target} is no model folder, so it is not overwritten; choose another folder or remove it yourself")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        write(staging)
        for entry in [*staging.rglob("*"), staging]:
            entry.chmod(0o755 if entry.is_dir() else 0o644)  # some writers make private files: a server could not read them
            sync(entry)
        if target.exists():
            _exchange(staging, target)
        else:
            staging.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # after an exchange this is the folder that was there before


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and reports; whatever matters in them is raised as an error here."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _load_model(folder: Folder) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if folder.joint:
        importlib.import_module("adapler.auto")  # makes the Auto classes know it
    # First without memory: sizes that do not fit the weights would be set aside before transformers notices.
    config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        described = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False).num_parameters()
    if described > _SLACK * folder.parameters:
        raise BadModel(
            f"{folder.path / CONFIG_JSON} describes a model of {described} numbers, the weights hold {folder.parameters}; "
            f"restore the file or save the model again"
        )
    model, info = AutoModelForSequenceClassification.from_pretrained(
        folder.path,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype="float32",
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for name, held, wanted in sorted(info["mismatched_keys"]):
        raise BadModel(
            f"{folder.path} holds {name} as {list(held)}, {CONFIG_JSON} describes it as {list(wanted)}; "
            f"restore the folder or save the model again"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadModel(
            f"{folder.path} holds no {missing[0]!r}: it is an encoder without a trained classifier, or damaged. "
            f"Train it on labelled text, or save the model again"
        )
    return model


def _load_tokenizer(folder: Folder, backbone: Backbone) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise BadModel(f"{folder.path} has only a slow tokenizer; save a fast one (tokenizer.json) into the folder")
    engine = tokenizer.backend_tokenizer
    engine.no_padding()  # both are set anew at each call
    engine.no_truncation()
    nothing, unknown = engine.encode("").ids, engine.encode(_UNKNOWN, _UNKNOWN).ids
    if not nothing or not unknown:  # a text without a token has nothing to classify
        raise BadModel(
            f"{folder.path}: the tokenizer puts no special tokens around a text or pair; save the model's own tokenizer into it"
        )
    known = backbone.model.get_input_embeddings().num_embeddings
    highest = max([*tokenizer.get_vocab().values(), *nothing, *unknown])
    if highest >= known:
        raise BadModel(
            f"{folder.path}: the tokenizer numbers tokens up to {highest}, the model knows 0 to {known - 1}; "
            f"save the model's own tokenizer into it"
        )
    return tokenizer


def _load_reducer(folder: Folder, reduction: Reduction, backbone: Backbone) -> Reducer:
    from safetensors.torch import load_file

    if (backbone.hidden_size, len(backbone.blocks)) != (reduction.hidden_size, reduction.layers):
        raise BadModel(
            f"{folder.path}: the reduction is for {reduction.layers} layers of {reduction.hidden_size}, the model has "
            f"{len(backbone.blocks)} of {backbone.hidden_size}; they belong to different models"
        )
    reducer: Reducer = METHODS[reduction.method].for_backbone(backbone, reduction.settings)
    reducer.load_state_dict(load_file(folder.path / REDUCTION_TENSORS), strict=True)
    return reducer


def sync(path: Path) -> None:
    """Force a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the system can (Linux); elsewhere in two renames, and the old one is removed."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here = -100  # AT_FDCWD
    if rename is not None and rename(here, os.fsencode(new), here, os.fsencode(old), _EXCHANGE) == 0:
        return
    aside = new.with_name(new.name + ".old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    shutil.rmtree(aside, ignore_errors=True)
