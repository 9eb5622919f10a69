"""Definitions with a real API server, which has the real CRDs of Cluster API's core, and with a real Git server."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv import data
from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import ApiError, NotFound
from commands.main import cli
from sandbox import manifests
from sandbox.capi import crds as providers
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.binaries import cluster_api_manifests
from tests.support.packager.definitions import built, definition, k3s, kubeadm
from tests.support.packager.environment import GIT_REPOS, crd
from tests.support.packager.git_servers import git_daemon
from tests.support.packager.repositories import Origin, git
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.integration

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
T = TypeVar("T")
DEFINITIONS = {
    "class": definition("a"),
    "sets": definition("b", addonDelivery="ClusterResourceSet"),
    "individual": definition("c", individualObjects=True, fleet={"repo": "https://git.example.com/f.git"}),
    "k3s": k3s("d"),
    "k3s-individual": k3s("e", individualObjects=True, addons={"cni": {"name": "calico"}}),
    "kubeadm": kubeadm("f"),
    "kubeadm-individual": kubeadm("g", individualObjects=True),
}


@pytest.fixture(scope="module")
def management(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server with the CRDs of the core, of this provider, of bootstrap providers (stand-ins) and of Fleet."""
    server = ApiServer(etcd_folder, "definitions")
    core = manifests.read(sorted((cluster_api_manifests() / "crd" / "bases").glob("*.yaml")))
    for found in core:
        # Nothing converts: all is written in the stored version.
        found["spec"]["conversion"] = {"strategy": "None"}
    ours = manifests.read(sorted(data.folder("deploy/crds").glob("infrastructure*.yaml")))

    async def prepare() -> None:
        await server.start()
        async with server.client() as client:
            await manifests.apply(client, [*core, *ours, *providers.custom_resource_definitions(), crd(GIT_REPOS)])

    asyncio.run(prepare())
    yield server
    asyncio.run(server.stop())


