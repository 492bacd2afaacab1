"""Exported folders: what was written opens, without torch; what was changed since does not, and is never parsed."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.errors import BadConfig, BadModel, MissingExtra, UnknownName
from adapler.export import EXPORTS
from adapler.export import write as write_module
from adapler.export.write import export
from adapler.folder import check_folder
from adapler.runtimes import RUNTIMES
from adapler.runtimes.exported import check_exported, is_exported
from adapler.runtimes.onnx_runtime import OnnxFloat
from tests.contract.exports import checkpoint_of, reusing_pieces
from tests.tiny import tiny_classifier, tiny_texts

FILES = ("export.json", "model.onnx", "tokenizer.json")
ODD: list[Text] = ["", "film", ("a film", "a bad story"), "x" * 5000, "[CLS] a \ud800 film", ("good " * 600, "bad " * 700)]


@pytest.fixture(scope="module")
def made() -> Classifier:
    return tiny_classifier(layers=2, spread=2.0, max_length=48)


@pytest.fixture(scope="module")
def folders(made: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        reusing_pieces(patch)
        found = {name: tmp_path_factory.mktemp("exported") / name for name in EXPORTS}
        for name, folder in found.items():
            export(checkpoint_of(made), folder, to=name)
        yield found


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["onnx"], tmp_path / "model"))


def test_a_classifier_answers_after_export_as_before(made: Classifier, folders: dict[str, Path]) -> None:
    texts: list[Text] = [*tiny_texts(60), *ODD]
    before, after = made(texts), Classifier.from_pretrained(folders["onnx"])(texts)
    for one, other in zip(before, after, strict=True):
        assert (one.label, one.tokens, one.kept, one.truncated) == (other.label, other.tokens, other.kept, other.truncated)
        assert (one.flops, one.flops_full) == (other.flops, other.flops_full)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)  # float32, other kernels


def test_early_leaving_is_exported_with_the_rest(tmp_path: Path) -> None:
    early = tiny_classifier(layers=3, spread=2.0, max_length=48, site="after_attention")
    export(checkpoint_of(early), tmp_path / "model", to="onnx")
    opened = Classifier.from_pretrained(tmp_path / "model")
    assert opened.cost == early.cost and early.cost.early
    texts: list[Text] = [*tiny_texts(60), *ODD]
    for text, one, other in zip(texts, early.explain(texts), opened.explain(texts), strict=True):
        before, after = one.prediction, other.prediction
        assert (before.label, before.kept, before.flops) == (after.label, after.kept, after.flops), text
        assert before.scores == pytest.approx(after.scores, abs=1e-5)  # float32, other kernels
        for mine, theirs in zip(one.contributions, other.contributions, strict=True):
            assert [s for s in mine if s is not None] == pytest.approx([s for s in theirs if s is not None], rel=1e-4, abs=1e-6)


def test_a_classifier_explains_after_export_as_before(made: Classifier, folders: dict[str, Path]) -> None:
    texts: list[Text] = [*tiny_texts(30, seed=7), *ODD]
    opened = Classifier.from_pretrained(folders["onnx"])
    for text, one, other in zip(texts, made.explain(texts), opened.explain(texts), strict=True):
        assert (one.text, one.words, one.left, one.notes) == (other.text, other.words, other.left, other.notes), text
        assert one.prediction.depths == other.prediction.depths
        for mine, theirs in zip(one.contributions, other.contributions, strict=True):
            assert [score is None for score in mine] == [score is None for score in theirs]
            # float32, other kernels
            assert [s for s in mine if s is not None] == pytest.approx([s for s in theirs if s is not None], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_folder_says_what_it_is(made: Classifier, folders: dict[str, Path], name: str) -> None:
    assert sorted(file.name for file in folders[name].iterdir()) == sorted(FILES)
    opened = Classifier.from_pretrained(str(folders[name]))
    assert opened.runtime.name == name
    assert (opened.labels, opened.max_length, opened.cost) == (made.labels, 48, made.cost)
    assert opened("a good film").label in made.labels
    assert check_exported(folders[name]).method == "adapler"


def test_what_needs_torch_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    opened = Classifier.from_pretrained(folders["onnx"])
    with pytest.raises(BadModel, match="holds no torch model; open the folder it was exported from"):
        opened.save_pretrained(tmp_path / "again")
    with pytest.raises(BadModel, match=rf"cannot be pickled, it is its folder: take {folders['onnx']} along and open it"):
        pickle.dumps(opened)
    with pytest.raises(BadConfig, match="runs on cpu"):
        Classifier.from_pretrained(folders["onnx"], device="meta")
    with pytest.raises(BadModel, match="holds an exported graph, not a checkpoint"):
        check_folder(folders["onnx"])
    with pytest.raises(BadConfig, match="max_length must lie in 3 to 512"):
        Classifier.from_pretrained(folders["onnx"], max_length=513)


def test_a_runtime_opens_only_its_own_kind(folders: dict[str, Path]) -> None:
    with pytest.raises(BadModel, match="was exported for 'onnx-int8', not 'onnx'"):
        RUNTIMES["onnx"].open(folders["onnx-int8"])
    with pytest.raises(BadConfig, match="threads must be at least 1"):
        OnnxFloat.open(folders["onnx"], threads=0)


def test_every_flipped_byte_is_refused_before_the_graph_is_parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.InferenceSession", _never)
    for name in FILES:
        sound = (folder / name).read_bytes()
        for place in range(0, len(sound), max(1, len(sound) // 40)):
            for bit in (0, 3, 6):
                flipped = bytearray(sound)
                flipped[place] ^= 1 << bit
                (folder / name).write_bytes(flipped)
                with pytest.raises(BadModel):
                    Classifier.from_pretrained(folder)
        (folder / name).write_bytes(sound)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "link out", "folder"])
def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path, name: str, how: str) -> None:
    file = folder / name
    content = file.read_bytes()
    file.unlink()
    if how == "empty":
        file.touch()
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "link out":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif how == "folder":
        file.mkdir()
    with pytest.raises(BadModel):
        Classifier.from_pretrained(folder)


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "newer": lambda said: said.update(format_version=99),
    "no version": lambda said: said.pop("format_version"),
    "unknown runtime": lambda said: said.update(runtime="abacus"),
    "labels that are none": lambda said: said.update(labels=[1, 2, 3]),
    "no labels": lambda said: said.update(labels=[]),
    "no length": lambda said: said.update(max_length=0),
    "positions that reach nothing": lambda said: said.update(longest=0),
    "no cost": lambda said: said.update(cost={}),
    "no layers": lambda said: said["cost"].update(layers=[]),
    "another side": lambda said: said.update(truncation_side="up"),
    "one thing more": lambda said: said.update(surprise=1),
    "no files": lambda said: said.update(files={}),
    "a file elsewhere": lambda said: said["files"].update({"../elsewhere": {"bytes": 1, "sha256": ""}}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_manifest_is_refused(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapler.safefile import _digest

    monkeypatch.setattr("onnxruntime.InferenceSession", _never)
    manifest = folder / "export.json"
    said = json.loads(manifest.read_text())
    del said["digest"]
    FORGERIES[name](said)
    manifest.write_text(json.dumps({**said, "digest": _digest(said)}))
    with pytest.raises(BadModel, match=r"restore|Upgrade"):
        Classifier.from_pretrained(folder)


def test_a_graph_that_is_none_is_a_typed_error(folder: Path) -> None:
    from dataclasses import replace

    from adapler.runtimes.exported import seal_exported

    sound = check_exported(folder)
    sound.model.write_bytes(b"not a graph")
    seal_exported(replace(sound))
    with pytest.raises(BadModel, match="the graph cannot be loaded"):
        Classifier.from_pretrained(folder)


def test_without_onnx_runtime_the_pip_command_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adapler\[onnx\]'"):
        Classifier.from_pretrained(folder)


def test_an_onnx_runtime_that_computes_wrongly_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.21.1")
    with pytest.raises(MissingExtra, match=r"1\.21\.1 computes these graphs wrongly.*>=1\.22"):
        Classifier.from_pretrained(folder)


def test_without_onnx_nothing_is_exported(made: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"needs onnxscript.*pip install 'adapler\[onnx\]'"):
        export(checkpoint_of(made), tmp_path / "model", to="onnx")
    assert not list(tmp_path.iterdir())


def test_an_unknown_export_is_refused(made: Classifier, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Known: onnx, onnx-int8"):
        export(checkpoint_of(made), tmp_path / "model", to="onnx8")


def test_a_folder_that_is_not_accepted_is_not_there(made: Classifier, tmp_path: Path, folders: dict[str, Path]) -> None:
    def refuse(_: object) -> None:
        raise BadConfig("not good enough")

    with pytest.raises(BadConfig, match="not good enough"):
        export(checkpoint_of(made), tmp_path / "model", to="onnx", accept=refuse)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadModel, match="exists"):
        export(checkpoint_of(made), folders["onnx"], to="onnx")
    export(checkpoint_of(made), folders["onnx"], to="onnx", overwrite=True)
    assert is_exported(folders["onnx"])


def test_a_graph_too_large_for_its_file_is_refused(
    made: Classifier, tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_module, "_LIMIT", 1000)
    with pytest.raises(BadModel, match="a file holds less than 1000; use torch"):
        export(checkpoint_of(made), tmp_path / "model", to="onnx")


def test_neither_torch_nor_transformers_is_imported(made: Classifier, folders: dict[str, Path], tmp_path: Path) -> None:
    program = """
import sys
for name in ("torch", "transformers", "onnx", "onnxscript"):
    sys.modules[name] = None  # importing it fails
from adapler import Classifier
classifier = Classifier.from_pretrained(sys.argv[1])
answer = classifier(sys.argv[2])
told = classifier.explain(sys.argv[2])
told.save(sys.argv[3])
assert told.prediction == answer and told.contributions[0][0] > 0
print(answer.label, answer.lengths)
"""
    text = tiny_texts(1, seed=5)[0]
    command = [sys.executable, "-c", program, str(folders["onnx"]), text, str(tmp_path / "why.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    expected = made(text)
    assert done.stdout.strip() == f"{expected.label} {expected.lengths}"


def _never(*_: object) -> None:
    raise AssertionError("the graph was parsed")
