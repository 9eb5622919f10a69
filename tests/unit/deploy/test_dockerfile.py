"""The Dockerfile keeps the rules of hadolint."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.image import stages

pytestmark = pytest.mark.unit
# Programs that the packager and its Git run, and the packages of Debian that have them.
PROGRAMS = {"git": "git", "gpg": "gpg", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}


def lint(dockerfile: str) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).parent / "hadolint"
    return subprocess.run([hadolint, "-"], input=dockerfile, capture_output=True, text=True, check=False, cwd="/")


def test_dockerfile_passes_lint(checkout: Path) -> None:
    done = lint((checkout / "Dockerfile").read_text())
    assert done.returncode == 0, done.stdout


def test_lint_finds_what_is_wrong() -> None:
    done = lint("FROM debian:13\nRUN apt-get install git\nUSER root\n")
    assert done.returncode == 1
    assert "DL3002" in done.stdout


def test_the_build_context_has_all_that_the_wheel_is_made_from(checkout: Path) -> None:
    allowed = {line.removeprefix("!") for line in (checkout / ".dockerignore").read_text().splitlines()}
    wheel = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} - allowed == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_image_of_the_packager_has_what_commits_and_verifies_signatures(checkout: Path, program: str) -> None:
    dockerfile = (checkout / "Dockerfile").read_text()
    assert re.search("^FROM git AS packager$", dockerfile, re.MULTILINE)
    (install,) = [line for line in stages(dockerfile)["git"] if "apt-get install" in line]
    packages = install.partition("apt-get install")[2].partition("&&")[0].split()
    assert PROGRAMS[program] in packages
