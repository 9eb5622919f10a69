"""The real clusterctl with a local repository of our release: init, generate cluster, move, upgrade and delete.

No Pods run on the management API server, so the sandbox's own process is the provider, and a process beside it serves
the webhooks: the configurations that clusterctl installs are led there, in place of Service and cert-manager. The
Deployment that it installs is looked at, not run.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from caphv.api.object import DEPLOYMENTS, NAMESPACES, SECRETS, SERVICES, Obj, Resource, annotations_of, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound
from caphv.runtime.kubeconfig import own_configuration
from reconciler.harvester.accounts import identity_secret
from release.__main__ import contents
from sandbox import manifests
from sandbox.capi import core
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.state import Settings
from tests.support.e2e import CLUSTERCTL, TALOS, admitted, crd, holds, our_provider, seen
from tests.support.webhooks import VERSIONS, Server, resource, until, wrong
from webhooks.admission import KINDS
from webhooks.configuration import INJECT_ANNOTATION, NAMES, RESOURCES, SERVICE
from webhooks.handler import WEBHOOKS

pytestmark = pytest.mark.e2e

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
INVENTORY = Resource(CLUSTERCTL, "v1alpha3", "providers", "Provider")
CONTROL_PLANES = "controlplane.cluster.x-k8s.io"
NAME = "moved"
CORE = f"v{binaries.CLUSTER_API_CORE.version}"
VERSION, NEXT = "v0.11.0", "v0.11.1"
VARIABLES = {
    "HARVESTER_GATEWAY": "10.0.0.1",
    "HARVESTER_SUBNET_MASK": "255.255.255.0",
    "HARVESTER_DNS": "10.0.0.53",
    "HARVESTER_IMAGE": "default/sles-15-sp7",
    "HARVESTER_SSH_KEYPAIR": "default/admin",
    "HARVESTER_NETWORK": "default/production",
    "HARVESTER_VM_IP_POOL": "machines",
    "HARVESTER_LB_IP_POOL": "load-balancers",
    "TALOS_VERSION": "v1.12",
}


@dataclass
class Clusterctl:
    """clusterctl with a configuration folder of its own."""

    folder: Path
    kubeconfig: Path

    def __call__(self, *arguments: str | Path) -> str:
        environment = {
            **os.environ,
            **VARIABLES,
            "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "KUBECONFIG": str(self.kubeconfig),
        }
        command = [binaries.binary("clusterctl"), f"--config={self.folder / 'clusterctl.yaml'}", *arguments]
        done = subprocess.run(
            [*map(str, command)], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def repository(folder: Path, name: str = "harvester") -> None:
    """Ours by a name, with this release and one after it, of another image; of the core, only its contract."""
    for version in (VERSION, NEXT):
        files = contents(f"registry.example.com/caphv:{version}")
        _write(folder / "repository" / f"infrastructure-{name}" / version, files)
    series = [{"major": 1, "minor": 13, "contract": "v1beta2"}]
    metadata = {"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata", "releaseSeries": series}
    files = {"metadata.yaml": yaml.safe_dump(metadata).encode(), "core-components.yaml": b""}
    _write(folder / "repository" / "cluster-api" / CORE, files)
    providers = [
        (name, "InfrastructureProvider", f"infrastructure-{name}/{VERSION}/infrastructure-components.yaml"),
        ("cluster-api", "CoreProvider", f"cluster-api/{CORE}/core-components.yaml"),
    ]
    configured = [
        {"name": name, "type": kind, "url": str(folder / "repository" / path)} for name, kind, path in providers
    ]
    (folder / "clusterctl.yaml").write_text(yaml.safe_dump({"providers": configured}))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


async def prepare(management: ApiClient) -> None:
    """What a management cluster has before: cert-manager's kinds, and the core as clusterctl would install it."""
    installed_core = {
        "apiVersion": INVENTORY.api_version,
        "kind": INVENTORY.kind,
        "metadata": {
            "name": "cluster-api",
            "namespace": "capi-system",
            "labels": {"cluster.x-k8s.io/provider": "cluster-api", CLUSTERCTL: ""},
        },
        "providerName": "cluster-api",
        "type": "CoreProvider",
        "version": CORE,
    }
    stand_ins = [crd("cert-manager.io", "v1", kind) for kind in ("Issuer", "Certificate")]
    stand_ins.append(crd(CONTROL_PLANES, "v1beta2", "StandIn"))
    inventory = crd(INVENTORY.group, INVENTORY.version, INVENTORY.kind)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cert-manager"}}
    await manifests.apply(management, [*stand_ins, inventory, space, installed_core])
    for found in (await management.list(CRDS))["items"]:
        if found["spec"]["group"].endswith("cluster.x-k8s.io"):
            # By this label clusterctl finds what it has to move.
            await management.patch(CRDS, found["metadata"]["name"], "", {"metadata": {"labels": {CLUSTERCTL: ""}}})


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    binaries.prepare()
    box = Sandbox(tmp_path_factory.mktemp("clusterctl"), Settings())
    try:
        asyncio.run(box.up())
        yield box
    finally:
        asyncio.run(children.stop_all(box.folder))


