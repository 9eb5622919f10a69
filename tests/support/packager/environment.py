"""The packager as a process against a real API server and a real repository; a test plays Cluster API and Fleet."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from caphv import data
from caphv.api.object import EVENTS, NAMESPACES, Key, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound, TooManyRequests
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.repositories import Origin
from tests.support.process import Caphv
from tests.support.waiting import until

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
MACHINES = Resource("cluster.x-k8s.io", "v1beta2", "machines", "Machine")
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
HARVESTER_CLUSTERS = Resource("infrastructure.cluster.x-k8s.io", "v1beta1", "harvesterclusters", "HarvesterCluster")
CONTROL_PLANES = Resource("controlplane.cluster.x-k8s.io", "v1beta2", "rke2controlplanes", "RKE2ControlPlane")
FLEET_CLUSTERS = Resource("fleet.cattle.io", "v1alpha1", "clusters", "Cluster")
GIT_REPOS = Resource("fleet.cattle.io", "v1alpha1", "gitrepos", "GitRepo")
READY = "AddonBundlesReady"
START_SECONDS = 60.0
_numbers = itertools.count(1)


def crd(resource: Resource) -> Obj:
    """A kind of another client, with any content and without webhooks."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": {"kind": resource.kind, "plural": resource.plural},
            "scope": "Namespaced",
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def install_kinds_of(client: ApiClient, files: Mapping[str, bytes]) -> None:
    """Install a CRD with any content for each kind in the manifests of a repository that the API server lacks."""
    for obj in {(obj["apiVersion"], obj["kind"]): obj for obj in _objects(files)}.values():
        group, _, version = obj["apiVersion"].rpartition("/")
        if ("." in group and not group.endswith(".k8s.io")) or group.endswith(".x-k8s.io"):
            resource = Resource(group, version, f"{obj['kind'].lower()}s", obj["kind"])
            await manifests.apply(client, [crd(resource)])


def _objects(files: Mapping[str, bytes]) -> Iterator[Obj]:
    for path, content in files.items():
        if path.endswith(".yaml") and not path.endswith("fleet.yaml"):
            yield from (obj for obj in yaml.safe_load_all(content) if obj and obj.get("kind"))


async def install(server: ApiServer, *kinds: Resource) -> None:
    """Put our CRDs and those of others on an API server."""
    ours = manifests.read(sorted(data.folder("deploy/crds").glob("infrastructure*.yaml")))
    async with server.client() as client:
        await manifests.apply(client, [*ours, *map(crd, kinds)])


class Packager(Caphv):
    """One `caphv packager run`, or another command that runs it; `options` are further options of it."""

    def __init__(
        self, folder: Path, server: ApiServer, *options: str, command: tuple[str, ...] = ("packager", "run")
    ) -> None:
        super().__init__(folder, f"packager-{next(_numbers)}", "--log-level=debug", *options, command=command)
        self.run_as(server, "packager", "system:masters")

    async def until_idle(self) -> None:
        """Wait until it has checked everything again and found nothing to do."""
        before = await self._unchanged()

        async def checked_again() -> bool:
            # The sync that is under way may have begun before.
            return await self._unchanged() >= before + 2

        await until(checked_again, lambda: "the packager does not sync, or always finds a change")

    async def _unchanged(self) -> float:
        return await self.value("caphv_packager_syncs_total", result="unchanged") or 0


