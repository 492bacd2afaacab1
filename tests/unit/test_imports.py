"""Which module may import which, and the greps of a reviewer as tests. Reads the sources; imports nothing of the package."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = "adapler"

LAYERS = (
    ("errors",),
    ("registry", "problems", "records", "config", "safefile", "points", "timing", "memory", "client"),
    ("cost", "methods.settings"),
    ("tokens", "attention", "buckets"),
    ("layout", "data"),
    ("backbones", "methods"),
    ("engine",),
    ("folder", "hub", "checkpoint", "auto"),
    ("report", "training", "evaluation", "dial", "doctor", "runtimes", "export", "prediction", "explain", "answering"),
    ("classifier", "card", "bench"),
    ("live", "study", "serve", "scale", "demo", "cli", "__main__"),
)
"""Lowest first. A module may import from the lines before its own and from its own line; all may import the package itself,
which holds a version and lazy names."""

FAMILY = re.compile(r"\b(bert|(xlm-)?roberta|camembert|electra|distilbert|mpnet|modernbert|deberta(-v2)?)\b", re.IGNORECASE)
"""A family's name: behaviour may depend on it in backbones/ alone."""


def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by its name without the package."""
    found = {}
    for file in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = file.relative_to(SOURCE / PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    return found


@pytest.fixture(scope="module")
def package() -> dict[str, ast.Module]:
    return modules()


def layer_of(module: str) -> int:
    """The layer of a module: that of the longest prefix of its name that is placed."""
    if module == "":
        return -1
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        for depth, names in enumerate(LAYERS):
            if ".".join(parts[:end]) in names:
                return depth
    pytest.fail(f"{PACKAGE}.{module} has no layer; place {parts[0]!r} in LAYERS of {__file__}, as low as its imports allow")


def imported(name: str, tree: ast.Module, known: set[str], *, is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Modules of the package that `name` imports anywhere but under TYPE_CHECKING, with the line."""
    own = f"{PACKAGE}.{name}" if name else PACKAGE
    parent = own if is_package or not name else own.rpartition(".")[0]
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, parent)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            # `from adapler import cost` imports a module, `from adapler.cost import speedups` a name out of one.
            targets = [full if full.removeprefix(f"{PACKAGE}.") in known else base for full in inner]
        else:
            continue
        for target in targets:
            if target == PACKAGE or target.startswith(f"{PACKAGE}."):
                yield target.removeprefix(PACKAGE).removeprefix("."), node.lineno


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is reached when the program runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from runtime_nodes(ast.Module(node.orelse, []))
        else:
            yield node
            yield from runtime_nodes(node)


def upward(package: dict[str, ast.Module]) -> list[str]:
    """Imports that point up, one line each."""
    known = set(package)
    folders = {name.rpartition(".")[0] for name in known if "." in name}
    return [
        f"{PACKAGE}.{name}:{line} imports {PACKAGE}.{target}, which lies above it"
        for name, tree in package.items()
        for target, line in imported(name, tree, known, is_package=name in folders)
        if layer_of(target) > layer_of(name)
    ]


def test_imports_point_down_only(package: dict[str, ast.Module]) -> None:
    assert upward(package) == []


def test_every_module_has_a_layer(package: dict[str, ast.Module]) -> None:
    assert all(layer_of(name) >= -1 for name in package)


@pytest.mark.parametrize(
    "line",
    [
        "from adapler.engine import encode",
        "from adapler import engine",
        "import adapler.engine",
        "from .engine import encode",
        "def late() -> None:\n    import adapler.engine",
    ],
)
def test_an_import_that_points_up_would_be_noticed(package: dict[str, ast.Module], line: str) -> None:
    planted = package | {"tokens": ast.parse(line)}
    assert [found for found in upward(planted) if f"{PACKAGE}.tokens:" in found]


def test_an_import_for_types_alone_may_point_up(package: dict[str, ast.Module]) -> None:
    harmless = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from adapler.engine import encode")
    assert upward(package | {"tokens": harmless}) == upward(package)


def test_a_module_without_a_layer_would_be_noticed() -> None:
    with pytest.raises(pytest.fail.Exception, match="has no layer; place 'newcomer'"):
        layer_of("newcomer.part")


def test_no_code_is_said_to_be_copied() -> None:
    found = [file for file in SOURCE.rglob("*.py") if "copied from" in file.read_text(encoding="utf-8").lower()]
    assert found == []


def catch_alls(tree: ast.AST) -> list[int]:
    """Lines of function definitions that take any keyword. A wrapper typed `P.kwargs` takes what it wraps takes, no more."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    takers = [(node, node.args.kwarg) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [node.lineno for node, taken in takers if taken is not None and not _forwarded(taken)]


def _forwarded(taken: ast.arg) -> bool:
    return isinstance(taken.annotation, ast.Attribute) and taken.annotation.attr == "kwargs"


def test_no_function_takes_any_keyword(package: dict[str, ast.Module]) -> None:
    assert {name: lines for name, tree in package.items() if (lines := catch_alls(tree))} == {}


def test_a_function_that_takes_any_keyword_would_be_noticed() -> None:
    assert catch_alls(ast.parse("def run(model, **options): ...")) == [1]
    assert catch_alls(ast.parse("def run(model, **options: int): ...")) == [1]
    assert catch_alls(ast.parse("run(model, **options)")) == []
    assert catch_alls(ast.parse("def run(*args: P.args, **kwargs: P.kwargs): ...")) == []


def rules(tree: ast.AST) -> int:
    """How often a score is compared with its threshold: `score >= threshold`, or any other order and sign."""
    sides = {"score", "threshold"}
    compares = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and len(node.comparators) == 1]
    return sum({ast.unparse(node.left), ast.unparse(node.comparators[0])} == sides for node in compares)


def test_the_rule_stands_in_one_place(package: dict[str, ast.Module]) -> None:
    assert {name: count for name, tree in package.items() if (count := rules(tree))} == {"methods.adapler": 1}
    assert "score >= threshold" in ast.unparse(package["methods.adapler"])  # ties stay


def test_a_second_statement_of_the_rule_would_be_noticed() -> None:
    assert rules(ast.parse("gone = threshold > score")) == 1


def family_names(tree: ast.AST) -> list[int]:
    """Lines that hold the width of one model or the name of one family, docstrings aside."""
    described = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found = FAMILY.search(node.attr) is not None
        elif isinstance(node, ast.Constant) and id(node) not in described:
            found = node.value == 768 or (isinstance(node.value, str) and FAMILY.search(node.value) is not None)
        else:
            continue
        if found:
            lines.append(node.lineno)
    return lines


def test_only_backbones_know_a_family(package: dict[str, ast.Module]) -> None:
    # cost.py holds the constants of the counter published with the paper, which are those of one model; study/paper.py
    # what it and others published, under the names they gave it.
    free = ("backbones", "cost", "study.paper")
    others = {name: tree for name, tree in package.items() if name not in free and name.split(".")[0] not in free}
    assert {name: lines for name, tree in others.items() if (lines := family_names(tree))} == {}


@pytest.mark.parametrize(
    "line", ["width = 768", "kind == 'bert'", "encoder = model.bert.encoder", "name = 'bert-base'", "kind = 'MPNet'"]
)
def test_a_family_outside_backbones_would_be_noticed(line: str) -> None:
    assert family_names(ast.parse(line)) == [1]


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    asked = "import sys, adapler; print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