@pytest.fixture(scope="module")
def clusterctl(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Clusterctl:
    folder = tmp_path_factory.mktemp("repositories")
    repository(folder)
    return Clusterctl(folder, box.kubeconfig("management"))


@pytest.fixture(scope="module")
def webhooks(box: Sandbox) -> Iterator[Server]:
    server = Server(box.folder, "webhooks")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.mark.parametrize(
    ("flavor", "kind"),
    [("", "RKE2ControlPlane"), ("dhcp", "RKE2ControlPlane"), ("kubeadm", "KubeadmControlPlane"),
     ("k3s", "KThreesControlPlane"), ("talos", "TalosControlPlane")],
)  # fmt: skip
def test_templates_are_filled_in(box: Sandbox, clusterctl: Clusterctl, flavor: str, kind: str) -> None:
    objects = generated(clusterctl, flavor)
    asyncio.run(judge(box, objects))
    assert {obj["metadata"]["namespace"] for obj in objects.values()} == {"team-a"}
    assert objects[kind, "demo-control-plane"]["spec"]["replicas"] == 3
    assert objects["MachineDeployment", "demo-workers"]["spec"]["replicas"] == 2
    spec = objects["HarvesterCluster", "demo"]["spec"]
    assert spec["loadBalancerConfig"]["ipamType"] == ("dhcp" if flavor == "dhcp" else "pool")


@pytest.mark.parametrize("flavor", ["topology", "topology-k3s", "topology-kubeadm"])
def test_template_of_a_topology_comes_with_its_class(box: Sandbox, clusterctl: Clusterctl, flavor: str) -> None:
    objects = generated(clusterctl, flavor)
    asyncio.run(judge(box, objects))
    topology = objects["Cluster", "demo"]["spec"]["topology"]
    known = objects["ClusterClass", topology["classRef"]["name"]]["spec"]
    assert {obj["metadata"]["namespace"] for obj in objects.values()} == {"team-a"}
    assert topology["controlPlane"]["replicas"] == 3
    assert {each["name"] for each in topology["variables"]} <= {each["name"] for each in known["variables"]}
    classes = {each["class"] for each in known["workers"]["machineDeployments"]}
    assert {each["class"] for each in topology["workers"]["machineDeployments"]} <= classes


def generated(clusterctl: Clusterctl, flavor: str) -> dict[tuple[str, str], Obj]:
    """Objects by kind and name of a cluster `demo`, from the repository."""
    text = clusterctl(
        "generate", "cluster", "demo", "--target-namespace=team-a", f"--infrastructure=harvester:{VERSION}",
        f"--flavor={flavor}", "--kubernetes-version=v1.34.1", "--control-plane-machine-count=3",
        "--worker-machine-count=2",
    )  # fmt: skip
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}


async def judge(box: Sandbox, objects: dict[tuple[str, str], Obj]) -> None:
    """Have the core admit what was generated."""
    management = ApiClient(await own_configuration(str(box.kubeconfig("management"))), name="management")
    try:
        await manifests.apply(management, TALOS)
        await admitted(management, list(objects.values()))
    finally:
        await management.close()


async def test_from_init_to_delete(box: Sandbox, clusterctl: Clusterctl, webhooks: Server) -> None:
    management = ApiClient(await own_configuration(str(box.kubeconfig("management"))), name="management")
    try:
        await prepare(management)
        clusterctl("init", f"--infrastructure=harvester:{VERSION}")
        assert await installed(management) == f"registry.example.com/caphv:{VERSION}"
        await guarded(management, webhooks)
        await manifests.apply(management, cluster(box))
        endpoint = await until_provisioned(management)
        await until_initialized(management)
        clusterctl("upgrade", "apply", f"--infrastructure=caphv-system/harvester:{NEXT}")
        assert await installed(management) == f"registry.example.com/caphv:{NEXT}"
        await guarded(management, webhooks)
        assert await until_provisioned(management) == endpoint
        backup = await backs_up(management, clusterctl)
        await moves(box, management, clusterctl, webhooks)
        await restores(box, backup, clusterctl, webhooks)
        clusterctl("delete", "--infrastructure=harvester")
        await uninstalled(management)
    finally:
        await management.close()


