"""The script that lets servers skip the manifests of their first boot, run by a real shell on a folder as its disk."""

import subprocess
import time
from pathlib import Path

import pytest

from packager.rendering.nodefiles import node_files
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit
PROGRAMS = {"rke2": "var/lib/rancher/rke2/bin/kubectl", "k3s": "usr/local/bin/k3s"}


def server(root: Path, distribution: str) -> Path:
    """Write the disk of a new server, whose kubectl knows the addons in `root/addons`. Return its manifests folder."""
    addons = {"distribution": distribution, "cni": {"name": "calico"}}
    for path, content in node_files(Renderer().render_one(cluster("a", addons), {})).server_files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    program = root / PROGRAMS[distribution]
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nfor word; do [ -e "{root}/addons/$word" ] && echo checksum; done\nexit 0\n')
    program.chmod(0o755)
    (root / "addons").mkdir()
    return root / f"var/lib/rancher/{distribution}/server/manifests"


def run(root: Path, distribution: str, step: str) -> None:
    (unit,) = root.glob("etc/systemd/system/*.service.d/50-caphv.conf")
    script = f"/etc/rancher/{distribution}/caphv-manifests.sh"
    assert f"-/bin/sh {script} {step}\n" in unit.read_text()
    environment = {"PATH": "/usr/bin:/bin", "CAPHV_ROOT": str(root), "CAPHV_PAUSE": "0.05"}
    subprocess.run(["/bin/sh", str(root / script.lstrip("/")), step], env=environment, check=True)


def skipped(folder: Path) -> set[str]:
    return {path.name.removesuffix(".skip") for path in folder.glob("*.skip")}


def manifests(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("caphv-*.yaml")}


@pytest.mark.parametrize("distribution", PROGRAMS)
def test_the_first_server_skips_manifests_once_all_are_applied(distribution: str, tmp_path: Path) -> None:
    folder = server(tmp_path, distribution)
    assert manifests(folder)
    run(tmp_path, distribution, "joining")
    run(tmp_path, distribution, "started")
    for name in sorted(manifests(folder)):
        time.sleep(0.2)
        assert skipped(folder) == set()
        (tmp_path / "addons" / name.removesuffix(".yaml")).touch()
    deadline = time.monotonic() + 30
    while not skipped(folder) == manifests(folder) != set():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("distribution", PROGRAMS)
@pytest.mark.parametrize("place", ["config.yaml", "config.yaml.d/10-server.yaml"])
@pytest.mark.parametrize("line", ["server: https://10.0.0.1:9345", '{"server": "https://10.0.0.1:9345"}'])
def test_a_joining_server_skips_manifests_from_the_beginning(
    distribution: str, place: str, line: str, tmp_path: Path
) -> None:
    folder = server(tmp_path, distribution)
    config = tmp_path / "etc/rancher" / distribution / place
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"{line}\n")
    run(tmp_path, distribution, "joining")
    assert skipped(folder) == manifests(folder) != set()
