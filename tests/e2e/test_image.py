"""The steps of the Dockerfile, run without a container engine: into empty folders, with the command run from there."""

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.image import controller, stages
from tests.support.pods import require_namespaces
from tools.release import lock

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


def test_data_is_with_it(checkout: Path, prefix: Path) -> None:
    (data,) = prefix.glob("lib/python*/site-packages/caphv/_data")
    ours, theirs = ({path.name for path in (place / "deploy" / "crds").glob("*.yaml")} for place in (checkout, data))
    assert ours == theirs != set()


def test_every_package_of_the_lock_is_in_it(checkout: Path, prefix: Path) -> None:
    """Also those that the Python which runs pip has already."""
    (packages,) = prefix.glob("lib/python*/site-packages")
    present = {path.name.partition("-")[0].lower().replace("_", "-") for path in packages.glob("*.dist-info")}
    assert present == {"caphv", *(package.name for package in lock.run_time_packages(checkout))}


def test_nothing_of_tests_and_build_is_in_it(prefix: Path) -> None:
    (packages,) = prefix.glob("lib/python*/site-packages")
    present = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"caphv", "aiohttp", "kubernetes", "uvloop"} <= present
    assert present & {"pytest", "mypy", "ruff", "hatchling", "build", "hypothesis"} == set()


def test_controller_has_only_what_was_assembled_for_it(checkout: Path) -> None:
    found = stages((checkout / "Dockerfile").read_text())["controller"]
    assert re.search("^FROM scratch AS controller$", (checkout / "Dockerfile").read_text(), re.MULTILINE)
    assert "USER 65532:65532" in found
    assert [line for line in found if line.startswith("COPY ")] == ["COPY --from=rootfs /rootfs /"]
    assert not [line for line in found if line.startswith(("RUN ", "ADD "))]


def test_controller_has_no_program_but_python(prefix: Path) -> None:
    """Neither shell nor Git, SSH, or package manager: each file that can be run is Python's or a launcher of it."""
    root = controller(prefix)
    programs = {
        path.name
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.parent.name in ("bin", "sbin", "libexec", "games")
    }
    launchers = {path.name for path in (root / "usr/local/bin").iterdir() if path.read_bytes()[:2] == b"#!"}
    assert programs - launchers == {Path(sys.base_prefix, f"bin/python3.{sys.version_info.minor}").name}
    links = {path.name for path in root.rglob("*") if path.is_symlink() and path.parent.name == "bin"}
    assert links <= {"python", "python3"}
    assert {"caphv", "kubectl-caphv"} <= launchers
    assert not launchers & {"pip", "pip3", "sh", "bash", "git", "ssh"}
    assert not [path for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]


def test_account_of_the_controller_has_the_ids_of_the_deployment(prefix: Path) -> None:
    root = controller(prefix)
    assert "caphv:x:65532:65532:" in (root / "etc/passwd").read_text()
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777


def test_bill_of_materials_lists_python_debian_and_the_interpreter(checkout: Path, prefix: Path) -> None:
    root = controller(prefix)
    bill = json.loads((root / "usr/share/caphv/sbom.cdx.json").read_text())
    listed = {component["purl"].partition("@")[0] for component in bill["components"]}
    assert {f"pkg:pypi/{package.name}" for package in lock.run_time_packages(checkout)} | {"pkg:pypi/caphv"} <= listed
    assert {"pkg:generic/python", "pkg:deb/debian/libc6", "pkg:deb/debian/ca-certificates"} <= listed
    assert not [
        purl for purl in listed if purl.endswith(("/git", "/openssh-client", "/bash", "/dash", "/apt", "/dpkg"))
    ]
    # Scanners of images find the same packages.
    status = {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()}
    assert {f"pkg:deb/debian/{name}" for name in status} == {purl for purl in listed if purl.startswith("pkg:deb/")}


def test_packager_has_git_and_ssh(checkout: Path) -> None:
    found = stages((checkout / "Dockerfile").read_text())
    (installed,) = [line for line in found["git"] if "apt-get install" in line]
    assert {"git", "openssh-client"} <= set(installed.split())
    assert not any(name in installed for name in ("gcc", "build-essential", "clang", "python3-dev"))
    assert "USER 65532:65532" in found["packager"]
    assert next(reversed(found)) == "packager", "an image that is built without --target works for both Deployments"


def test_user_of_the_packager_has_the_ids_of_the_deployment(checkout: Path, tmp_path: Path) -> None:
    """On a copy of this machine's accounts, in namespaces that others do not see."""
    require_namespaces()
    found = stages((checkout / "Dockerfile").read_text())["git"]
    (line,) = [line for line in found if "useradd" in line]
    steps = [step for step in line.split("&&") if "groupadd" in step or "useradd" in step]
    for name in ("passwd", "group", "shadow", "gshadow", "login.defs"):
        (tmp_path / name).touch()
    shutil.copy("/etc/login.defs", tmp_path)
    # Not every user's PATH has the administrator's programs.
    script = f"set -e; PATH=$PATH:/usr/sbin:/sbin; mount --bind {tmp_path} /etc; {';'.join(steps)}; id caphv"
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "uid=65532(caphv) gid=65532(caphv) groups=65532(caphv)", done.stderr
