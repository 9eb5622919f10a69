"""`make deploy` and kubectl with the shipped manifests against a real API server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox import manifests
from sandbox.processes import binaries
from sandbox.processes.apiserver import ApiServer
from tests.support import doccommands
from tests.support.apiservers import running_management
from tests.support.e2e import crd

pytestmark = pytest.mark.e2e

DEPLOYMENT = "deployment/caphv-controller-manager"
# What the release is made from.
SOURCES = ("caphv", "clusterclass", "deploy", "tools")
FILES = ("Dockerfile", "Makefile", "LICENSE", "pyproject.toml", "requirements.lock")
# Not ours, and checked by nothing here.
STAND_INS = [
    crd("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig"),
    *(crd("cert-manager.io", "v1", kind) for kind in ("Issuer", "Certificate")),
    *(crd("monitoring.coreos.com", "v1", kind) for kind in ("ServiceMonitor", "PrometheusRule")),
]


@dataclass
class Cluster:
    """A management cluster as a person at a shell has it."""

    server: ApiServer
    environment: dict[str, str]

    def call(self, *command: str | Path, folder: Path) -> str:
        done = subprocess.run(
            [*map(str, command)], cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def kubectl(self, *arguments: str | Path, folder: Path) -> str:
        return self.call("kubectl", *arguments, folder=folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """All tests share it: each uninstalls what it has installed, and CRDs and a namespace stay."""
    folder = tmp_path_factory.mktemp("kubectl")
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
    with running_management(folder, [space, *STAND_INS]) as server:
        programs = folder / "programs"
        programs.mkdir()
        (programs / "kubectl").symlink_to(binaries.binary("kubectl"))
        path = f"{programs}:{os.environ['PATH']}"
        own = {"PATH": path, "KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder)}
        yield Cluster(server, {**os.environ, **own, "PYTHONPATH": ""})


@pytest.fixture
def copy(checkout: Path, tmp_path: Path) -> Path:
    """A separate checkout, so that `make` writes to an `out/` of its own."""
    for name in SOURCES:
        shutil.copytree(checkout / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(checkout / name, tmp_path)
    return tmp_path


def deploy(cluster: Cluster, copy: Path, image: str) -> None:
    """`make deploy IMG=…` with the packages that run this test, in place of a new .venv."""
    installed = [f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/project.stamp"]
    cluster.call("make", *installed, "deploy", f"IMG={image}", folder=copy)


def image(cluster: Cluster, folder: Path) -> str:
    path = "-o=jsonpath={.spec.template.spec.containers[*].image}"
    return cluster.kubectl("get", DEPLOYMENT, "--namespace=caphv-system", path, folder=folder)


def test_make_deploy_installs_everything_and_then_another_image(cluster: Cluster, checkout: Path, copy: Path) -> None:
    deploy(cluster, copy, "registry.example.com/caphv:mine")
    written = manifests.parse((copy / "out" / "caphv.yaml").read_text())
    found = cluster.kubectl("get", "-f", "out/caphv.yaml", "-o=name", folder=copy).split()
    assert len(found) == len(written)
    assert image(cluster, copy) == "registry.example.com/caphv:mine"
    # Another client changed it meanwhile: what the manifest says counts.
    cluster.kubectl("set", "image", DEPLOYMENT, "manager=other", "--namespace=caphv-system", folder=copy)
    deploy(cluster, copy, "registry.example.com/caphv:next")
    assert image(cluster, copy) == "registry.example.com/caphv:next"
    uninstall(cluster, checkout)


IN_PLACE = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../production]
components: [../../components/in-place]
"""


@pytest.mark.parametrize("overlay", ["production", "one-namespace", "self-signed", "in-place"])
def test_kubectl_applies_overlays_and_finds_nothing_to_change_then(
    cluster: Cluster, checkout: Path, copy: Path, overlay: str
) -> None:
    (copy / "deploy/kustomize/overlays/in-place").mkdir()
    (copy / "deploy/kustomize/overlays/in-place/kustomization.yaml").write_text(IN_PLACE)
    applied = ["--server-side", "-k", f"deploy/kustomize/overlays/{overlay}"]
    cluster.kubectl("apply", *applied, folder=copy)
    cluster.kubectl("diff", *applied, folder=copy)
    cluster.kubectl("apply", "--server-side", "-k", "deploy/kustomize/packager", folder=copy)
    uninstall(cluster, checkout)
    left = {
        name
        for part in (f"overlays/{overlay}", "packager")
        for name in cluster.kubectl(
            "get", "-k", f"deploy/kustomize/{part}", "--ignore-not-found", "-o=name", folder=copy
        ).split()
    }
    assert {name.partition("/")[0] for name in left} == {"customresourcedefinition.apiextensions.k8s.io", "namespace"}
    assert len(left) == 1 + len(list((checkout / "deploy" / "crds").glob("*.yaml")))


def test_a_provider_that_is_limited_to_one_namespace_loses_its_previous_rights(
    cluster: Cluster, checkout: Path
) -> None:
    rights = ["roles,rolebindings,clusterroles,clusterrolebindings", "-A", "-o=name"]
    ours = ["-l", "cluster.x-k8s.io/provider=infrastructure-harvester"]
    limited = ["apply", "--server-side", "-k", "deploy/kustomize/overlays/one-namespace"]
    cluster.kubectl(*limited, folder=checkout)
    expected = cluster.kubectl("get", *rights, *ours, folder=checkout)
    cluster.kubectl("apply", "--server-side", "-k", "deploy/kustomize/base", folder=checkout)
    cluster.kubectl("apply", "--server-side", "-k", "deploy/kustomize/packager", folder=checkout)
    assert cluster.kubectl("get", *rights, *ours, folder=checkout) != expected

    cluster.kubectl(*limited, folder=checkout)
    blocks = doccommands.blocks(checkout / "docs/installation.md")
    (block,) = (block for block in blocks if "clusterrole caphv-manager-role" in block)
    cluster.call("sh", "-ec", block, folder=checkout)
    left = cluster.kubectl("get", *rights, *ours, folder=checkout).split()
    assert sorted(name for name in left if "packager" not in name) == sorted(expected.split())
    uninstall(cluster, checkout)


def uninstall(cluster: Cluster, checkout: Path) -> None:
    """As the page says for installations with kubectl and kustomize."""
    commands = [
        block
        for block in doccommands.blocks(checkout / "docs/tasks/uninstall.md")
        if "kubectl delete" in block and " -l " in block and ("-n caphv-system" in block or "extensionconfigs" in block)
    ]
    assert len(commands) == 3
    for block in commands:
        cluster.call("sh", "-ec", block, folder=checkout)
