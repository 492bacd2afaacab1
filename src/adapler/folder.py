"""Is this folder a model adapler may open? Answered from names, headers, hashes and numbers, before torch is imported.

A reduced model is an ordinary transformers folder plus `reduction.json` (method, settings, sizes, hashes of every file) and
`reduction.safetensors` (predictors and thresholds). Only JSON and safetensors are ever read; pickles never.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from adapler.backbones import BACKBONES, unsupported
from adapler.errors import AdaplerError, BadModel
from adapler.methods.settings import MethodSettings, parse_settings
from adapler.points import Dial
from adapler.problems import THRESHOLDS
from adapler.safefile import (
    check_numbers,
    check_sealed_files,
    damaged,
    plain_name,
    read_header,
    read_json,
    read_sealed,
    regular,
    reseal,
    seal,
    short,
)

FORMAT_VERSION = 1
REDUCTION_JSON = "reduction.json"
REDUCTION_TENSORS = "reduction.safetensors"
CONFIG_JSON = "config.json"
EXPORT_JSON = "export.json"
"""Marks a folder of an exported graph, which is no checkpoint: `runtimes/exported.py` opens it."""
WEIGHTS = "model.safetensors"
REPORT_JSON = "report.json"
"""What a run of training says of itself, beside the model."""
REDUCED_TYPE = "adapler"
"""`model_type` of a folder whose one config and one weight file hold encoder and reduction; see `auto.py`."""
SHARDS = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "spm.model")

_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5", ".msgpack"}
_SIZES = {  # config entries that size a tensor; a number outside is damage, not a model
    "hidden_size": (1, 2**17),
    "intermediate_size": (1, 2**20),
    "num_hidden_layers": (1, 2**10),
    "num_attention_heads": (1, 2**12),
    "num_labels": (1, 2**16),
    "vocab_size": (1, 2**24),
    "max_position_embeddings": (1, 2**22),
    "type_vocab_size": (0, 2**16),
    "embedding_size": (1, 2**17),
    "position_buckets": (-1, 2**22),
    "max_relative_positions": (-1, 2**22),
    "relative_attention_num_buckets": (1, 2**16),
    "local_attention": (1, 2**22),
}
_ALIASES = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}
"""Other names that configs give them."""
_SHORTEST = 3  # tokens: a first, a last, and one between
_LOADED = {".json", ".safetensors", ".txt", ".model", ".jinja"}  # endings of what the loaders may open


@dataclass(frozen=True)
class Reduction:
    """What `reduction.json` says."""

    method: str
    settings: MethodSettings
    model_type: str
    hidden_size: int
    layers: int
    max_length: int
    dial: Dial | None = None
    """Operating points, where they were measured."""


@dataclass(frozen=True)
class Folder:
    """A checked model folder. `reduction` is None for a plain transformers classifier."""

    path: Path
    config: dict[str, Any]
    reduction: Reduction | None
    parameters: int
    """How many numbers the weight files hold."""
    joint: bool = False
    """Whether one weight file holds the reduction too; `config` is the family's own either way."""


def check_folder(path: Path) -> Folder:
    """Look at everything that can be looked at without torch; the first thing wrong is raised as `BadModel`."""
    try:
        return _checked(path)
    except OSError as error:
        raise BadModel(f"{short(str(path))} cannot be read ({error.strerror}); check the path and who may read it") from error


def write_reduction(path: Path, reduction: Reduction) -> None:
    """Write `reduction.json` last: it lists every other file of the folder with its hash, and its own digest."""
    seal(path / REDUCTION_JSON, reduction_content(reduction))


def reduction_content(reduction: Reduction) -> dict[str, Any]:
    """A reduction as JSON holds it."""
    content: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "method": reduction.method,
        "settings": reduction.settings.model_dump(),
        "model_type": reduction.model_type,
        "hidden_size": reduction.hidden_size,
        "layers": reduction.layers,
        "max_length": reduction.max_length,
    }
    if reduction.dial is not None:
        content["dial"] = reduction.dial.model_dump(mode="json")
    return content


def parse_reduction(content: dict[str, Any], file: Path) -> Reduction:
    """And back. `file` is where it comes from, for errors."""
    sizes = {name: content.get(name) for name in ("hidden_size", "layers", "max_length")}
    ranges = (_SIZES["hidden_size"], _SIZES["num_hidden_layers"], (_SHORTEST, _SIZES["max_position_embeddings"][1]))
    for (name, value), (low, high) in zip(sizes.items(), ranges, strict=True):
        _check_size(file, name, value, low, high)
    try:
        settings = parse_settings(str(content.get("method")), content.get("settings"))
        dial = None if content.get("dial") is None else Dial.model_validate(content["dial"])
    except AdaplerError as error:
        raise damaged(file, f"cannot be used: {error}") from error
    except ValidationError as error:
        raise damaged(file, f"has operating points that make no sense ({error.errors()[0]['msg']})") from error
    return Reduction(
        method=content["method"],
        settings=settings,
        model_type=str(content.get("model_type")),
        dial=dial,
        **sizes,  # type: ignore[arg-type]
    )