def on(server: ApiServer, call: Callable[[ApiClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with server.client() as client:
            return await call(client)

    return asyncio.run(run())


class Caphv:
    """Calls `caphv`, with its own cache; `process` does that in a process of its own."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.folder = folder
        self.kubeconfig = folder / "management.yaml"
        self.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))

    def __call__(self, *arguments: str, expect: int = 0) -> Result:
        done = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(self.kubeconfig)], prog_name="caphv")
        assert done.exit_code == expect, (arguments, done.output)
        return done

    def process(self, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "HOME": str(self.folder)}
        done = subprocess.run(
            [sys.executable, "-m", "caphv", *arguments, "--kubeconfig", str(self.kubeconfig)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout


@pytest.fixture
def caphv(tmp_path: Path, management: ApiServer, own_environment: None) -> Caphv:
    return Caphv(tmp_path, management)


@pytest.mark.parametrize("case", DEFINITIONS)
def test_the_api_server_takes_all_objects_and_knows_all_their_fields(management: ApiServer, case: str) -> None:
    found = built(DEFINITIONS[case])
    assert found.ok
    objects = [obj for group in found.shared.values() for obj in group][1:] + list(found.objects)
    assert on(management, lambda client: refusals(client, objects)) == []


async def refusals(client: ApiClient, objects: Sequence[Obj]) -> list[str]:
    """What the API server says of objects of which it makes none; fields that it does not know are refused, too."""
    discovery = Discovery(client)
    await namespace(client, "team-a")
    await namespace(client, "fleet-default")
    reported = []
    for obj in objects:
        resource = await discovery.resource(obj)
        path = resource.path(obj["metadata"]["namespace"])
        try:
            await client.request("POST", path, body=obj, query={"dryRun": "All", "fieldValidation": "Strict"})
        except ApiError as error:
            reported.append(f"{obj['kind']} {obj['metadata']['name']}: {error}")
    return reported


async def namespace(client: ApiClient, name: str) -> None:
    await client.apply(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, manager="test"
    )


def test_generate_applies_and_applies_again(caphv: Caphv, management: ApiServer) -> None:
    identity = caphv.folder / "harvester.yaml"
    identity.write_text(yaml.safe_dump(management.kubeconfig()))
    flags = shlex.split(
        "--name demo --namespace generated --image default/sles --ssh-keypair default/key --network default/production"
    )
    first = caphv.process("generate", *flags, "--harvester-kubeconfig", str(identity), "--no-harvester", "--apply")
    assert "applied Cluster generated/demo" in first
    assert "applied ClusterClass generated/harvester-rke2" in first
    secret = on(management, lambda client: client.get(SECRETS, "demo-harvester-identity", "generated"))
    assert set(secret["data"]) == {"kubeconfig"}

    # The same kubeconfig changes nothing; another one replaces it only on request.
    caphv("generate", *flags, "--harvester-kubeconfig", str(identity), "--no-harvester", "--apply")
    administrator = caphv.folder / "administrator.yaml"
    administrator.write_text(yaml.safe_dump({**management.kubeconfig(), "preferences": {}}))
    wanted = (*flags, "--harvester-kubeconfig", str(administrator), "--no-harvester", "--apply")
    refused = caphv("generate", *wanted, expect=1)
    assert "Secret generated/demo-harvester-identity exists with another kubeconfig" in refused.stderr
    assert "applied" not in refused.stdout
    kept = on(management, lambda client: client.get(SECRETS, "demo-harvester-identity", "generated"))
    assert kept["data"] == secret["data"]
    caphv("generate", *wanted, "--replace-identity")
    replaced = on(management, lambda client: client.get(SECRETS, "demo-harvester-identity", "generated"))
    assert replaced["data"] != secret["data"]

    before = on(management, lambda client: client.get(CLUSTERS, "demo", "generated"))
    again = caphv("generate", *flags, "--cni-mtu", "1400", "--apply").stdout
    assert "ClusterClass" not in again
    after = on(management, lambda client: client.get(CLUSTERS, "demo", "generated"))
    assert "mtu: 1400" in after["metadata"]["annotations"]["addons.caphv.io/values"]
    # Nodes have started with these files; others would replace the control plane.
    assert after["spec"] == before["spec"]
    refused = caphv("generate", *flags, "--service-cidr", "10.9.0.0/16", "--apply", expect=1)
    assert "new servers could not join" in refused.stderr
    assert "applied" not in refused.stdout
    other = caphv("generate", *flags, "--name", "other", "--apply").stdout
    assert "applied Cluster generated/other" in other
    assert on(management, lambda client: client.get(CLUSTERS, "demo", "generated"))["spec"] == before["spec"]


def test_what_the_api_server_refuses_is_reported_and_the_rest_is_applied(caphv: Caphv) -> None:
    large = definition("large")
    # An API server takes 256 KiB of annotations.
    large["metadata"]["annotations"] = {f"example.com/note-{number}": "much " * 12_000 for number in range(5)}
    (caphv.folder / "large.yaml").write_text(text(large))
    done = caphv("generate", "--definition", str(caphv.folder / "large.yaml"), "--apply", expect=1)
    assert "error: Cluster team-a/large: " in done.stderr
    assert "applied MachineHealthCheck team-a/large-mhc" in done.stdout
    assert "applied Cluster team-a/large" not in done.stdout


def test_a_push_becomes_a_commit_and_a_cluster(caphv: Caphv, management: ApiServer, tmp_path: Path) -> None:
    top = tmp_path / "git"
    source, fleet = Origin.make(top / "clusters.git"), Origin.make(top / "fleet.git")
    pushed = {f"{name}.yaml": text(definition(name, addonDelivery="Fleet")) for name in ("one", "two")}
    with git_daemon(top) as url:
        sync = ("packager", "sync", "--source-repo", f"{url}/clusters.git", "--repo", f"{url}/fleet.git", "--apply")
        source.push(pushed)
        caphv.process(*sync)
        assert f"Source: {url}/clusters.git@{source.head()}" in fleet.message()
        assert on(management, lambda client: client.get(CLUSTERS, "one", "team-a"))["spec"]["topology"]
        assert on(management, lambda client: client.get(CLASSES, "harvester-rke2", "team-a"))

        # A setting that changes and a definition that is wrong: one commit for the one, a line for the other.
        source.push(
            {
                "one.yaml": text(definition("one", addons={"cni": {"mtu": 1400}})),
                "two.yaml": text(definition("two", addonDelivery="Fleet", kubernetesVersion="newest")),
            }
        )
        done = caphv(*sync, expect=1)
        assert "two.yaml:" in done.stderr
        assert fleet.count() == 2
        changed = git(fleet.folder, "diff", "--name-only", "main~1", "main").splitlines()
        assert "clusters/team-a/one/cni/helmchartconfig.yaml" in changed
        assert not any("/two/" in path for path in changed)

        # A health check that is turned off is deleted, and one of another client is not.
        checks = Resource("cluster.x-k8s.io", "v1beta2", "machinehealthchecks", "MachineHealthCheck")
        given = {
            name: definition(name, addonDelivery="Fleet", healthCheck={"enabled": False}) for name in ("one", "two")
        }
        found = on(management, lambda client: client.get(checks, "two-mhc", "team-a"))
        on(management, lambda client: client.delete(checks, "two-mhc", "team-a"))
        head = {"apiVersion": checks.api_version, "kind": checks.kind}
        foreign = {**head, "metadata": {"name": "two-mhc", "namespace": "team-a"}, "spec": found["spec"]}
        on(management, lambda client: client.create(checks, foreign))
        source.push({f"{name}.yaml": text(obj) for name, obj in given.items()})
        assert (
            "MachineHealthCheck team-a/two-mhc: it is no longer defined, but another" in caphv(*sync, expect=1).stderr
        )
        with pytest.raises(NotFound):
            on(management, lambda client: client.get(checks, "one-mhc", "team-a"))
        on(management, lambda client: client.delete(checks, "two-mhc", "team-a"))
        caphv(*sync)

        # A removed definition: its cluster stays until two commits were confirmed.
        source.push({"one.yaml": text(given["one"])}, replace=True)
        assert "left manifests/team-a/two" in caphv(*sync, expect=1).stdout
        assert on(management, lambda client: client.get(CLUSTERS, "two", "team-a"))
        assert "protection is lifted" in caphv(*sync, "--confirm", "team-a/two", expect=1).stdout
        assert on(management, lambda client: client.get(CLUSTERS, "two", "team-a"))
        caphv(*sync, "--confirm", "team-a/two")
        assert not any("/two/" in path for path in fleet.files())
        with pytest.raises(NotFound):
            on(management, lambda client: client.get(CLUSTERS, "two", "team-a"))
        assert on(management, lambda client: client.get(CLUSTERS, "one", "team-a"))
        count = fleet.count()
        assert "nothing to commit" in caphv(*sync).stdout
        assert fleet.count() == count


def text(obj: Any) -> str:
    return yaml.safe_dump(obj, sort_keys=False)
