"""No folder, however damaged or forged, gets further than a `BadModel`; every sound one opens, here and in transformers.

A mutation is applied twice: as it is, when the hashes give it away, and resealed, with the hashes written anew as a forger
would, so that the checks behind the hashes are tested too. Mutations that leave a sound model when resealed are not resealed.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertModel

from adapler.backbones import BACKBONES
from adapler.classifier import Classifier
from adapler.errors import BadModel
from adapler.folder import check_folder
from adapler.records import Record
from tests.tiny import tiny_bert, tiny_classifier, tiny_texts, tiny_tokenizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
REDUCTION, PREDICTORS = "reduction.json", "reduction.safetensors"
JSONS = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, REDUCTION)
TENSORS = (WEIGHTS, PREDICTORS)
FILES = (*JSONS, *TENSORS)
GIBIBYTE = 2**20
"""In the kilobytes of /proc."""
REMEDY = re.compile(r"\b(restore|save|write|remove|put|check|upgrade|supported|give|set|merge|train)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Workshop:
    """What mutations may need besides the folder they damage."""

    sound: Path
    smaller: Path
    """A reduced model of other sizes."""
    sister: Path
    """A reduced model of the same sizes."""
    outside: Path
    """A folder that does not belong to the model."""
    marker: Path
    """Exists once code from a model folder has run."""


Mutation = Callable[[Path, str, random.Random, Workshop], None]


@dataclass(frozen=True)
class Kind:
    """A way to damage a folder: which of `files` it may be done to, and what is written anew after it."""

    mutate: Mutation
    files: tuple[str, ...]
    seal: str = "hashes"
    """`hashes` of all files and the digest, the `digest` of reduction.json alone, or `never`."""
    never_sealed: tuple[str, ...] = (REDUCTION,)


KINDS: dict[str, Kind] = {}


def kind(
    name: str, files: tuple[str, ...] = FILES, *, seal: str = "hashes", never_sealed: tuple[str, ...] = (REDUCTION,)
) -> Callable[[Mutation], Mutation]:
    """Enter a mutation in the table."""

    def enter(mutate: Mutation) -> Mutation:
        KINDS[name] = Kind(mutate, files, seal, never_sealed)
        return mutate

    return enter


# --- Bytes and files ---


@kind("cut short")
def cut_short(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: draw.randrange(1, len(data.rstrip()))])


@kind("emptied")
def emptied(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).write_bytes(b"")


@kind("bit flipped", seal="never")
def bit_flipped(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    data = bytearray((folder / name).read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    (folder / name).write_bytes(data)


@kind("bytes appended")
def bytes_appended(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    with (folder / name).open("ab") as stream:
        stream.write(draw.choice((b"\0", b"x", b"{}", b"\0" * 4096)))


@kind("deleted", never_sealed=(REDUCTION, TOKENIZER_CONFIG))  # transformers does without the tokenizer's config
def deleted(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()


@kind("replaced by a folder")
def replaced_by_folder(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()


@kind("replaced by a named pipe")
def replaced_by_pipe(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


@kind("named pipe beside", ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.txt"), seal="never")
def pipe_beside(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    os.mkfifo(folder / name)


@kind("link to nothing")
def link_to_nothing(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(draw.choice(("gone", "../gone", "/gone/for/ever")))


@kind("link to itself")
def link_to_itself(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(name)


@kind("links in a circle")
def links_in_a_circle(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("other.json")
    (folder / "other.json").symlink_to(name)


@kind("link out of the folder", never_sealed=FILES)  # the linked file is as it was: nothing to seal
def link_out(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).rename(shop.outside / name)
    (folder / name).symlink_to(shop.outside / name)


@kind("swapped with another")
def swapped(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    other = draw.choice([file for file in FILES if file not in (name, REDUCTION)])
    one, two = (folder / name).read_bytes(), (folder / other).read_bytes()
    (folder / name).write_bytes(two)
    (folder / other).write_bytes(one)


# --- Pickles ---


class Bomb:
    """A pickle of this creates the marker when it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


