"""Files of a model folder, read without trusting them: plain files only, JSON and safetensors only, every range checked.

Whatever is wrong is a `BadModel` that names the file and the remedy. Knows no format of ours, and no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapler.errors import AdaplerError, BadModel

_JSON_LIMIT = 64 * 2**20
_HEADER_LIMIT = 100 * 2**20
_NAME_LIMIT = 255
_DIMENSIONS = 16
_CHUNK = 2**24
_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_WIDE_INTEGERS = {"I64", "I32", "I16"}  # as wide as a float type, so only the type tells a changed header


def regular(file: Path) -> os.stat_result:
    """Size and kind of a file that must be a plain file inside its own folder (or a hub cache's blob)."""
    if file.is_symlink():
        target = Path(os.path.realpath(file))  # unlike resolve(), says nothing about links in a circle: they do not exist
        home = file.parent.resolve()
        homes = [home]
        if home.parent.name == "snapshots":  # the hub's cache links them to its model's blobs, or those to its own blobs/xy
            model = home.parent.parent
            homes += [model / "blobs", model.parent / "blobs" / target.parent.name]
        if target.parent not in homes:
            raise BadModel(f"{file} is a link out of the model folder; put the file itself there")
    if not file.exists():
        raise BadModel(f"{file} is missing; restore the folder or save the model again")
    if not file.is_file():
        raise BadModel(f"{file} is not a plain file; restore the folder or save the model again")
    return file.stat()


def read_json(file: Path) -> dict[str, Any]:
    if regular(file).st_size > _JSON_LIMIT:
        raise damaged(file, f"is larger than {_JSON_LIMIT} bytes")
    return _parse_json(file, file.read_bytes())


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Tensors of a safetensors file by name (dtype, shape, data_offsets), with every range checked."""
    size = regular(file).st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise damaged(file, "is not a safetensors file or was cut short")
        data = stream.read(length)
    header = _parse_json(file, data)
    metadata = header.pop("__metadata__", {})
    if data[:1] != b"{" or not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(file, "has a header that safetensors does not allow")
    end = 0
    spans = []
    for name, entry in header.items():
        try:
            dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            sound = dtype in _DTYPES and len(shape) <= _DIMENSIONS
            sound = sound and all(type(n) is int and 0 <= n < 2**63 for n in [*shape, start, stop])
            sound = sound and stop - start == math.prod(shape) * _DTYPES[dtype]
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise damaged(file, f"describes tensor {name[:80]!r} wrongly")
        spans.append((start, stop))
    for start, stop in sorted(spans):
        if start != end:
            raise damaged(file, "has overlapping or missing tensor data")
        end = stop
    if end != size - 8 - length:
        raise damaged(file, f"holds {size - 8 - length} bytes of tensors where its header says {end}")
    return header


def check_numbers(file: Path, header: dict[str, dict[str, Any]]) -> None:
    """No NaN, no infinity (exponents of all ones, whatever the float type), no weights that call themselves integers."""
    import numpy as np

    exponent = {"F64": ("<u8", 0x7FF << 52), "F32": ("<u4", 0xFF << 23), "F16": ("<u2", 0x1F << 10), "BF16": ("<u2", 0xFF << 7)}
    with file.open("rb") as stream:
        offset = 8 + struct.unpack("<Q", stream.read(8))[0]
        for name, entry in header.items():
            if entry["dtype"] in _WIDE_INTEGERS and name.endswith((".weight", ".bias")):
                raise damaged(file, f"holds {name[:80]} as {entry['dtype']}, expected a float type")
            if entry["dtype"] not in exponent:
                continue
            start, stop = entry["data_offsets"]
            kind, ones = exponent[entry["dtype"]]
            stream.seek(offset + start)
            for begin in range(start, stop, _CHUNK):
                bits = np.frombuffer(stream.read(min(_CHUNK, stop - begin)), dtype=kind)
                mask = bits.dtype.type(ones)
                if ((bits & mask) == mask).any():
                    raise damaged(file, f"holds NaN or infinity in {name[:80]}")


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(manifest: Path, content: dict[str, Any]) -> None:
    """Write a manifest, last of a folder: `content`, every other file with its size and hash, and a digest of all that."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(manifest.parent.iterdir())
        if file != manifest and file.is_file()
    }
    sealed = {**content, "files": files}
    sealed["digest"] = _digest(sealed)
    manifest.write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")


def read_sealed(manifest: Path, format_version: int) -> dict[str, Any]:
    """What a manifest says, if this adapler can read its version and nobody changed it since."""
    content = read_json(manifest)
    version = content.get("format_version")
    if type(version) is not int or version < 1:
        raise damaged(manifest, f"has format_version {short(version)}, expected 1 to {format_version}")
    if version > format_version:
        raise BadModel(
            f"{manifest} has format_version {version}; this adapler reads up to {format_version}. "
            f"Upgrade: pip install -U adapler"
        )
    if content.pop("digest", None) != _digest(content):
        raise damaged(manifest, "was changed after it was written")
    return content


def reseal(manifest: Path, format_version: int, changes: dict[str, Any]) -> None:
    """Change what a manifest says of the same files; in one rename, so that it is always either the old or the new."""
    sealed = {**read_sealed(manifest, format_version), **changes}
    sealed["digest"] = _digest(sealed)
    staging = manifest.with_name(f".{manifest.name}.tmp")
    with staging.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(sealed, indent=1) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    staging.replace(manifest)


def check_sealed_files(manifest: Path, files: Any, needed: set[str]) -> None:
    """Every listed file is there, in the folder itself, with the bytes it was written with."""
    if not isinstance(files, dict) or not needed <= files.keys():
        raise damaged(manifest, "does not list the model's files")
    for name, entry in files.items():
        if not plain_name(name):
            raise damaged(manifest, f"lists {short(name)}, which is not a plain file name")
        file = manifest.parent / name
        size = regular(file).st_size
        if not isinstance(entry, dict) or size != entry.get("bytes"):
            raise damaged(file, f"has {size} bytes, expected {short(entry.get('bytes') if isinstance(entry, dict) else None)}")
        if sha256(file) != entry.get("sha256"):
            raise damaged(file, "differs from what was written")


@contextmanager
def typed(path: Path, what: str) -> Iterator[None]:
    """Other libraries raise what they like (and Rust panics are not even `Exception`s); users get one typed error.

    A `BadModel` of our own that judged the model without knowing where it came from is told that.
    """
    try:
        yield
    except BadModel as error:
        if str(path) in str(error):
            raise
        raise BadModel(f"{path}: {error}") from error
    except (AdaplerError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise BadModel(
            f"{path}: {what} cannot be loaded ({reason(error)[:300]}); restore the folder or save the model again"
        ) from error


def plain_name(name: str) -> bool:
    whole = name == Path(name).name and name not in (".", "..") and "\\" not in name
    return whole and 0 < len(name) <= _NAME_LIMIT and name.isprintable()


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def printable(text: str) -> str:
    """Line breaks, control and half characters as their escapes: what a message quotes must not rule a terminal or a log."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def reason(error: BaseException) -> str:
    """The first line of what another library said, fit to be quoted."""
    return printable((str(error).strip() or type(error).__name__).splitlines()[0])


def damaged(file: Path, what: str) -> BadModel:
    return BadModel(f"{file} {printable(what)}; restore the file or save the model again")


def _parse_json(file: Path, data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"is not valid JSON ({short(str(error))})") from error
    if not isinstance(parsed, dict):
        raise damaged(file, "is not a JSON object")
    return parsed


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
