"""What deleted clusters left on a Harvester, on servers in memory, and its deletion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from caphv.api import names, resources
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    Resource,
)
from caphv.api.ownership import Owner, record
from operations.leftovers.decision import LeftoverReport, examine
from operations.leftovers.deletion import LeftoverDeleter
from operations.leftovers.reading import read_state
from operations.leftovers.release import Deletion, Outcome
from operations.read.harvesterclient import HarvesterClient
from operations.read.objects import Unseen
from operations.read.owners import read_owners
from tests.support.memoryserver import MemoryServer

US, OTHERS = "management-us", "management-others"
VMS, BALANCERS, POOLS = resources.VIRTUAL_MACHINES, resources.LOAD_BALANCERS, resources.IP_POOLS
MACHINE = Owner("HarvesterMachine", "team", "gone", "gone-uid", US)
CLUSTER = Owner("HarvesterCluster", "team", "shop", "shop-uid", US)
MARK = f"{names.ADDRESS_HOLDER_PREFIX}10.0.0.10"


def obj(resource: Resource, name: str, owner: Owner | None, **fields: Any) -> Obj:
    metadata: Obj = {"name": name, "annotations": record(owner) if owner else {}}
    if resource.namespaced:
        metadata["namespace"] = "vms"
    metadata |= fields.pop("metadata", {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}


def vm(name: str = "gone", owner: Owner | None = MACHINE, **metadata: Any) -> Obj:
    volumes = [
        {"name": "disk-0", "persistentVolumeClaim": {"claimName": f"{name}-disk-0-abcde"}},
        {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": f"{name}-cloud-init"}}},
    ]
    return obj(
        VMS,
        name,
        owner,
        metadata=metadata,
        spec={"template": {"spec": {"volumes": volumes}}},
        status={"printableStatus": "Stopped"},
    )


def pool(name: str, owner: Owner | None, **allocated: str) -> Obj:
    spec = {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]}
    held = {address.replace("_", ".").strip("."): holder for address, holder in allocated.items()}
    found = obj(POOLS, name, owner, spec=spec, status={"allocated": held, "available": 10 - len(held), "total": 10})
    found["metadata"]["annotations"] |= {f"{names.ADDRESS_HOLDER_PREFIX}{address}": US[:8] for address in held}
    return found


def everything() -> list[Obj]:
    """Return what a cluster with a machine has."""
    subjects = [
        {"kind": "ServiceAccount", "namespace": "vms", "name": "shop"},
        {"kind": "ServiceAccount", "namespace": "vms", "name": "other"},
    ]
    role = {"name": names.CLOUD_PROVIDER_ROLE}
    shared = obj(CLUSTER_ROLE_BINDINGS, f"{names.GUESTS_PREFIX}vms", None, roleRef=role, subjects=subjects)
    return [
        vm(),
        obj(PERSISTENT_VOLUME_CLAIMS, "gone-disk-0-abcde", MACHINE),
        obj(SECRETS, "gone-cloud-init", MACHINE),
        obj(SECRETS, "shop-token", CLUSTER),
        obj(BALANCERS, "team-shop-lb", CLUSTER),
        obj(SERVICES, "team-shop-lb", CLUSTER, metadata={"labels": {names.SERVICE_LB_LABEL: "true"}}),
        obj(CLUSTER_ROLE_BINDINGS, "shop", CLUSTER, roleRef=role, subjects=subjects[:1]),
        obj(resources.VM_BACKUPS, "former-replaced", CLUSTER),
        obj(SERVICE_ACCOUNTS, "shop", CLUSTER),
        pool("team-shop-vm-ippool", CLUSTER, _10_0_0_10="team/gone"),
        shared,
    ]


KINDS = (
    VMS,
    resources.VIRTUAL_MACHINE_INSTANCES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    BALANCERS,
    SERVICES,
    resources.VM_BACKUPS,
    CLUSTER_ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    POOLS,
)


@dataclass
class Sides:
    """A management cluster and a Harvester, with the outcomes of deletions."""

    harvester: Any
    management: Any
    reported: list[Deletion] = field(default_factory=list)

    @classmethod
    def of(cls, *objs: Obj, management: tuple[Obj, ...] = (), uid: str = US) -> Sides:
        served = [(kind.api_version, kind.kind) for kind in KINDS]
        kube_system = obj(NAMESPACES, "kube-system", None, metadata={"uid": uid})
        ours = [(kind.api_version, kind.kind) for kind in (resources.HARVESTER_MACHINES, resources.HARVESTER_CLUSTERS)]
        return cls(
            MemoryServer(*objs, served=served, server="https://harvester"),
            MemoryServer(kube_system, *management, served=ours),
        )

    @property
    def client(self) -> HarvesterClient:
        return HarvesterClient(self.harvester, frozenset({"vms"}))

    async def read(self, *, running: bool = False) -> tuple[LeftoverReport, list[Unseen]]:
        owners = await read_owners(self.management, "team")
        state, unseen = await read_state(self.client, owners, include_running=running)
        return examine(state), unseen

    async def delete(
        self, report: LeftoverReport | None = None, seconds: float = 30.0, *, running: bool = False
    ) -> dict[str, Outcome]:
        """Delete what is left over; returns the outcomes of this run."""
        report = report or (await self.read(running=running))[0]
        self.reported.clear()
        deleter = LeftoverDeleter(
            self.management, self.client, "team", self.reported.append, seconds=seconds, include_running=running
        )
        await deleter.delete(report)
        return {each.object: each.outcome for each in self.reported}

    def left(self) -> list[str]:
        """Return what is on Harvester."""
        return [f"{kind.kind} {each['metadata']['name']}" for kind in KINDS for each in self.harvester.stored(kind)]


def again(kind: Resource, name: str, uid: str) -> Obj:
    """Return an owner that was created again."""
    metadata = {"namespace": "team", "uid": uid}
    return obj(kind, name, None, metadata=metadata, spec={"targetNamespace": "vms"})