@kind("pickle in its place")
def pickle_in_place(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).write_bytes(pickle.dumps(Bomb(shop.marker), protocol=draw.choice((0, 2, 4))))


@kind("pickle beside", ("pytorch_model.bin", "model.pt", "training_args.bin", "x.pkl", "x.CKPT", "x.joblib"), never_sealed=())
def pickle_beside(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    if draw.random() < 0.5:
        torch.save({"weight": Bomb(shop.marker)}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(Bomb(shop.marker)))


@kind("only a pickle of the weights", ("pytorch_model.bin",), seal="never")
def only_pickle(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    torch.save({"weight": Bomb(shop.marker)}, folder / name)
    for file in (WEIGHTS, REDUCTION, PREDICTORS):
        (folder / file).unlink()


# --- JSON ---


def edit(folder: Path, name: str, changes: dict[str, Any]) -> None:
    content = json.loads((folder / name).read_bytes())
    (folder / name).write_text(json.dumps(content | changes))


@kind("JSON of another type", JSONS)
def json_of_another_type(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    (folder / name).write_text(draw.choice(("[]", "null", "5", '"text"', "true", '[{"a": 1}]', "1e400")))


@kind("JSON nested deeply", (*JSONS, *TENSORS))
def json_nested(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    depth = draw.choice((2_000, 100_000))
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}")))
    nested = f'{{"x": {opening * depth}1{closing * depth}}}'.encode()
    (folder / name).write_bytes(nested if name in JSONS else struct.pack("<Q", len(nested)) + nested)


@kind("JSON not in UTF-8", (*JSONS, *TENSORS))
def json_not_utf8(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    data = bytearray((folder / name).read_bytes())
    place = data.index(b'"') + 1
    data[place] = draw.choice((0xFF, 0xC0, 0x80))
    (folder / name).write_bytes(data)


@kind("JSON with a constant that is none", JSONS, never_sealed=())
def json_constant(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    key = {CONFIG: "layer_norm_eps", TOKENIZER_CONFIG: "model_max_length"}.get(name, "x")
    edit(folder, name, {key: draw.choice((float("nan"), float("inf"), -float("inf")))})


# --- reduction.json ---


@kind("newer or impossible format", (REDUCTION,), seal="digest", never_sealed=())
def newer_format(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    edit(folder, name, {"format_version": draw.choice((2, 99, 10**30, 0, -1, "1", 1.0, None, True, []))})


@kind("unknown method", (REDUCTION,), seal="digest", never_sealed=())
def unknown_method(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    edit(folder, name, {"method": draw.choice(("adaplerr", "", "os:system", "__class__", None, 5, [], {}, "\ud800\n"))})


@kind("unknown setting", (REDUCTION,), seal="digest", never_sealed=())
def unknown_setting(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    edit(folder, name, {"settings": draw.choice(({"evil": 1}, {"\ud800": 1}, {"a\nb": 1}, [], None, "eta", 5))})


@kind("setting out of range", (REDUCTION,), seal="digest", never_sealed=())
def setting_out_of_range(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    key, values = draw.choice(
        (
            ("eta", (0, 1.01, -1, 10**400, "x", None, [])),
            ("width", (0, -1, 10**9, 10**400, 1.5, "\ud800", None)),
            ("theta", (0, -1, 10**9, {})),
            ("beta", (0, -1, 0.2, "x")),
        )
    )
    settings = json.loads((folder / name).read_bytes())["settings"]
    edit(folder, name, {"settings": settings | {key: draw.choice(values)}})


@kind("size of another model", (REDUCTION,), seal="digest", never_sealed=())
def size_of_another(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    wrong: tuple[Any, ...] = (0, -1, 2, 2**40, 10**400, "32", 32.0, None, True, [])
    edit(folder, name, {draw.choice(("hidden_size", "layers", "max_length")): draw.choice(wrong)})


@kind("path in the file list", (REDUCTION,), seal="digest", never_sealed=())
def path_in_list(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    paths = (
        "../x",
        "/etc/passwd",
        "a\0b",
        "..",
        ".",
        "",
        "sub/x",
        "..\\x",
        "a" * 300,
        "a" * 100_000,
        "\ud800",
        "a\nb",
        "config.json/",
    )
    files = json.loads((folder / name).read_bytes())["files"]
    edit(folder, name, {"files": files | {draw.choice(paths): {"bytes": 0, "sha256": sha256(b"").hexdigest()}}})


@kind("file list of another shape", (REDUCTION,), seal="digest", never_sealed=())
def list_of_another_shape(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    files = json.loads((folder / name).read_bytes())["files"]
    file = draw.choice(sorted(files))
    entry = files[file]
    shapes: tuple[Any, ...] = (
        None,
        [],
        {},
        "all",
        {key: value for key, value in files.items() if key != CONFIG},
        files | {file: []},
        files | {file: None},
        files | {file: entry | {"bytes": -1}},
        files | {file: entry | {"bytes": str(entry["bytes"])}},
        files | {file: entry | {"sha256": None}},
        files | {file: entry | {"sha256": "0" * 64}},
        files | {"more.json": entry},
    )
    edit(folder, name, {"files": draw.choice(shapes)})


@kind("another model's reduction", (REDUCTION,), seal="never")
def sisters_reduction(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    for file in draw.choice(((REDUCTION,), (PREDICTORS,), (REDUCTION, PREDICTORS))):
        shutil.copy(shop.sister / file, folder / file)


@kind("reduction of another size", (REDUCTION,), never_sealed=())
def smaller_reduction(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    for file in (REDUCTION, PREDICTORS):
        shutil.copy(shop.smaller / file, folder / file)


# --- config.json ---


@kind("huge or impossible size", (CONFIG,))
def huge_size(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    sized = (
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
    )
    key = draw.choice((*sized, "num_labels", "num_attention_heads"))
    edit(folder, name, {key: draw.choice((2**13, 2**20, 2**31, 2**63, 10**400, -1, "32", 1.5, None, True, [32]))})


@kind("unknown model type", (CONFIG, REDUCTION))
def unknown_type(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    edit(folder, name, {"model_type": draw.choice(("gpt2", "", "BERT", "evil\n\ud800", None, [], {}, 5))})


@kind("labels that do not fit", (CONFIG,))
def labels_that_do_not_fit(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    labels: tuple[Any, ...] = (
        {"0": "A", "1": "B", "7": "C"},
        {"0": "A", "1": "B", "x": "C"},
        {"0": "A", "1": "B"},
        {"0": "A", "1": "A", "2": "B"},
        {"0": 1, "1": 2, "2": 3},
        ["A", "B", "C"],
        "ABC",
    )
    edit(folder, name, {"id2label": draw.choice(labels)})


@kind("code from elsewhere", (CONFIG, "adapter_config.json"))
def code_from_elsewhere(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    if name == CONFIG:
        key = draw.choice(("_attn_implementation", "attn_implementation"))
        edit(folder, name, {key: draw.choice(("org/kernel", {"": "org/kernel"}))})
    else:
        (folder / name).write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(shop.outside)}))


# --- Tokenizer ---


@kind("token numbers that do not fit", (TOKENIZER,))
def token_numbers(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    content = json.loads((folder / name).read_bytes())
    wrong = draw.choice((10**4, 2**31, 2**32 - 1, 2**40, -1, "7", None, 1.5))
    place = draw.randrange(3)
    if place == 0:
        content["model"]["vocab"]["film"] = wrong
    elif place == 1:
        content["added_tokens"][0]["id"] = wrong
    else:
        content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [wrong]
    (folder / name).write_text(json.dumps(content))


@kind("part of the tokenizer missing", (TOKENIZER,))
def tokenizer_part_missing(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    content = json.loads((folder / name).read_bytes())
    part: str = draw.choice(("model", "post_processor", "vocab"))
    if part == "vocab":
        del content["model"]["vocab"]
    else:
        content[part] = None
    (folder / name).write_text(json.dumps(content))


@kind("tokenizer setting of another type", (TOKENIZER_CONFIG,))
def tokenizer_setting(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    settings: tuple[tuple[str, Any], ...] = (
        ("model_max_length", "abc"),
        ("model_max_length", -1),
        ("model_max_length", 2),
        ("model_max_length", {}),
        ("truncation_side", "up"),
        ("padding_side", 5),
        ("pad_token", []),
        ("model_input_names", 5),
        ("added_tokens_decoder", {"abc": {}}),
        ("split_special_tokens", "yes"),
        ("init_inputs", 5),
    )
    edit(folder, name, dict([draw.choice(settings)]))


# --- Tensors ---


def edit_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])


def tensor_names(header: dict[str, Any]) -> list[str]:
    return sorted(name for name in header if name != "__metadata__")


@kind("type changed in the header", TENSORS)
def type_changed(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    def change(header: dict[str, Any]) -> None:
        header[draw.choice(tensor_names(header))]["dtype"] = draw.choice(("I32", "F16", "F64", "BOOL", "F99", "", 7, None, []))

    edit_header(folder / name, change)


@kind("shape changed in the header", TENSORS)
def shape_changed(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    def change(header: dict[str, Any]) -> None:
        entry = header[draw.choice(tensor_names(header))]
        shape = entry["shape"]
        shapes: tuple[Any, ...] = (
            [*shape, 1],
            [size * 2 for size in shape],
            [2**62, 2**62],
            [10**400] * 10_000,
            [-1, *shape],
            [0],
            "32",
            None,
            {"a": 1},
            [[32]],
        )
        entry["shape"] = draw.choice(shapes)

    edit_header(folder / name, change)


@kind("places changed in the header", TENSORS)
def places_changed(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    def change(header: dict[str, Any]) -> None:
        one, two = draw.sample(tensor_names(header), 2)
        start, stop = header[one]["data_offsets"]
        places: tuple[Any, ...] = (
            header[two]["data_offsets"],  # overlapping
            [start + 4, stop + 4],
            [start - 4, stop - 4],
            [stop, start],
            [start, 2**63],
            [-4, stop],
            [start],
            [str(start), str(stop)],
            None,
        )
        header[one] = header[two] if draw.random() < 0.2 else header[one] | {"data_offsets": draw.choice(places)}

    edit_header(folder / name, change)


@kind("length of the header changed", TENSORS)
def header_length(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    data = (folder / name).read_bytes()
    length = draw.choice((0, 1, 2, len(data) - 8, len(data), 2**31, 2**40, 2**63, 2**64 - 1))
    (folder / name).write_bytes(struct.pack("<Q", length) + data[8:])


@kind("notes in the header of another type", TENSORS)
def header_notes(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    edit_header(
        folder / name, lambda header: header.update({"__metadata__": draw.choice(([], 5, {"a": 5}, {"a": {}}, "x", None))})
    )


@kind("not a number among the weights", TENSORS)
def not_a_number(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    tensors = load_file(folder / name)
    tensor = tensors[draw.choice(sorted(tensors))].view(-1)
    tensor[draw.randrange(tensor.numel())] = draw.choice((float("nan"), float("inf"), -float("inf")))
    save_file(tensors, folder / name, metadata={"format": "pt"})


@kind("threshold out of range", (PREDICTORS,))
def threshold_out_of_range(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    tensors = load_file(folder / name)
    wrong = (0.0, -0.5, 4.001, 1e9, float("nan"), -float("inf"))
    tensors["eta"][draw.randrange(len(tensors["eta"]))] = draw.choice(wrong)
    save_file(tensors, folder / name)


@kind("tensor renamed", TENSORS)
def tensor_renamed(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    tensors = load_file(folder / name)
    new = draw.choice(("x", "", "a\nb\x1b[31m", "bert.encoder.layer.99.query", "x" * 10_000))
    tensors[new] = tensors.pop(draw.choice(sorted(tensors)))
    save_file(tensors, folder / name, metadata={"format": "pt"})


@kind("tensor removed", TENSORS)
def tensor_removed(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    tensors = load_file(folder / name)
    del tensors[draw.choice(sorted(tensors))]
    save_file(tensors, folder / name, metadata={"format": "pt"})


@kind("tensor added", TENSORS, never_sealed=(WEIGHTS,))  # transformers' own files often hold tensors nobody needs
def tensor_added(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    tensors = load_file(folder / name) | {"added": torch.zeros(draw.choice((0, 1, 1000)))}
    save_file(tensors, folder / name, metadata={"format": "pt"})


@kind("tensors of another precision", (PREDICTORS,))
def another_precision(folder: Path, name: str, draw: random.Random, shop: Workshop) -> None:
    dtype = draw.choice((torch.float16, torch.bfloat16, torch.float64, torch.int32))
    save_file({key: tensor.to(dtype) for key, tensor in load_file(folder / name).items()}, folder / name)


# --- Applying them ---


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    base = tmp_path_factory.mktemp("models")
    tiny_classifier().save_pretrained(base / "sound")
    tiny_classifier(seed=1).save_pretrained(base / "sister")
    tiny_classifier(layers=2, hidden=16).save_pretrained(base / "smaller")
    (base / "outside").mkdir()
    Classifier.from_pretrained(base / "sound")  # what libraries set aside once is not the mutations' doing
    return Workshop(base / "sound", base / "smaller", base / "sister", base / "outside", base / "code has run")


def mutations(total: int) -> Iterator[tuple[str, str, int]]:
    """(kind, file, seed): every kind in turn, each time on the next of its files."""
    for number in range(total):
        turn, place = divmod(number, len(KINDS))
        name = list(KINDS)[place]
        files = KINDS[name].files
        yield name, files[(turn + place) % len(files)], number


def damaged(shop: Workshop, target: Path, name: str, file: str, seed: int) -> Path:
    """A fresh copy of the sound folder with one mutation, unsealed."""
    for folder in (target, shop.outside):
        shutil.rmtree(folder, ignore_errors=True)
    shop.outside.mkdir()
    shutil.copytree(shop.sound, target)
    KINDS[name].mutate(target, file, random.Random(seed), shop)
    return target


def reseal(folder: Path, seal: str) -> None:
    """Write hashes and digest anew, as the format says and as a forger would."""
    content = json.loads((folder / REDUCTION).read_bytes())
    if seal == "hashes":
        listed = content["files"]
        for name in list(listed):
            file = folder / name
            if not os.path.lexists(file):
                del listed[name]
            elif file.is_file():
                data = file.read_bytes()
                listed[name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    del content["digest"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (folder / REDUCTION).write_text(json.dumps(content | {"digest": sha256(text.encode()).hexdigest()}))


def memory(entry: str) -> int:
    """VmPeak or VmSize of this process, in kilobytes; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = re.search(rf"^{entry}:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def fault(folder: Path, shop: Workshop) -> str | None:
    """What is wrong with how a damaged folder is refused; None if nothing is."""
    allowed = max(memory("VmPeak"), memory("VmSize") + GIBIBYTE)
    try:
        Classifier.from_pretrained(folder)
    except BadModel as error:
        message = str(error)
    except BaseException as error:  # a panic in Rust is not an Exception
        return f"raises {type(error).__name__}: {str(error)[:200]!a}"
    else:
        return "opens"
    if shop.marker.exists():
        return "code from the folder has run"
    if memory("VmPeak") > allowed:
        return "took more than a gibibyte"
    if str(folder) not in message or not REMEDY.search(message):
        return f"names neither folder nor remedy: {message[:200]!a}"
    if not message.isprintable() or len(message) > 1000:
        return f"has a message not fit to be shown: {message[:200]!a}"
    return None


def test_every_damaged_folder_is_refused(
    shop: Workshop, tmp_path: Path, count: Callable[[int, int], int], prove: Callable[[str, list[Record]], None]
) -> None:
    faults = []
    counts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    openings = 0
    for name, file, seed in mutations(count(60, 200)):
        counts[name] += 1
        files[file] += 1
        way = KINDS[name]
        seals = ["never"] if way.seal == "never" or file in way.never_sealed else ["never", way.seal]
        for seal in seals:
            folder = damaged(shop, tmp_path / "model", name, file, seed)
            if seal != "never":
                reseal(folder, seal)
            openings += 1
            if (wrong := fault(folder, shop)) is not None:
                faults.append(f"{name}, {file}, seed {seed}, sealed {seal}: {wrong}")
    assert not faults, "\n".join(faults)
    assert counts.keys() == KINDS.keys() and len(counts) >= 15
    assert set(FILES) <= files.keys()
    refused = sum(counts.values())
    config = {"kinds": dict(counts), "files": dict(files), "openings": openings}
    prove(
        "malformed",
        [Record(kind="prove", variant="malformed model folders", value=refused, unit="refused", n=refused, config=config)],
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something could be changed in what a JSON file holds; of a long vocabulary a few entries."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries)[:30]:
        yield from places(inner, (*path, key))


def test_any_other_value_in_a_json_file_is_refused_or_does_no_harm(
    shop: Workshop, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    """Sealed; a folder that opens all the same must classify."""
    names: tuple[Any, ...] = ("", "x", "a\n\ud800", "../x")
    numbers: tuple[Any, ...] = (0, 1, -1, 3, 2**31, 10**30, 1.5, 1e300)
    others: tuple[Any, ...] = (None, True, [], ["x"], {}, {"0": "x"}, [[[]]])
    draw = random.Random(0)
    folder = tmp_path / "model"
    opened = 0
    for number in range(count(60, 600)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(shop.sound, folder)
        name = JSONS[number % len(JSONS)]
        content = json.loads((folder / name).read_bytes())
        place = draw.choice(list(places(content)))
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = draw.choice(names + numbers + others)
        (folder / name).write_text(json.dumps(content))
        reseal(folder, "digest" if name == REDUCTION else "hashes")
        wrong = fault(folder, shop)
        if wrong == "opens":
            opened += 1
            Classifier.from_pretrained(folder)(["a good film \U0002a6a5", ("a film", "a story"), "", "x " * 1000])
        else:
            assert wrong is None, f"{name} {place} = {inner[place[-1]]!r}: {wrong}"
    assert opened > 0


def test_the_seal_written_here_is_the_one_adapler_writes(shop: Workshop, tmp_path: Path) -> None:
    """Else every resealed mutation would be refused for its seal, and nothing behind it tested."""
    shutil.copytree(shop.sound, tmp_path / "model")
    before = json.loads((tmp_path / "model" / REDUCTION).read_bytes())
    reseal(tmp_path / "model", "hashes")
    assert json.loads((tmp_path / "model" / REDUCTION).read_bytes()) == before
    Classifier.from_pretrained(tmp_path / "model")


def test_a_folder_that_opens_would_be_noticed(shop: Workshop, tmp_path: Path) -> None:
    folder = damaged(shop, tmp_path / "model", "tensor added", WEIGHTS, 0)
    assert fault(folder, shop) is None
    reseal(folder, "hashes")
    assert fault(folder, shop) == "opens"


def test_code_in_a_pickle_would_be_noticed(shop: Workshop, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Bomb(marker))).close()
    assert marker.exists()


@pytest.mark.parametrize(
    "name", ["", "a\0b", "a" * 5000, "no/such/folder", "./gone", "/gone", "~/gone", "\ud800", "a b", "a\n"]
)
def test_a_name_that_is_no_model_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadModel) as caught:
        Classifier.from_pretrained(name)
    assert REMEDY.search(str(caught.value))


def test_a_file_or_a_link_to_nothing_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("file", "link", "circle"):
        with pytest.raises(BadModel, match="folder"):
            Classifier.from_pretrained(tmp_path / name)


# --- From the shell ---

SHELL_CASES = {
    "weights cut short": ("cut short", WEIGHTS),
    "newer format": ("newer or impossible format", REDUCTION),
    "not a number": ("not a number among the weights", WEIGHTS),
    "unknown type": ("unknown model type", CONFIG),
    "token numbers": ("token numbers that do not fit", TOKENIZER),
}


@pytest.mark.parametrize("case", SHELL_CASES)
def test_the_shell_says_it_in_one_line_without_torch(case: str, shop: Workshop, tmp_path: Path) -> None:
    name, file = SHELL_CASES[case]
    folder = damaged(shop, tmp_path / "model", name, file, 0)
    reseal(folder, KINDS[name].seal)
    for verb in (["predict", str(folder), "-"], ["info", str(folder)]):
        command = [sys.executable, "-X", "importtime", "-m", "adapler", *verb]
        done = subprocess.run(command, input="a film\n", capture_output=True, text=True, check=False)
        lines = done.stderr.splitlines()
        imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
        said = [line for line in lines if not line.startswith("import time:")]
        assert done.returncode == 3
        assert done.stdout == ""
        assert len(said) == 1 and str(folder) in said[0], said
        assert "adapler.folder" in imported and not imported & {"torch", "transformers"}


# --- Plain transformers folders ---


def full_logits(model: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])


def save_plain(folder: Path, model: Any, shard: str = "1GB") -> None:
    model.save_pretrained(folder, max_shard_size=shard)
    tiny_tokenizer().save_pretrained(folder)


@pytest.mark.parametrize("shard", ["1GB", "20KB"], ids=["one file", "shards"])
def test_a_plain_folder_opens_at_full_length(tmp_path: Path, shard: str) -> None:
    model = tiny_bert()
    save_plain(tmp_path, model, shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    opened = Classifier.from_pretrained(tmp_path)
    assert opened.reducer is None
    texts = tiny_texts(5)
    expected = full_logits(model, opened.tokenizer, texts).softmax(-1)
    answers = opened(texts)
    for answer, row in zip(answers, expected.tolist(), strict=True):
        assert answer.kept == [list(range(len(answer.tokens)))] * 4
        assert list(answer.scores.values()) == pytest.approx(row, abs=1e-6)  # float32, other summation order


def test_transformers_opens_a_reduced_folder_at_full_length(shop: Workshop) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(shop.sound).eval()
    given, texts = tiny_bert(), tiny_texts(5)
    assert all(torch.equal(weight, given.state_dict()[name]) for name, weight in model.state_dict().items())
    found, expected = (full_logits(each, tiny_tokenizer(), texts) for each in (model, given))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # where weights lie in memory may turn a last bit


def refused(folder: Path) -> str:
    with pytest.raises(BadModel) as caught:
        Classifier.from_pretrained(folder)
    return str(caught.value)


def test_a_folder_with_only_a_pickle_is_refused(tmp_path: Path) -> None:
    save_plain(tmp_path, tiny_bert())
    torch.save(tiny_bert().state_dict(), tmp_path / "pytorch_model.bin")
    Classifier.from_pretrained(tmp_path)  # beside safetensors it is never opened
    (tmp_path / WEIGHTS).unlink()
    assert "pytorch_model.bin, a pickle" in refused(tmp_path)


def test_an_encoder_without_a_classifier_is_refused(tmp_path: Path) -> None:
    save_plain(tmp_path, BertModel(tiny_bert().config))
    message = refused(tmp_path)
    assert "'classifier." in message and "Train it" in message


def test_an_unsupported_family_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    save_plain(tmp_path, tiny_bert())
    edit(tmp_path, CONFIG, {"model_type": "gpt2"})
    assert f"'gpt2' is not supported; supported: {', '.join(BACKBONES)}" in refused(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    tiny_bert().save_pretrained(tmp_path)
    assert "holds no tokenizer" in refused(tmp_path)


@pytest.mark.parametrize(
    "listed", [[], None, {}, {"a": "../x"}, {"a": "a" * 5000}, {"a": ""}, {"a": None}, {"a": "gone.safetensors"}]
)
def test_a_bad_list_of_shards_is_refused(tmp_path: Path, listed: Any) -> None:
    save_plain(tmp_path, tiny_bert(), "20KB")
    edit(tmp_path, "model.safetensors.index.json", {"weight_map": listed})
    refused(tmp_path)


def test_labels_and_sizes_are_read_from_the_config(tmp_path: Path) -> None:
    model = tiny_bert(labels=2)
    model.config.id2label = {0: "no", 1: "yes"}
    save_plain(tmp_path, model)
    assert Classifier.from_pretrained(tmp_path).labels == ["no", "yes"]
    folder = check_folder(tmp_path)
    assert folder.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_pipes_and_links_out_are_refused_in_plain_folders_too(tmp_path: Path) -> None:
    save_plain(tmp_path / "model", tiny_bert())
    os.mkfifo(tmp_path / "model" / "special_tokens_map.json")
    assert "is not a plain file" in refused(tmp_path / "model")
    (tmp_path / "model" / "special_tokens_map.json").unlink()
    (tmp_path / "model" / TOKENIZER).rename(tmp_path / TOKENIZER)
    (tmp_path / "model" / TOKENIZER).symlink_to(tmp_path / TOKENIZER)
    assert "link out of the model folder" in refused(tmp_path / "model")


# --- The hub ---


def hub_snapshot(cache: Path, name: str, source: Path, *, shared: bool) -> None:
    """Lay a folder out as huggingface_hub's cache does; with `shared`, its blobs are links into the cache's own store."""
    repository = cache / f"models--org--{name}"
    commit = "0123456789" * 4
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    for file in source.iterdir():
        digest = sha256(file.read_bytes()).hexdigest()
        blob = repository / "blobs" / digest
        if shared:
            store = cache / "blobs" / digest[:2] / digest
            store.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, store)
            blob.symlink_to(Path("..") / ".." / "blobs" / digest[:2] / digest)
        else:
            shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / digest)


def test_a_model_in_the_hubs_cache_opens_without_network(shop: Workshop, tmp_path: Path) -> None:
    hub_snapshot(tmp_path / "hub", "name", shop.sound, shared=False)
    hub_snapshot(tmp_path / "hub", "shared", shop.sound, shared=True)
    script = """
from adapler import Classifier
for name in ("org/name", "org/shared"):
    print(Classifier.from_pretrained(name)("a good film").kept)
try:
    Classifier.from_pretrained("org/absent")
except Exception as error:
    print(type(error).__name__)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    kept = Classifier.from_pretrained(shop.sound)("a good film").kept
    assert done.stdout.splitlines() == [str(kept), str(kept), "BadModel"], done.stderr


def test_a_snapshot_opens_by_its_own_path(shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_snapshot(tmp_path, "name", shop.sound, shared=True)
    snapshot = next((tmp_path / "models--org--name" / "snapshots").iterdir())
    Classifier.from_pretrained(snapshot)
    monkeypatch.chdir(snapshot)
    Classifier.from_pretrained(".")


def test_an_unknown_hub_id_without_network_fails_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadModel, match=r"the hub could not give .* give its folder"):
        Classifier.from_pretrained("no-such-organisation-of-adapler/no-such-model")
