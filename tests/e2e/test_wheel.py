"""The wheel as a user gets it: built from the checkout, installed into an empty environment, used from there.

Only dependencies come from the environment the tests run in, through a path file, so that nothing is downloaded again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import adapler

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "adapler"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def inside(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an environment that holds the wheel and, behind it on the path, our dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=True)
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=folder)
    # A path file inside a folder that is reached through a path file is not read: the editable install stays out.
    (_site_packages(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_holds_every_file_of_the_package_and_nothing_else(inside: set[str]) -> None:
    sources = {f"adapler/{file.relative_to(PACKAGE).as_posix()}" for file in PACKAGE.rglob("*") if _shipped(file)}
    about = {name for name in inside if name.startswith(f"adapler-{adapler.__version__}.dist-info/")}
    assert inside - about == sources
    assert {Path(name).name for name in about} >= {"METADATA", "RECORD", "entry_points.txt", "LICENSE"}


def test_says_that_it_is_typed(inside: set[str]) -> None:
    assert "adapler/py.typed" in inside


def test_holds_no_tests_and_no_data_of_theirs(inside: set[str]) -> None:
    assert not [name for name in inside if "test" in name.lower() or "golden" in name or name.endswith((".npz", ".whl"))]


def test_is_imported_from_the_environment_without_torch(environment: Path) -> None:
    said = _python(environment, "import sys, adapler; print(adapler.__file__, {'torch', 'transformers'} & set(sys.modules))")
    assert said.split() == [str(_site_packages(environment) / "adapler" / "__init__.py"), "set()"]


def test_gives_a_classifier(environment: Path) -> None:
    said = _python(environment, "import sys, adapler; print(sys.modules[adapler.Classifier.__module__].__file__)")
    assert said.strip() == str(_site_packages(environment) / "adapler" / "classifier.py")


def test_installs_a_command_that_knows_its_version(environment: Path) -> None:
    assert adapler.__version__ in _run(str(environment / "bin" / "adapler"), "--version", cwd=environment)


def _shipped(file: Path) -> bool:
    return file.is_file() and file.suffix not in (".pyc", ".pyo") and "__pycache__" not in file.parts


def _site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _python(environment: Path, code: str) -> str:
    return _run(str(environment / "bin" / "python"), "-c", code, cwd=environment)


def _run(*command: str, cwd: Path) -> str:
    """What a command printed, run without the paths of the checkout; its complaints are shown if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
