"""The steps of the Dockerfile, run without a container engine: into empty folders, with the command run from there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from release import lock
from tests.support.image import stages
from tests.support.pods import require_namespaces

pytestmark = pytest.mark.e2e


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


def test_every_package_of_the_lock_is_in_it(checkout: Path, prefix: Path) -> None:
    """Also those that the Python which runs pip has already."""
    (packages,) = prefix.glob("lib/python*/site-packages")
    present = {path.name.partition("-")[0].lower().replace("_", "-") for path in packages.glob("*.dist-info")}
    assert present == {"caphv", *(package.name for package in lock.at_run_time(checkout))}


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


def test_user_of_the_final_stage_has_the_ids_of_the_deployment(checkout: Path, tmp_path: Path) -> None:
    """On a copy of this machine's accounts, in namespaces that others do not see."""
    require_namespaces()
    _, final = stages((checkout / "Dockerfile").read_text())
    (line,) = [line for line in final if "useradd" in line]
    steps = [step for step in line.split("&&") if "groupadd" in step or "useradd" in step]
    for name in ("passwd", "group", "shadow", "gshadow", "login.defs"):
        (tmp_path / name).touch()
    shutil.copy("/etc/login.defs", tmp_path)
    # Not every user's PATH has the administrator's programs.
    script = f"set -e; PATH=$PATH:/usr/sbin:/sbin; mount --bind {tmp_path} /etc; {';'.join(steps)}; id caphv"
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "uid=65532(caphv) gid=65532(caphv) groups=65532(caphv)", done.stderr