def write_dial(folder: Folder, dial: Dial) -> None:
    """Put other operating points into a folder that holds a reduction."""
    if folder.reduction is None:
        raise BadModel(f"{folder.path} holds no reduction, so it has no operating points; make one with adapler train")
    reseal(folder.path / REDUCTION_JSON, FORMAT_VERSION, {"dial": dial.model_dump(mode="json")})


def check_weights(path: Path) -> None:
    """That a folder has its weights as safetensors. A pickle in their place is named, and never read."""
    if any(os.path.lexists(path / name) for name in (WEIGHTS, SHARDS)):
        return
    pickles = [file.name for file in path.iterdir() if file.suffix.lower() in _PICKLES]
    only = (
        f" It holds only {pickles[0]}, a pickle, which adapler does not read: save it again with safetensors."
        if pickles
        else ""
    )
    raise BadModel(f"{path} has no {WEIGHTS}.{only or ' Write it with save_pretrained.'}")


def report_beside(path: Path) -> dict[str, Any] | None:
    """The report of the run whose folder this is; None where there is none."""
    file = path / REPORT_JSON
    return read_json(file) if file.is_file() else None


def _checked(path: Path) -> Folder:
    if not path.exists():
        raise BadModel(f"no model folder {str(path)!r}; give a folder written by save_pretrained, or a hub id")
    if not path.is_dir():
        raise BadModel(f"{str(path)!r} is a file; expected a model folder with {CONFIG_JSON} and {WEIGHTS}")
    if (path / EXPORT_JSON).exists():
        raise BadModel(f"{path} holds an exported graph, not a checkpoint; give the folder it was exported from")
    for file in path.iterdir():
        if file.suffix in _LOADED:
            regular(file)  # a loader that opens a named pipe would wait for ever
    if (path / ADAPTER).exists():
        raise BadModel(f"{path / ADAPTER} makes this a PEFT adapter; merge it into its model (merge_and_unload) and save that")
    reduced = any(os.path.lexists(path / name) for name in (REDUCTION_JSON, REDUCTION_TENSORS))
    reduction = _check_reduction(path) if reduced else None
    file = path / CONFIG_JSON
    config = read_json(file)
    joint = config.get("model_type") == REDUCED_TYPE
    if joint:
        _check_no_pickles(path)
        config, reduction = _parts(file, config)
    _check_config(file, config, reduction)
    parameters = 0
    for weights in _weight_files(path):
        header = read_header(path / weights)
        check_numbers(path / weights, header)
        parameters += sum(math.prod(entry["shape"]) for entry in header.values())
    _check_tokenizer(path, config)
    return Folder(path, config, reduction, parameters, joint)


def _check_reduction(path: Path) -> Reduction:
    file = path / REDUCTION_JSON
    content = read_sealed(file, FORMAT_VERSION)
    _check_no_pickles(path)
    check_sealed_files(file, content.get("files"), {REDUCTION_TENSORS, CONFIG_JSON})
    reduction = parse_reduction(content, file)
    _check_tensors(path / REDUCTION_TENSORS, reduction)
    return reduction


def _check_no_pickles(path: Path) -> None:
    for present in path.iterdir():
        if present.suffix.lower() in _PICKLES:
            raise BadModel(
                f"{present} may be a pickle, which can run code; adapler reads none. Remove it from the model folder"
            )


def _parts(file: Path, config: dict[str, Any]) -> tuple[dict[str, Any], Reduction]:
    """The family's config and the reduction out of a config that holds both."""
    family, reduction = config.get("backbone"), config.get("reduction")
    if not isinstance(family, dict) or not isinstance(reduction, dict):
        raise damaged(file, "does not hold a backbone and a reduction")
    return family, parse_reduction(reduction, file)


