"""The wheel holds all that is needed and works where no checkout is."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import wheels

pytestmark = pytest.mark.e2e

# Below caphv/_packages in the wheel, at the top of a checkout.
PARTS = ("commands", "reconciler", "webhooks", "packager", "operations", "sandbox")
PACKAGES = ("caphv", *PARTS)
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
import caphv
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def call(*command: str | Path, cwd: Path) -> str:
    environment = wheels.environment()
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
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
    call(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    programs = folder / "env" / "bin"
    call(*pip(programs), "install", "--quiet", "--no-compile", "-c", "versions.txt", wheel, cwd=folder)
    return programs


def pip(programs: Path) -> list[str | Path]:
    """This environment's pip for another one: installing it there takes 2 s of CPU time."""
    return [sys.executable, "-m", "pip", "--python", programs / "python"]


def test_everything_in_the_packages_is_in_the_wheel(checkout: Path, wheel: Path) -> None:
    present = {
        str(Path("caphv/_packages" if package in PARTS else "") / path.relative_to(checkout))
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert present - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    top = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"caphv"}


def test_command_works(installed: Path, tmp_path: Path) -> None:
    assert "Usage: caphv" in call(installed / "caphv", "--help", cwd=tmp_path)
    assert "Usage: kubectl caphv" in call(installed / "kubectl-caphv", "status", "--help", cwd=tmp_path)
    assert re.fullmatch(r"caphv \d+\.\d+\.\d+\S*\n", call(installed / "caphv", "--version", cwd=tmp_path))


@pytest.mark.parametrize("name", ["schemas", "deploy/crds", "deploy/harvester", "clusterclass", "fleet-bundles"])
def test_data_folders_are_whole(installed: Path, checkout: Path, tmp_path: Path, name: str) -> None:
    found, *files = call(installed / "python", "-c", LIST_FOLDER, name, cwd=tmp_path).splitlines()
    assert Path(found).is_relative_to(installed.parent)
    assert files == sorted(path.name for path in (checkout / name).iterdir())


def test_dependencies_are_complete(installed: Path, tmp_path: Path) -> None:
    call(installed / "python", "-c", IMPORT_ALL, *PACKAGES, cwd=tmp_path)


def test_packages_of_the_same_names_in_other_distributions_stay_intact(installed: Path, tmp_path: Path) -> None:
    neighbour = tmp_path / "neighbour"
    for name in PARTS:
        (neighbour / name).mkdir(parents=True)
        (neighbour / name / "__init__.py").write_text(f"NAME = 'neighbour of {name}'\n")
    (neighbour / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "neighbour"\nversion = "1"\n[tool.hatch.build.targets.wheel]\npackages = {list(PARTS)!r}\n'
    )
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, neighbour, cwd=tmp_path)
    (built,) = tmp_path.glob("neighbour-*.whl")
    call(*pip(installed), "install", "--quiet", "--no-index", built, cwd=tmp_path)
    try:
        for name in PARTS:
            printed = call(installed / "python", "-c", f"import {name}; print({name}.NAME)", cwd=tmp_path)
            assert printed == f"neighbour of {name}\n"
        assert "Usage: caphv" in call(installed / "caphv", "sandbox", "--help", cwd=tmp_path)
        assert "HarvesterMachine" in call(installed / "caphv", "schema", "print", cwd=tmp_path)
        call(installed / "python", "-c", IMPORT_ALL, *PACKAGES, cwd=tmp_path)
    finally:
        call(*pip(installed), "uninstall", "--quiet", "--yes", "neighbour", cwd=tmp_path)
    assert "Usage: caphv" in call(installed / "caphv", "sandbox", "--help", cwd=tmp_path)