def cluster(box: Sandbox) -> list[Obj]:
    """A cluster without machines, and its identity as `caphv identity create` writes it."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}}
    metadata = {"name": NAME, "namespace": NAME}
    identity = identity_secret("identity", NAME, box.kubeconfig("identity").read_text())
    infrastructure = {
        "apiVersion": HARVESTER_CLUSTERS.api_version,
        "kind": HARVESTER_CLUSTERS.kind,
        "metadata": metadata,
        "spec": {
            "targetNamespace": "moved-vms",
            "identitySecret": {"name": "identity", "namespace": NAME},
            "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "load-balancers"},
        },
    }
    reference = {"apiGroup": HARVESTER_CLUSTERS.group, "kind": HARVESTER_CLUSTERS.kind, "name": NAME}
    whole = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": metadata,
        "spec": {
            "infrastructureRef": reference,
            "controlPlaneRef": {"apiGroup": CONTROL_PLANES, "kind": "StandIn", "name": NAME},
        },
    }
    control_plane = {
        "apiVersion": f"{CONTROL_PLANES}/v1beta2",
        "kind": "StandIn",
        "metadata": metadata,
        "status": {"initialization": {"controlPlaneInitialized": True}},
    }
    return [namespace, identity, infrastructure, control_plane, whole]


async def until_provisioned(management: ApiClient) -> Obj:
    """The control plane endpoint, as soon as the core has it from the provider."""
    found: Obj = {}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = await management.get(CLUSTERS, NAME, NAME)
        status = found.get("status") or {}
        if (status.get("initialization") or {}).get("infrastructureProvisioned"):
            endpoint: Obj = found["spec"]["controlPlaneEndpoint"]
            return endpoint
        await asyncio.sleep(0.2)
    raise AssertionError(f"not provisioned: {found}")


async def until_initialized(management: ApiClient) -> None:
    """Wait until the core knows of the control plane; clusterctl wants that before a move."""
    conditions: list[Obj] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        conditions = ((await management.get(CLUSTERS, NAME, NAME)).get("status") or {}).get("conditions") or []
        if any(each["type"] == "ControlPlaneInitialized" and each["status"] == "True" for each in conditions):
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"no control plane: {conditions}")


async def installed(management: ApiClient) -> str:
    """Image of the Deployment that clusterctl installed; the inventory knows it, and defaults are filled in."""
    await management.get(INVENTORY, "infrastructure-harvester", "caphv-system")
    deployment = await management.get(DEPLOYMENTS, "caphv-controller-manager", "caphv-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"--log-level=info", "--concurrency=32"} <= set(container["args"])
    return str(container["image"])


async def guarded(management: ApiClient, webhooks: Server) -> None:
    """Lead the installed webhooks to the server, as Service and cert-manager would, and see that they judge."""
    for webhook in WEBHOOKS:
        configuration = await management.get(RESOURCES[webhook], NAMES[webhook])
        assert INJECT_ANNOTATION in configuration["metadata"]["annotations"]
        for entry in configuration["webhooks"]:
            service = entry["clientConfig"]["service"]
            assert (service["namespace"], service["name"], service["port"]) == ("caphv-system", SERVICE, 443)
            authority = base64.b64encode(webhooks.ca.certificate).decode()
            entry["clientConfig"] = {"url": f"{webhooks.url}{service['path']}", "caBundle": authority}
        await management.replace(RESOURCES[webhook], configuration)
    for version in VERSIONS:
        for kind in KINDS:
            await until(partial(judged, management, kind, version), f"{version} {kind} is judged")


async def judged(management: ApiClient, kind: str, version: str) -> bool:
    wrong_object, field = wrong(kind, version, "wrong")
    try:
        await management.create(resource(kind, version), wrong_object, dry_run=True)
    except ApiError as error:
        return error.status == 422 and field in str(error)
    return False


async def backs_up(management: ApiClient, clusterctl: Clusterctl) -> Path:
    """As in docs/tasks/backup-and-restore.md: all objects are copied to a directory, and the cluster is not paused."""
    folder = clusterctl.folder / "caphv-backup"
    folder.mkdir()
    clusterctl("move", "--to-directory", folder, "--namespace", NAME)
    saved = {yaml.safe_load(path.read_text())["kind"] for path in folder.iterdir()}
    assert {"Cluster", "HarvesterCluster", "Secret"} <= saved
    assert not (await management.get(CLUSTERS, NAME, NAME))["spec"].get("paused")
    return folder


@asynccontextmanager
async def another_management_cluster(
    box: Sandbox, name: str, clusterctl: Clusterctl, webhooks: Server
) -> AsyncIterator[tuple[ApiClient, Path]]:
    """With the kinds of the core and our release, where no core runs; yields a client and a kubeconfig."""
    server = ApiServer(box.folder, name)
    await server.start()
    kubeconfig = box.folder / f"{name}.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(server.kubeconfig()))
    async with server.client() as client:
        core_crds = [obj for obj in core.objects(binaries.cluster_api_manifests(), "", b"") if obj["kind"] == CRDS.kind]
        for each in core_crds:
            each["spec"]["conversion"] = {"strategy": "None"}
        capi = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": core.NAMESPACE}}
        await manifests.apply(client, [capi, *core_crds])
        await prepare(client)
        replace(clusterctl, kubeconfig=kubeconfig)("init", f"--infrastructure=harvester:{NEXT}")
        await guarded(client, webhooks)
        yield client, kubeconfig
    await server.stop()


async def moves(box: Sandbox, management: ApiClient, clusterctl: Clusterctl, webhooks: Server) -> None:
    """All of the cluster goes to another management cluster, the identity too, and Harvester notices nothing."""
    before = await management.get(HARVESTER_CLUSTERS, NAME, NAME)
    service = await service_of(box)
    async with another_management_cluster(box, "target", clusterctl, webhooks) as (other, kubeconfig):
        clusterctl("move", f"--namespace={NAME}", f"--to-kubeconfig={kubeconfig}")
        for resource, name in ((CLUSTERS, NAME), (HARVESTER_CLUSTERS, NAME), (SECRETS, "identity")):
            with pytest.raises(NotFound):
                await management.get(resource, name, NAME)
            await other.get(resource, name, NAME)
        assert (await other.get(HARVESTER_CLUSTERS, NAME, NAME))["spec"] == before["spec"]
    assert uid_of(await service_of(box)) == uid_of(service)


async def restores(box: Sandbox, backup: Path, clusterctl: Clusterctl, webhooks: Server) -> None:
    """As in docs/tasks/backup-and-restore.md: a new management cluster continues from the backup."""
    service = await service_of(box)
    async with another_management_cluster(box, "restored", clusterctl, webhooks) as (other, kubeconfig):
        clusterctl("move", "--from-directory", backup, "--to-kubeconfig", kubeconfig)
        assert not (await other.get(CLUSTERS, NAME, NAME))["spec"].get("paused")
        async with our_provider(box.folder, kubeconfig):
            # Nothing proves that the Service is its own, so somebody has to say so.
            waiting = partial(mentions, kind="LoadBalancerReady", text=f"{NAME}/{NAME}")
            await seen(other, NAME, HARVESTER_CLUSTERS, waiting)
            adopt = {"metadata": {"annotations": {"caphv.io/adopt": "true"}}}
            await other.patch(HARVESTER_CLUSTERS, NAME, NAME, adopt)
            found = await seen(other, NAME, HARVESTER_CLUSTERS, lambda obj: holds(obj, "Ready"))
        after = await service_of(box)
        assert uid_of(after) == uid_of(service)
        assert (
            annotations_of(after)["caphv.io/owner-uid"]
            == uid_of(found)
            != annotations_of(service)["caphv.io/owner-uid"]
        )


def mentions(obj: Obj, *, kind: str, text: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "False" and text in each["message"] for each in conditions)


async def service_of(box: Sandbox) -> Obj:
    """The Service on Harvester that has the address of the control plane."""
    harvester = ApiClient(await own_configuration(str(box.kubeconfig("harvester"))), name="harvester")
    try:
        (service,) = (await harvester.list(SERVICES, "moved-vms"))["items"]
        return service
    finally:
        await harvester.close()


async def uninstalled(management: ApiClient) -> None:
    """All but CRDs and namespace is gone, as clusterctl does without further options."""
    gone = {DEPLOYMENTS: "caphv-controller-manager", INVENTORY: "infrastructure-harvester"}
    for where, name in (gone | {RESOURCES[webhook]: NAMES[webhook] for webhook in WEBHOOKS}).items():
        with pytest.raises(NotFound):
            await management.get(where, name, "caphv-system" if where.namespaced else "")
    await management.get(NAMESPACES, "caphv-system")
    await management.get(CRDS, "harvesterclusters.infrastructure.cluster.x-k8s.io")
