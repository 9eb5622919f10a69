"""The steps of the Dockerfile, run without a container engine: into empty folders, with the command run from there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

# Folders and files of the build stage.
PLACES = ("/opt/caphv", "/requirements.txt", "/build-requirements.txt", "/build", "/dist")
PLACE = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, PLACES))})(?![\w-])")


def stages(dockerfile: str) -> list[list[str]]:
    """Instructions of each stage, continuation lines joined, comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    found: list[list[str]] = []
    for line in filter(str.strip, joined):
        if line.startswith("FROM "):
            found.append([])
        elif found:
            found[-1].append(line)
    return found


def copied(checkout: Path, target: Path) -> None:
    """What .dockerignore lets into the build."""
    rules = (checkout / ".dockerignore").read_text().splitlines()
    for rule in (rule.removeprefix("!") for rule in rules if rule.startswith("!")):
        source = checkout / rule
        if source.is_dir():
            shutil.copytree(source, target / rule, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / rule).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / rule)


@pytest.fixture(scope="module")
def prefix(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the final stage takes from the build stage."""
    folder = tmp_path_factory.mktemp("image")
    source = folder / "src"
    copied(checkout, source)
    (folder / "opt").mkdir()
    build, _ = stages((checkout / "Dockerfile").read_text())
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    for step in (line.removeprefix("RUN ") for line in build if line.startswith("RUN ")):
        # Packages that pip has at hand are not downloaded again: the hashes of the lock are compared all the same.
        command = PLACE.sub(lambda found: f"{folder}{found[1]}", step.replace("--no-cache-dir ", ""))
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return folder / "opt" / "caphv"


def run(prefix: Path, *arguments: str) -> str:
    """Run the command of the image, with its packages only."""
    (packages,) = prefix.glob("lib/python*/site-packages")
    command = [sys.executable, "-I", "-S", "-c", "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
               "runpy.run_path(sys.argv.pop(1), run_name='__main__')"]  # fmt: skip
    whole = [*command, str(packages), str(prefix / "bin" / "caphv"), *arguments]
    done = subprocess.run(whole, cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_runs_from_the_prefix_alone(prefix: Path) -> None:
    assert re.fullmatch(r"caphv \d+\.\d+\.\d+\S*\n", run(prefix, "--version"))
    assert "--leader-elect" in run(prefix, "run", "--help")


def test_data_is_with_it(prefix: Path) -> None:
    (data,) = prefix.glob("lib/python*/site-packages/caphv/_data")
    assert len(list((data / "deploy" / "crds").glob("*.yaml"))) == 4


def test_nothing_of_tests_and_build_is_in_it(prefix: Path) -> None:
    (packages,) = prefix.glob("lib/python*/site-packages")
    present = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"caphv", "aiohttp", "kubernetes", "uvloop"} <= present
    assert present & {"pytest", "mypy", "ruff", "hatchling", "build", "hypothesis"} == set()


def test_final_stage_is_small_and_unprivileged(checkout: Path) -> None:
    _, final = stages((checkout / "Dockerfile").read_text())
    assert "USER 65532:65532" in final
    installed = [line for line in final if "apt-get install" in line]
    assert not any(name in line for line in installed for name in ("gcc", "build-essential", "clang", "python3-dev"))
    assert [line for line in final if line.startswith("COPY ")] == ["COPY --from=build /opt/caphv /usr/local"]