def _check_config(file: Path, config: dict[str, Any], reduction: Reduction | None) -> None:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in BACKBONES:
        raise unsupported(str(file), short(model_type))
    for name, (low, high) in _SIZES.items():
        _check_size(file, name, config_size(config, name, low), low, high)
    labels = config.get("id2label") or {}
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise damaged(file, "has an id2label that is not a table of names")
    if labels.keys() != {str(number) for number in range(len(labels))} or len(set(labels.values())) != len(labels):
        raise damaged(file, "has an id2label that skips a number or names two labels alike")
    thresholds = config.get(THRESHOLDS)
    if thresholds is not None and not _are_thresholds(thresholds, len(labels)):
        raise damaged(file, f"has {THRESHOLDS} that are not a probability for each of its labels")
    for name in ("attn_implementation", "_attn_implementation"):
        if "/" in str(config.get(name)):
            raise BadModel(
                f"{file} asks for the code {short(config[name])} from the hub; adapler runs none. Remove {name} from it"
            )
    if reduction is None:
        return
    made_for = {
        "model_type": reduction.model_type,
        "hidden_size": reduction.hidden_size,
        "num_hidden_layers": reduction.layers,
    }
    for name, value in made_for.items():
        said = config_size(config, name, value)
        if said != value:
            raise damaged(file, f"has {name} {short(said)}; the reduction was made for {value!r}")


def config_size(config: dict[str, Any], name: str, default: Any = None) -> Any:
    """An entry of a model's `config.json`, under whichever name the family has it."""
    return config.get(name, config.get(_ALIASES.get(name, name), default))


def _check_size(file: Path, name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise damaged(file, f"has {name} {short(value)}, expected {low} to {high}")


def _check_tokenizer(path: Path, config: dict[str, Any]) -> None:
    """Its numbers stay below the vocabulary's size: the loader sets memory aside up to the highest."""
    if not any((path / name).exists() for name in TOKENIZER_FILES):
        raise BadModel(f"{path} holds no tokenizer ({', '.join(TOKENIZER_FILES[:2])}, ...); save the tokenizer into it")
    file = path / TOKENIZER_FILES[0]
    if file.exists():
        content = read_json(file)
        try:
            vocab = content["model"]["vocab"]
            numbers = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
            numbers += [token["id"] for token in content.get("added_tokens") or []]
            unknown = content["model"].get("unk_token")
            if isinstance(vocab, dict) and unknown is not None and unknown not in vocab:
                raise damaged(file, f"has no number for {short(unknown)}, which stands for what it does not know")
        except (KeyError, TypeError) as error:
            raise damaged(file, "does not describe a tokenizer") from error
        if isinstance(vocab, dict) and len(set(map(str, vocab.values()))) != len(vocab):
            raise damaged(file, "gives two tokens the same number")
        known = config.get("vocab_size", _SIZES["vocab_size"][1])
        wrong = [number for number in numbers if type(number) is not int or not 0 <= number < known]
        if wrong:
            raise damaged(file, f"gives a token the number {short(wrong[0])}, the model knows 0 to {known - 1}")
    file = path / TOKENIZER_CONFIG
    if file.exists():
        content = read_json(file)
        if not isinstance(content.get("model_input_names", []), list):
            raise damaged(file, f"has model_input_names {short(content['model_input_names'])}, expected a list")
        longest = content.get("model_max_length")
        if longest is not None and (type(longest) not in (int, float) or longest < _SHORTEST):
            raise damaged(file, f"has model_max_length {short(longest)}, expected at least {_SHORTEST}")


def _check_tensors(file: Path, reduction: Reduction) -> None:
    import numpy as np

    header = read_header(file)
    expected = reduction.settings.tensor_shapes(reduction.hidden_size, reduction.layers)
    if header.keys() != expected.keys():
        names = sorted(header.keys() ^ expected.keys())
        raise damaged(file, f"lacks or adds tensors: {', '.join(name[:60] for name in names[:3])}")
    for name, shape in expected.items():
        if header[name]["dtype"] != "F32" or tuple(header[name]["shape"]) != shape:
            got = f"{header[name]['dtype']} {header[name]['shape']}"
            raise damaged(file, f"holds {name} as {short(got)}, expected F32 {list(shape)}")
    check_numbers(file, header)
    data = np.memmap(file, dtype=np.uint8, mode="r")
    offset = 8 + int(data[:8].view(np.uint64)[0])
    for name, (low, high) in reduction.settings.tensor_ranges().items():
        start, stop = header[name]["data_offsets"]
        values = data[offset + start : offset + stop].tobytes()
        numbers = np.frombuffer(values, dtype="<f4")
        if ((numbers < np.float32(low)) | (numbers > np.float32(high))).any():
            raise damaged(file, f"has {name} outside [{low}, {high}]")


def _weight_files(path: Path) -> list[str]:
    check_weights(path)
    if os.path.lexists(path / WEIGHTS):
        return [WEIGHTS]
    listed = read_json(path / SHARDS).get("weight_map")
    shards = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    if not shards or not all(map(plain_name, shards)):
        raise damaged(path / SHARDS, "does not list the shards of the weights")
    return shards


def _are_thresholds(said: object, labels: int) -> bool:
    if not isinstance(said, list) or len(said) != labels:
        return False
    return all(isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1 for value in said)
