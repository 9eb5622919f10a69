"""The real clusterctl with a local repository of our release: init, generate cluster, move, upgrade and delete.

No Pods run on the management API server, so the sandbox's own process is the provider, and a process next to it serves
the webhooks: the configurations that clusterctl installs are led there, in place of Service and cert-manager. The
Deployment that it installs is checked, not run.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from caphv.api.object import DEPLOYMENTS, NAMESPACES, SECRETS, SERVICES, Obj, Resource, annotations_of, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.clientconfig import own_configuration
from caphv.runtime.errors import ApiError, NotFound
from reconciler.harvester.identitysecrets import identity_secret
from sandbox import manifests
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.state import SandboxSettings
from tests.support.clusterctl import CONTROL_PLANES, INVENTORY, NEXT, VERSION, Clusterctl, furnish, prepare, repository
from tests.support.e2e import admitted, holds, our_provider, seen
from tests.support.waiting import until
from tests.support.webhooks import VERSIONS, Server, resource, wrong
from webhooks.admission import KINDS
from webhooks.configuration import INJECT_ANNOTATION, NAMES, RESOURCES, SERVICE
from webhooks.handler import WEBHOOKS

pytestmark = pytest.mark.e2e

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
STAND_INS = Resource(CONTROL_PLANES, "v1beta2", "standins", "StandIn")
NAME = "moved"
# What a cluster without machines consists of.
MOVED = {CLUSTERS: NAME, HARVESTER_CLUSTERS: NAME, STAND_INS: NAME, SECRETS: "identity"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    binaries.prepare()
    box = Sandbox(tmp_path_factory.mktemp("clusterctl"), SandboxSettings(older_versions=False))
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
    asyncio.run(admit_generated(box, objects))
    assert {obj["metadata"]["namespace"] for obj in objects.values()} == {"team-a"}
    assert objects[kind, "demo-control-plane"]["spec"]["replicas"] == 3
    assert objects["MachineDeployment", "demo-workers"]["spec"]["replicas"] == 2
    spec = objects["HarvesterCluster", "demo"]["spec"]
    assert spec["loadBalancerConfig"]["ipamType"] == ("dhcp" if flavor == "dhcp" else "pool")


@pytest.mark.parametrize("flavor", ["topology", "stig", "topology-k3s", "topology-kubeadm"])
def test_template_of_a_topology_comes_with_its_class(box: Sandbox, clusterctl: Clusterctl, flavor: str) -> None:
    objects = generated(clusterctl, flavor)
    asyncio.run(admit_generated(box, objects))
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
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in manifests.parse(text) if obj}


async def admit_generated(box: Sandbox, objects: dict[tuple[str, str], Obj]) -> None:
    """Have the core admit what was generated."""
    management = ApiClient(await own_configuration(str(box.kubeconfig("management"))), name="management")
    try:
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
        async with another_management_cluster(box, clusterctl, webhooks) as (other, kubeconfig):
            await moves(box, management, clusterctl, other, kubeconfig)
            await everything_is_lost(other)
            await restores(box, backup, clusterctl, other, kubeconfig)
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
            "controlPlaneRef": {"apiGroup": STAND_INS.group, "kind": STAND_INS.kind, "name": NAME},
        },
    }
    control_plane = {
        "apiVersion": STAND_INS.api_version,
        "kind": STAND_INS.kind,
        "metadata": metadata,
        "status": {"initialization": {"controlPlaneInitialized": True}},
    }
    return [namespace, identity, infrastructure, control_plane, whole]


async def until_provisioned(management: ApiClient) -> Obj:
    """The control plane endpoint, as soon as the core has it from the provider."""
    found: Obj = {}

    async def provisioned() -> bool:
        found.update(await management.get(CLUSTERS, NAME, NAME))
        initialization = (found.get("status") or {}).get("initialization") or {}
        return bool(initialization.get("infrastructureProvisioned"))

    await until(provisioned, lambda: f"not provisioned: {found}")
    endpoint: Obj = found["spec"]["controlPlaneEndpoint"]
    return endpoint


async def until_initialized(management: ApiClient) -> None:
    """Wait until the core knows of the control plane; clusterctl wants that before a move."""

    async def initialized() -> bool:
        return holds(await management.get(CLUSTERS, NAME, NAME), "ControlPlaneInitialized")

    await until(initialized, "the control plane is not initialized")


async def installed(management: ApiClient) -> str:
    """Image of the Deployment that clusterctl installed; the inventory knows it, and defaults are filled in."""
    await management.get(INVENTORY, "infrastructure-harvester", "caphv-system")
    deployment = await management.get(DEPLOYMENTS, "caphv-controller-manager", "caphv-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"--log-level=info", "--concurrency=32"} <= set(container["args"])
    return str(container["image"])


async def guarded(management: ApiClient, webhooks: Server) -> None:
    """Lead the installed webhooks to the server, as Service and cert-manager would, and see that they validate."""
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
            await until(partial(validated, management, kind, version), f"{version} {kind} is validated")


async def validated(management: ApiClient, kind: str, version: str) -> bool:
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
    box: Sandbox, clusterctl: Clusterctl, webhooks: Server
) -> AsyncIterator[tuple[ApiClient, Path]]:
    """With the kinds of the core and our release, where no core runs; yields a client and a kubeconfig."""
    server = ApiServer(box.folder, "another")
    await server.start()
    kubeconfig = box.folder / "another.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(server.kubeconfig()))
    async with server.client() as client:
        await furnish(client)
        replace(clusterctl, kubeconfig=kubeconfig)("init", f"--infrastructure=harvester:{NEXT}")
        await guarded(client, webhooks)
        yield client, kubeconfig
    await server.stop()


async def moves(
    box: Sandbox, management: ApiClient, clusterctl: Clusterctl, other: ApiClient, kubeconfig: Path
) -> None:
    """All of the cluster goes to another management cluster, the identity too, and Harvester notices nothing."""
    before = await management.get(HARVESTER_CLUSTERS, NAME, NAME)
    service = await service_of(box)
    clusterctl("move", f"--namespace={NAME}", f"--to-kubeconfig={kubeconfig}")
    for kind, name in MOVED.items():
        with pytest.raises(NotFound):
            await management.get(kind, name, NAME)
        await other.get(kind, name, NAME)
    assert (await other.get(HARVESTER_CLUSTERS, NAME, NAME))["spec"] == before["spec"]
    assert uid_of(await service_of(box)) == uid_of(service)


async def everything_is_lost(other: ApiClient) -> None:
    """The management cluster is a new one again: no object of the cluster is there, and no one could delete it."""
    for kind, name in MOVED.items():
        await other.patch(kind, name, NAME, {"metadata": {"finalizers": None}})
        await other.delete(kind, name, NAME)
        with pytest.raises(NotFound):
            await other.get(kind, name, NAME)


async def restores(box: Sandbox, backup: Path, clusterctl: Clusterctl, other: ApiClient, kubeconfig: Path) -> None:
    """As in docs/tasks/backup-and-restore.md: a new management cluster continues from the backup."""
    service = await service_of(box)
    clusterctl("move", "--from-directory", backup, "--to-kubeconfig", kubeconfig)
    assert not (await other.get(CLUSTERS, NAME, NAME))["spec"].get("paused")
    async with our_provider(box.folder, kubeconfig):
        # Nothing proves that the Service is its own, so a user has to say so.
        waiting = partial(mentions, kind="LoadBalancerReady", text=f"{NAME}/{NAME}")
        await seen(other, NAME, HARVESTER_CLUSTERS, waiting)
        adopt = {"metadata": {"annotations": {"caphv.io/adopt": "true"}}}
        await other.patch(HARVESTER_CLUSTERS, NAME, NAME, adopt)
        found = await seen(other, NAME, HARVESTER_CLUSTERS, lambda obj: holds(obj, "Ready"))
    after = await service_of(box)
    assert uid_of(after) == uid_of(service)
    assert annotations_of(after)["caphv.io/owner-uid"] == uid_of(found) != annotations_of(service)["caphv.io/owner-uid"]


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
    """Only CRDs and namespace remain, as clusterctl does without further options."""
    gone = {DEPLOYMENTS: "caphv-controller-manager", INVENTORY: "infrastructure-harvester"}
    for where, name in (gone | {RESOURCES[webhook]: NAMES[webhook] for webhook in WEBHOOKS}).items():
        with pytest.raises(NotFound):
            await management.get(where, name, "caphv-system" if where.namespaced else "")
    await management.get(NAMESPACES, "caphv-system")
    await management.get(CRDS, "harvesterclusters.infrastructure.cluster.x-k8s.io")
