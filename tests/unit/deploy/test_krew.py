"""The plugin of kubectl has the form that krew requires, and its launcher runs this version."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release.__main__ import contents
from tools.release.krew import NAME, launcher

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def version(checkout: Path) -> str:
    found = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert NAME in found["scripts"]
    return str(found["version"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, version: str) -> Path:
    path = tmp_path_factory.mktemp("dist") / f"caphv-{version}-py3-none-any.whl"
    path.write_bytes(b"the wheel")
    return path


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    return contents("registry.example.com/caphv:test", wheel=wheel)


@pytest.fixture(scope="module")
def manifest(files: dict[str, bytes]) -> dict[str, Any]:
    return dict(yaml.safe_load(files["caphv.krew.yaml"]))


def test_manifest_has_the_form_of_krew(manifest: dict[str, Any], version: str) -> None:
    """The rules of krew's `validation` package."""
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "caphv")
    spec = manifest["spec"]
    assert spec["version"] == f"v{version}"
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["shortDescription"]
    assert "\n" not in spec["shortDescription"]
    assert len(spec["shortDescription"]) <= 50
    assert spec["homepage"].startswith("https://")
    for platform in spec["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "files", "bin"}
        assert platform["uri"].startswith("https://")
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
        assert not platform["bin"].startswith("/")


def test_archive_is_the_one_that_the_manifest_names(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    (platform,) = manifest["spec"]["platforms"]
    archive = files[platform["uri"].rpartition("/")[2]]
    assert hashlib.sha256(archive).hexdigest() == platform["sha256"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name: member for member in tar}
    assert set(members) == {file["from"] for file in platform["files"]}
    assert members[platform["bin"]].mode & 0o111 == 0o111


def test_archive_whose_hash_krew_compares_has_the_wheel(files: dict[str, bytes], wheel: Path, version: str) -> None:
    """So nothing is downloaded that has no hash in the manifest, but what the wheel depends on."""
    with tarfile.open(fileobj=io.BytesIO(files[f"{NAME}-v{version}.tar.gz"])) as tar:
        member = tar.extractfile(wheel.name)
        assert member
        assert member.read() == b"the wheel"
    assert "://" not in launcher(version).partition("echo")[0]


def test_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "caphv-0.0.1-py3-none-any.whl"
    other.write_bytes(b"")
    with pytest.raises(ValueError, match="run `make wheel`"):
        contents(wheel=other)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("uv", ["tool", "run", "--quiet", "--from", "WHEEL", NAME, "status", "-n", "a b"]),
        ("pipx", ["run", "--quiet", "--spec", "WHEEL", NAME, "status", "-n", "a b"]),
    ],
)
def test_launcher_runs_the_wheel_of_its_version(
    tmp_path: Path, version: str, program: str, expected: list[str]
) -> None:
    done = run(tmp_path, version, program)
    assert done.returncode == 0, done.stderr
    wheel = tmp_path / "store" / "v1" / f"caphv-{version}-py3-none-any.whl"
    words = done.stdout.splitlines()
    assert [("WHEEL" if Path(word).resolve() == wheel else word) for word in words] == expected


def test_launcher_says_what_it_needs(tmp_path: Path, version: str) -> None:
    done = run(tmp_path, version, "")
    assert done.returncode == 1
    assert "needs uv" in done.stderr


def run(folder: Path, version: str, program: str) -> "subprocess.CompletedProcess[str]":
    """Run the launcher by krew's link, with one program on its PATH, which prints its arguments."""
    script = folder / "store" / "v1" / NAME
    script.parent.mkdir(parents=True)
    script.write_text(launcher(version))
    script.chmod(0o755)
    link = folder / "bin" / NAME
    link.parent.mkdir()
    link.symlink_to(Path("..") / "store" / "v1" / NAME)
    (folder / "readlink").symlink_to(str(shutil.which("readlink")))
    if program:
        (folder / program).write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        (folder / program).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CAPHV_WHEEL"}
    words = ["/bin/sh", str(link), "status", "-n", "a b"]
    return subprocess.run(words, env={**environment, "PATH": str(folder)}, capture_output=True, text=True, check=False)