class Case:
    """A namespace of a test's own, a repository, and the packagers that keep it true to that namespace."""

    def __init__(self, server: ApiServer, client: ApiClient, folder: Path, origin: Origin) -> None:
        self.server, self.client, self.folder, self.origin = server, client, folder, origin
        self.namespace = f"team-{next(_numbers)}"
        self._packagers: list[Packager] = []

    def packager(self, *options: str, url: str = "") -> Packager:
        """One that is not started; it works fast."""
        own = (f"--repo={url or self.origin.url}", f"--namespace={self.namespace}", "--debounce=0.3")
        packager = Packager(self.folder, self.server, *own, *options)
        self._packagers.append(packager)
        return packager

    async def running(self, *options: str, url: str = "") -> Packager:
        packager = self.packager(*options, url=url)
        await packager.start()
        return packager

    def provider(self, option: str, environment: Mapping[str, str]) -> Packager:
        """The provider with the packager next to it."""
        own = (option, f"--namespace={self.namespace}")
        packager = Packager(self.folder, self.server, *own, command=("run",))
        packager.environment.update(environment)
        self._packagers.append(packager)
        return packager

    async def close(self) -> None:
        for packager in self._packagers:
            await packager.stop()

    # Objects

    async def cluster(
        self,
        name: str,
        *,
        values: Mapping[str, Any] | None = None,
        control_plane: bool = True,
        topology: Obj | None = None,
    ) -> None:
        """Create a Cluster with its HarvesterCluster and control plane, as Cluster API's core leaves them."""
        identity = {"name": "identity", "namespace": "default"}
        await self.create(
            HARVESTER_CLUSTERS,
            name,
            {
                "targetNamespace": "default",
                "identitySecret": identity,
                "server": "https://harvester.example.com",
                "loadBalancerConfig": {"ipamType": "dhcp"},
            },
        )
        if control_plane:
            await self.control_plane(name)
        spec: Obj = {"infrastructureRef": _ref(HARVESTER_CLUSTERS, name)}
        spec |= {"topology": topology} if topology else {"controlPlaneRef": _ref(CONTROL_PLANES, name)}
        annotations = {"addons.caphv.io/values": json.dumps(values)} if values is not None else {}
        await self.create(CLUSTERS, name, spec, annotations)

    async def control_plane(self, name: str, cni: str = "calico") -> None:
        spec = {"replicas": 3, "version": "v1.34.2+rke2r1", "serverConfig": {"cni": cni}}
        await self.create(CONTROL_PLANES, name, spec)

    async def cluster_class(self, name: str) -> None:
        template = {"templateRef": {"kind": "HarvesterClusterTemplate", "name": name}}
        await self.create(CLASSES, name, {"infrastructure": template})

    async def namespace_for_leases(self) -> None:
        with contextlib.suppress(AlreadyExists):
            await self.client.create(NAMESPACES, _object(NAMESPACES, {"name": "caphv-system"}))

    async def create(
        self,
        resource: Resource,
        name: str,
        spec: Obj,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        metadata: Obj = {"name": name, "namespace": self.namespace}
        metadata |= {"annotations": dict(annotations or {}), "labels": dict(labels or {})}
        await self.client.create(resource, {**_object(resource, metadata), "spec": spec})

    async def set_values(self, name: str, values: Mapping[str, Any]) -> None:
        await self.annotate(name, **{"addons.caphv.io/values": json.dumps(values)})

    async def annotate(self, name: str, **annotations: str | None) -> None:
        await self.client.patch(CLUSTERS, name, self.namespace, {"metadata": {"annotations": annotations}})

    async def delete(self, name: str) -> None:
        for resource in (CLUSTERS, HARVESTER_CLUSTERS, CONTROL_PLANES):
            await self.client.delete(resource, name, self.namespace)

    async def condition(self, name: str) -> Obj:
        found = await self.client.get(HARVESTER_CLUSTERS, name, self.namespace)
        rows = (found.get("status") or {}).get("conditions") or []
        return next((row for row in rows if row["type"] == READY), {})

    async def until_condition(self, name: str, status: str, reason: str = "", part: str = "") -> Obj:
        found: Obj = {}

        async def holds() -> bool:
            nonlocal found
            found = await self.condition(name)
            return (
                found.get("status") == status
                and (not reason or found.get("reason") == reason)
                and part in found.get("message", "")
            )

        await until(holds, lambda: f"{name}: wanted {status} {reason} {part!r}, has {found}")
        return found

    async def until_lease_event(self, reason: str, part: str) -> Obj:
        return await self.until_event(reason, part, namespace="caphv-system")

    async def until_event(self, reason: str, part: str = "", *, namespace: str = "") -> Obj:
        found: list[Obj] = []

        async def there() -> bool:
            listed = await self.client.list(EVENTS, namespace or self.namespace)
            found[:] = [row for row in listed["items"] if row["reason"] == reason and part in row["message"]]
            return bool(found)

        await until(there, lambda: f"no Event {reason} {part!r}")
        return found[0]

    async def own(self, name: str) -> None:
        """Make the Cluster the owner of its HarvesterCluster, which the provider waits for."""
        cluster = await self.client.get(CLUSTERS, name, self.namespace)
        owner = {"apiVersion": CLUSTERS.api_version, "kind": CLUSTERS.kind, "name": name}
        owners = [{**owner, "uid": cluster["metadata"]["uid"], "controller": True}]
        await self.client.patch(HARVESTER_CLUSTERS, name, self.namespace, {"metadata": {"ownerReferences": owners}})

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)

    # Repository

    def count(self) -> int:
        """Commits on the branch, 0 where there is none."""
        branches = {"main"} & set(self.origin.branches())
        return self.origin.count() if branches else 0

    def mine(self, name: str) -> set[str]:
        """Files of a cluster in the repository, relative to its folder."""
        top = f"clusters/{self.namespace}/{name}/"
        files = self.origin.files() if self.count() else {}
        return {path.removeprefix(top) for path in files if path.startswith(top)}

    async def until_pruned(self, *names: str) -> None:
        """Wait until the repository has no file of these clusters."""

        async def pruned() -> bool:
            return not any(self.mine(name) for name in names)

        await until(pruned, lambda: f"still there: {[name for name in names if self.mine(name)]}")

    async def until_count(self, number: int) -> None:
        await until(self._counts(number), lambda: f"wanted {number} commits, there are {self.count()}")

    def _counts(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def counts() -> bool:
            return self.count() == number

        return counts


def _object(resource: Resource, metadata: Obj) -> Obj:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _ref(resource: Resource, name: str) -> Obj:
    return {"apiGroup": resource.group, "kind": resource.kind, "name": name}


@contextlib.asynccontextmanager
async def opened(server: ApiServer, folder: Path, origin: Origin) -> AsyncIterator[Case]:
    """A case for as long as the block lasts; its objects and processes go with it."""
    async with server.client() as client:
        case = Case(server, client, folder, origin)
        await client.create(NAMESPACES, _object(NAMESPACES, {"name": case.namespace}))
        try:
            yield case
        finally:
            await case.close()
            for resource in (CLUSTERS, HARVESTER_CLUSTERS, CONTROL_PLANES):
                # A kind that is new on this server has no objects of the case yet.
                with contextlib.suppress(NotFound, TooManyRequests):
                    for obj in (await client.list(resource, case.namespace))["items"]:
                        await client.delete(resource, obj["metadata"]["name"], case.namespace)
