"""The wheel holds all that is needed and works where no checkout is."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

PACKAGES = ("caphv", "reconciler", "webhooks", "packager", "sandbox")
# Prints where a data folder was found and what is in it.
LIST_FOLDER = """
import sys
from caphv.data import folder
found = folder(sys.argv[1])
print(found)
print(*sorted(path.name for path in found.iterdir()), sep="\\n")
"""
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def call(*command: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    (built,) = folder.glob("caphv-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(checkout: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs folder of a new environment with the wheel and its own dependencies, in the versions of the lock."""
    folder = tmp_path_factory.mktemp("outside")
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^\\]+", (checkout / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(pins))
    call(sys.executable, "-m", "venv", "env", cwd=folder)
    programs = folder / "env" / "bin"
    call(programs / "python", "-m", "pip", "install", "--quiet", "-c", "versions.txt", wheel, cwd=folder)
    return programs


def test_everything_in_the_packages_is_in_the_wheel(checkout: Path, wheel: Path) -> None:
    present = {
        str(path.relative_to(checkout))
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert present - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    top = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_command_works(installed: Path, tmp_path: Path) -> None:
    assert "Usage: caphv" in call(installed / "caphv", "--help", cwd=tmp_path)
    assert re.fullmatch(r"caphv \d+\.\d+\.\d+\S*\n", call(installed / "caphv", "--version", cwd=tmp_path))


@pytest.mark.parametrize("name", ["schemas", "deploy/crds", "deploy/harvester", "clusterclass", "fleet-bundles"])
def test_data_folders_are_whole(installed: Path, checkout: Path, tmp_path: Path, name: str) -> None:
    found, *files = call(installed / "python", "-c", LIST_FOLDER, name, cwd=tmp_path).splitlines()
    assert Path(found).is_relative_to(installed.parent)
    assert files == sorted(path.name for path in (checkout / name).iterdir())


def test_dependencies_are_complete(installed: Path, tmp_path: Path) -> None:
    call(installed / "python", "-c", IMPORT_ALL, *PACKAGES, cwd=tmp_path)
