"""`caphv bundles` as people and pipelines call it: a real API server, a real Git server, each command as a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import NAMESPACES, Obj, Resource
from caphv.runtime.client import ApiClient
from commands.main import cli
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.git_servers import HttpBackend, tls_context
from tests.support.packager.repositories import Origin, git
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.integration

CANARY = "c4nary-p@ss/w0rd"
CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
HARVESTER_CLUSTERS = Resource("infrastructure.cluster.x-k8s.io", "v1beta1", "harvesterclusters", "HarvesterCluster")
CONTROL_PLANES = Resource("controlplane.cluster.x-k8s.io", "v1beta2", "rke2controlplanes", "RKE2ControlPlane")
FLEET_CLUSTERS = Resource("fleet.cattle.io", "v1alpha1", "clusters", "Cluster")


def changed(output: str) -> list[str]:
    return [item["name"] for item in json.loads(output)["items"] if item["change"] == "changed"]


@dataclass
class Commands:
    """Calls `caphv bundles` and remembers all that it reported; `process` does that in a process of its own."""

    folder: Path
    environment: dict[str, str]
    output: str = ""

    def __post_init__(self) -> None:
        self.environment |= {"HOME": str(self.folder)}

    def __call__(self, *arguments: str, expect: int = 0, stdin: str | None = None) -> str:
        done = CliRunner(env=self.environment).invoke(cli, ["bundles", *arguments], input=stdin, prog_name="caphv")
        return self._reported(arguments, done.exit_code, done.stdout, done.stderr, expect)

    def process(self, *arguments: str, expect: int = 0, stdin: str | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "caphv", "bundles", *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)} | self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return self._reported(arguments, done.returncode, done.stdout, done.stderr, expect)

    def _reported(self, arguments: Sequence[str], code: int, printed: str, reported: str, expect: int) -> str:
        self.output += printed + reported
        assert code == expect, (arguments, printed[-2000:], reported[-2000:])
        return printed


def crd(resource: Resource) -> Obj:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": {"kind": resource.kind, "plural": resource.plural},
            "scope": "Namespaced",
            "versions": [
                {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


def cluster(name: str, **labels: str) -> list[Obj]:
    """A Cluster with its HarvesterCluster and control plane."""
    metadata = {"name": name, "namespace": "team"}
    refs = {"apiGroup": HARVESTER_CLUSTERS.group, "kind": "HarvesterCluster", "name": name}
    control_plane = {"apiGroup": CONTROL_PLANES.group, "kind": "RKE2ControlPlane", "name": name}
    return [
        {
            "apiVersion": CLUSTERS.api_version,
            "kind": "Cluster",
            "metadata": {**metadata, "labels": labels},
            "spec": {"infrastructureRef": refs, "controlPlaneRef": control_plane},
        },
        {
            "apiVersion": HARVESTER_CLUSTERS.api_version,
            "kind": "HarvesterCluster",
            "metadata": metadata,
            "spec": {"cloudConfig": {"delivery": "File"}},
        },
        {
            "apiVersion": CONTROL_PLANES.api_version,
            "kind": "RKE2ControlPlane",
            "metadata": metadata,
            "spec": {"serverConfig": {"cni": "cilium"}, "version": "v1.34.1+rke2r1", "replicas": 1},
        },
    ]


async def prepare(server: ApiServer) -> None:
    kinds = (CLUSTERS, CLASSES, HARVESTER_CLUSTERS, CONTROL_PLANES, FLEET_CLUSTERS)
    async with server.client() as client:
        await manifests.apply(client, [crd(kind) for kind in kinds])
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await manifests.apply(client, [obj for name in ("a", "b") for obj in cluster(name, wave=name)])


async def annotate(client: ApiClient, name: str, values: Any) -> None:
    patch = {"metadata": {"annotations": {"addons.caphv.io/values": json.dumps(values)}}}
    await client.patch(CLUSTERS, name, "team", patch)


def change(server: ApiServer, name: str, values: Any) -> None:
    async def patch() -> None:
        async with server.client() as client:
            await annotate(client, name, values)

    asyncio.run(patch())


@pytest.mark.usefixtures("own_environment")
def test_from_a_management_cluster_to_a_git_server(empty_api_server: ApiServer, origin: Origin, tmp_path: Path) -> None:
    server, kubeconfig = empty_api_server, tmp_path / "management.yaml"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    asyncio.run(prepare(server))
    tls, authority = tls_context(tmp_path)
    (tmp_path / "authority.pem").write_text(authority)
    with HttpBackend(origin.folder.parent, password=CANARY).serve(tls) as backend:
        caphv = Commands(
            tmp_path,
            {
                "KUBECONFIG": str(kubeconfig),
                "CAPHV_GIT_REPO": f"{backend.url}/{origin.folder.name}",
                "CAPHV_GIT_USERNAME": "packager",
                "CAPHV_GIT_PASSWORD": CANARY,
                "CAPHV_GIT_CA_FILE": str(tmp_path / "authority.pem"),
            },
        )
        # Nothing is there yet; the control plane says which CNI, the HarvesterCluster where the cloud config is.
        assert "2 missing" in caphv.process("verify", expect=1)
        assert "2 written" not in caphv("push", "-n", "elsewhere")
        assert "commit" in caphv.process("push")
        assert "cloudConfigPath: /etc/kubernetes/cloud-config" in origin.files()["clusters/team/a/ccm/fleet.yaml"]
        assert "rke2-cilium" in origin.files()["clusters/team/a/cni/helmchartconfig.yaml"]
        assert "2 matches" in caphv("verify", "--kubeconfig", str(kubeconfig))
        assert caphv.process("list").count("cilium") == 2

        # One setting is one small commit, and everybody can see what will come.
        change(server, "a", {"cni": {"mtu": 1400}})
        assert "MTU: 1400" in caphv.process("diff", expect=1)
        assert changed(caphv("push", "-o", "json")) == ["clusters/team/a"]
        assert origin.count() == 2
        stat = git(origin.folder, "show", "--numstat", "--format=", "main").splitlines()
        assert len(stat) == 2

        # A live network is not changed by the way, and the other cluster continues.
        change(server, "a", {"cni": {"encapsulation": "Geneve"}})
        change(server, "b", {"cni": {"mtu": 1300}})
        assert changed(caphv("push", "-o", "json", expect=1)) == ["clusters/team/b"]
        assert "nodes would lose contact" in caphv.output
        assert "1 invalid, 1 matches" in caphv("verify", expect=1)
        assert changed(caphv("push", "-l", "wave=a", "--force", "-o", "json")) == ["clusters/team/a"]

        # A lost clone, a wrong password, and a server that does not exist.
        assert caphv("push").startswith("nothing changed")
        caphv.environment["CAPHV_GIT_PASSWORD"] = f"{CANARY}-wrong"
        caphv.process("push", expect=2)
        assert "credentials" in caphv.output
        caphv("push", "--repo", "https://127.0.0.1:1/fleet.git", expect=2)
        caphv("verify", "--context", "nonsense", expect=2)
    assert CANARY not in caphv.output
    assert secrets_below(tmp_path / ".cache") == secrets_below(tmp_path / "cache") == []


def secrets_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_pushes_of_one_machine_wait_for_each_other_and_none_is_lost(origin: Origin, tmp_path: Path) -> None:
    """They share the folder of the clone, as pipelines of one runner do."""
    basics = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "HOME": str(tmp_path)}
    push = [sys.executable, "-m", "caphv", "bundles", "push", "--repo", origin.url, "--git-timeout=300"]
    running = []
    for name in ("a", "b", "c"):
        cluster = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"infrastructureRef": {"kind": "HarvesterCluster", "name": name}},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(cluster))
        command = [*push, f"{name}.yaml"]
        running.append(
            subprocess.Popen(command, cwd=tmp_path, env=basics, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    for process in running:
        printed, reported = process.communicate(timeout=300)
        assert printed.startswith(b"commit "), reported
        assert process.returncode == 0
    assert {path.split("/")[2] for path in origin.files()} == {"a", "b", "c"}
    assert origin.count() == 3


@pytest.mark.usefixtures("own_environment")
def test_what_kubectl_prints_is_taken(origin: Origin, tmp_path: Path) -> None:
    caphv = Commands(tmp_path, {"CAPHV_GIT_REPO": origin.url})
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster("a")})
    caphv.process("push", "-", stdin=listed)
    assert "rke2-cilium" in origin.files()["clusters/team/a/cni/helmchartconfig.yaml"]
    caphv("verify", "-", stdin=listed)
