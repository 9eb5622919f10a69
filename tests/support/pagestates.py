"""States of the live page, made of the objects that a management cluster and a Harvester would have.

Tests check them in a browser, and `tools.website.livepage` takes pictures of them. All times are relative to `NOW`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from caphv.api.object import Key, Obj
from operations.read.objects import HarvesterObjects, ManagementObjects
from operations.status.assembly import overview_of
from operations.status.details import with_details
from operations.status.healthchecks import replacements_of
from operations.status.model import Provider
from operations.status.page.content import content_of
from tests.support.clusters import NOW, Builder, ago, condition, counts

NEWER = "v1.36.3+rke2r1"
SERVER = "https://172.16.0.10:6443"
OTHER_SERVER = "https://10.20.0.10:6443"
_HOSTS = 3


class Site:
    """Clusters on Harvesters, which a state changes."""

    def __init__(self) -> None:
        self.objects = ManagementObjects(server="https://management.example.com")
        self.harvesters: dict[Key, HarvesterObjects] = {}
        self.provider: Provider | None = Provider("caphv-system/lease")
        self._hosts = itertools.cycle(range(1, _HOSTS + 1))

    def add(self, builder: Builder, namespace: str, server: str = SERVER) -> Builder:
        """Place the machines of a cluster on hosts, and add it."""
        builder.harvester_cluster["spec"]["server"] = server
        builder.harvester_cluster["spec"]["identitySecret"]["namespace"] = namespace
        builder.harvester_cluster["status"]["ready"] = True
        for number, machine in zip(self._hosts, builder.harvester_machines.values(), strict=False):
            machine["status"] |= {"virtualMachine": {"host": f"harvester-{number}"}}
            machine["status"]["failureDomain"] = f"zone-{number}"

        added = builder.objects()
        for name in ("clusters", "machines", "machine_deployments", "control_planes", "harvester_clusters"):
            self._extend(name, getattr(added, name), namespace)
        self._extend("harvester_machines", added.harvester_machines, namespace)
        return builder

    def check(self, builder: Builder, **status: object) -> None:
        """Add a MachineHealthCheck that replaces machines whose Node is not ready for five minutes."""
        spec = {
            "clusterName": builder.name,
            "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": builder.name}},
            "checks": {
                "unhealthyNodeConditions": [
                    {"type": "Ready", "status": status, "timeoutSeconds": 300} for status in ("False", "Unknown")
                ]
            },
        }
        metadata = {"name": builder.name, "namespace": builder.cluster["metadata"]["namespace"]}
        self.objects.machine_health_checks.append({"metadata": metadata, "spec": spec, "status": status})

    def pools(self, *free: tuple[str, int, int]) -> None:
        """Give Harvester pools by name, size and what is allocated."""
        pools = [_pool(name, total, used) for name, total, used in free]
        harvester = HarvesterObjects(server=SERVER, pools=pools)
        self.harvesters = {Key("team-a", "identity"): harvester}

    def event(self, about: Obj, reason: str, message: str, kind: str = "Normal", **delta: float) -> None:
        """Add an Event of an object."""
        metadata = about["metadata"]
        place = {"kind": about["kind"], "namespace": metadata["namespace"], "name": metadata["name"]}
        time = {"lastTimestamp": ago(**delta)}
        self.objects.events.append(
            {"metadata": {}, "involvedObject": place, "type": kind, "reason": reason, "message": message, **time}
        )

    def content(self) -> str:
        """The state as the page gets it."""
        overview = replace(overview_of(self.objects, NOW), provider=self.provider)
        overview = with_details(overview, self.harvesters, {}, NOW)
        fault = "provider is silent" if overview.silent else ""
        content = content_of(overview, self.objects.events, replacements_of(self.objects))
        return json.dumps({**content, "fault": fault})

    def _extend(self, name: str, objs: Iterable[Obj], namespace: str) -> None:
        for obj in objs:
            obj["metadata"]["namespace"] = namespace
            getattr(self.objects, name).append(obj)


def cluster(name: str, control_planes: int = 3, workers: int = 2) -> Builder:
    """A healthy cluster."""
    return Builder(name, workers, f"{name}-", control_planes=control_planes)


def one() -> Site:
    """One healthy cluster."""
    site = Site()
    production = site.add(cluster("production"), "team-a")
    site.pools(("machines", 254, 5), ("load-balancers", 62, 1))
    site.event(production.cluster, "TopologyUpdate", "Updated Cluster", minutes=12)
    return site


def thirty() -> Site:
    """Thirty clusters, some of them with problems."""
    site = Site()
    for number in range(1, 31):
        builder = site.add(cluster(f"shop-{number}", workers=3), f"team-{number % 5 + 1}")
        if number in (4, 9):
            lose_vm(site, builder, f"shop-{number}-worker-2")
        elif number == 17:
            upgrade(builder)
    site.pools(("machines", 254, 180), ("machines-b", 62, 61), ("load-balancers", 62, 30))
    return site


def three_hundred() -> Site:
    """Three hundred clusters: all that differ from the others are to be seen at once."""
    site = Site()
    for number in range(1, 301):
        builder = site.add(cluster(f"edge-{number:03}", workers=2), f"region-{number % 12 + 1}")
        if number % 60 == 7:
            lose_vm(site, builder, f"edge-{number:03}-worker-1")
        elif number % 75 == 20:
            upgrade(builder)
        elif number == 150:
            forget_identity(builder)
    site.pools(*((f"machines-{number}", 254, 100 + number) for number in range(1, 31)))
    return site


def creating() -> Site:
    """A cluster whose first machine runs, and whose second one starts."""
    site = Site()
    builder = site.add(cluster("production"), "team-a")
    _age(builder, minutes=2)
    builder.cluster["status"] = {
        "phase": "Provisioned",
        "initialization": {"infrastructureProvisioned": True},
        "conditions": [condition("Available", "False", "NotAvailable", "* WorkersAvailable: waiting")],
        "controlPlane": counts(3) | {"replicas": 2, "availableReplicas": 1, "upToDateReplicas": 2},
        "workers": counts(2) | {"availableReplicas": 0},
    }
    builder.control_plane["status"] |= {"replicas": 2, "availableReplicas": 1, "upToDateReplicas": 2}
    _remove(site, builder, "production-cp-3")
    _pend(builder, "production-cp-2", "VMProvisioningInProgress", "the VM starts: waiting for its address")
    for name in ("production-worker-1", "production-worker-2"):
        message = "waiting for bootstrap data: Waiting for Cluster control plane to be initialized"
        _pend(builder, name, "VMProvisioningInProgress", message)
    site.event(builder.harvester_cluster, "LoadBalancerCreated", "created load balancer 172.16.3.40", seconds=90)
    site.event(builder.harvester_machines["production-cp-1"], "VMCreated", "created VM on Harvester", seconds=70)
    return site


def upgrading() -> Site:
    """A cluster of which one machine has the newer version."""
    site = Site()
    upgrade(site.add(cluster("production"), "team-a"))
    site.add(cluster("staging", 1, 1), "team-b")
    return site


def degraded() -> Site:
    """A lost VM whose Machine will be replaced, and add-ons that are not there in another cluster."""
    site = Site()
    lose_vm(site, site.add(cluster("shop", 1, 3), "team-b"), "shop-worker-2")
    bare = site.add(cluster("bare", 1, 1), "team-a")
    message = "the workload cluster has no cloud provider and no CSI driver, and no packager has reported its add-ons"
    missing = condition("AddonBundlesReady", "False", "AddonBundlesMissing", message, minutes=20)
    bare.harvester_cluster["status"]["conditions"].append(missing)
    forget_identity(site.add(cluster("wrong", 3, 2), "team-d"))
    expiring = site.add(cluster("expiring", 1, 1), "team-c")
    message = "identity Secret team-c/identity: the credentials expire at 2026-11-25T12:00:00Z"
    expiring.harvester_cluster["status"]["conditions"].append(
        condition("IdentityUpToDate", "False", "IdentityExpiring", message, hours=5)
    )
    return site


def outage() -> Site:
    """Two Harvesters that do not answer, one of them with four clusters."""
    site = Site()
    for number in range(1, 5):
        _disconnect(site.add(cluster(f"shop-{number}"), "team-a"), minutes=4 + number)
    _disconnect(site.add(cluster("remote", 1, 1), "team-b", OTHER_SERVER), minutes=2)
    return site


def host_failure() -> Site:
    """A host of Harvester that is lost with its machines."""
    site = Site()
    builder = site.add(cluster("production"), "team-a")
    site.check(builder)
    lost = [
        name
        for name, machine in builder.harvester_machines.items()
        if machine["status"]["virtualMachine"]["host"] == "harvester-2"
    ]
    for name in lost:
        message = "* Node.Ready: Kubelet stopped posting node status."
        builder.machines[name]["status"]["conditions"] = [
            condition("Ready", "False", "NotReady", message, minutes=2),
            condition("NodeReady", "Unknown", "NodeStatusUnknown", message, minutes=2),
            condition("NodeHealthy", "Unknown", "NodeStatusUnknown", message, minutes=2),
        ]
    builder.cluster["status"]["controlPlane"]["availableReplicas"] = 2
    builder.cluster["status"]["workers"]["availableReplicas"] = 1
    hosts = [_host(number, ready="False" if number == 2 else "True") for number in range(1, _HOSTS + 1)]
    vms, instances = [], []
    for name, machine in builder.harvester_machines.items():
        metadata = {"name": name, "namespace": "vms"}
        vms.append({"metadata": metadata, "spec": {}})
        instances.append({"metadata": metadata, "status": {"nodeName": machine["status"]["virtualMachine"]["host"]}})
    site.harvesters[Key("team-a", "identity")] = HarvesterObjects(
        server=SERVER, hosts=hosts, vms=vms, instances=instances, namespaces=frozenset({"vms"})
    )
    return site


def deleting() -> Site:
    """A cluster whose machines are being deleted."""
    site = Site()
    builder = site.add(cluster("production", 1, 2), "team-a")
    for obj in (builder.cluster, *builder.machines.values(), *builder.harvester_machines.values()):
        obj["metadata"]["deletionTimestamp"] = ago(minutes=1)
    return site


def empty() -> Site:
    """A management cluster without clusters."""
    return Site()


def silent() -> Site:
    """Clusters whose provider does not run."""
    site = one()
    site.provider = Provider(
        "caphv-system/lease",
        silent=True,
        since=ago(minutes=6),
        cause="silent: Lease caphv-system/lease is not renewed; the data shown may be outdated",
        next_step="Check whether it runs: kubectl get pods -n caphv-system",
    )
    return site


def mixed() -> Site:
    """What the documentation shows: a healthy cluster, an upgrade, a lost VM, and a cluster that lacks its identity."""
    site = Site()
    production = site.add(cluster("production", 3, 3), "team-a")
    shop = site.add(cluster("shop", 3, 2), "team-b")
    lose_vm(site, shop, "shop-worker-1")
    staging = upgrade(site.add(cluster("staging", 3, 2), "team-c"))
    forget_identity(site.add(cluster("wrong", 3, 2), "team-d"))
    site.pools(("machines", 62, 58), ("load-balancers", 62, 3), ("machines-b", 254, 20))
    message = "VirtualMachine vms/shop-worker-1 no longer exists and will not be recreated"
    site.event(shop.harvester_machines["shop-worker-1"], "VMLost", message, "Warning", minutes=1)
    site.event(staging.harvester_machines["staging-cp-3"], "VMCreated", "created VM on harvester-3", minutes=1)
    site.event(staging.cluster, "TopologyUpdate", "Updated RKE2ControlPlane team-c/staging", minutes=3)
    site.event(production.harvester_cluster, "TokenRenewed", "renewed the token of the cloud config", minutes=50)
    return site


@dataclass(frozen=True)
class PageState:
    """A state with its name, and what its page is to contain."""

    name: str
    make: Callable[[], Site]
    texts: tuple[str, ...] = field(default=())


STATES = (
    PageState("one", one, ("production", "Available", "zone-1", "free of", "Topology update")),
    PageState("thirty", thirty, ("2 degraded", "1 progressing", "shop-30")),
    PageState("three-hundred", three_hundred, ("300", "edge-007", "1 failed", "4 progressing", "with more left")),
    PageState("creating", creating, ("Progressing", "waiting", "1/3", "0/2")),
    PageState("upgrading", upgrading, ("v1.36.2 → v1.36.3", "Progressing", "up to date")),
    PageState("degraded", degraded, ("replaced in 4 min", "no add-ons", "not found")),
    PageState("outage", outage, ("4 clusters", "as last seen", "connection refused")),
    PageState("host-failure", host_failure, ("host harvester-2 of Harvester", "replaced in 3 min")),
    PageState("deleting", deleting, ("Deleting", "being deleted: waiting for 3 machines")),
    PageState("empty", empty, ("No clusters on Harvester", "caphv generate --interactive")),
    PageState("silent", silent, ("provider is silent", "is not renewed", "kubectl get pods")),
)


def lose_vm(site: Site, builder: Builder, name: str) -> None:
    """Have a worker lose its VM a minute ago."""
    site.check(builder)
    message = f"VirtualMachine vms/{name} no longer exists and will not be recreated"
    builder.break_machine(name, "MachineNotFound", message, minutes=1)
    builder.machines[name]["status"]["conditions"] = [
        condition("Ready", "False", "NotReady", "", minutes=1),
        condition("NodeReady", "Unknown", "NodeStatusUnknown", "", minutes=1),
    ]
    workers = builder.cluster["status"]["workers"]
    workers["availableReplicas"] = workers["desiredReplicas"] - 1


def upgrade(builder: Builder) -> Builder:
    """Have the last control plane machine be a new one, of the newer version, which starts."""
    builder.cluster["spec"]["topology"]["version"] = builder.control_plane["spec"]["version"] = NEWER
    number = len([name for name in builder.machines if "cp-" in name])
    name = f"{builder.name}-cp-{number}"
    builder.machines[name]["spec"]["version"] = NEWER
    builder.machines[name]["metadata"]["creationTimestamp"] = ago(seconds=40)
    _pend(builder, name, "VMProvisioningInProgress", "the VM starts: waiting for its address")
    builder.control_plane["status"] |= {"availableReplicas": number - 1, "upToDateReplicas": 1}
    builder.cluster["status"]["controlPlane"] |= {"availableReplicas": number - 1, "upToDateReplicas": 1}
    message = f"* Cluster is upgrading to {NEWER}\n  * RKE2ControlPlane upgrading to version {NEWER}"
    builder.cluster["status"]["conditions"].append(
        condition("TopologyReconciled", "False", "ClusterUpgrading", message, minutes=3)
    )
    return builder


def forget_identity(builder: Builder) -> None:
    """Have a cluster that never worked lack its identity, with machines that wait."""
    identity = builder.harvester_cluster["spec"]["identitySecret"]
    identity["name"] = "no-such-identity"
    message = f"identity Secret {identity['namespace']}/no-such-identity: not found; create it with key kubeconfig"
    builder.harvester_cluster["status"] = {
        "conditions": [
            condition(kind, "False", "HarvesterConnectionFailed", message, minutes=9)
            for kind in ("HarvesterConnectionReady", "InfrastructureReady", "Ready")
        ]
    }
    builder.cluster["spec"].pop("controlPlaneEndpoint", None)
    for name in builder.machines:
        _pend(builder, name, "InfrastructureProvisioningInProgress", "waiting for the cluster's infrastructure")
    for part in ("controlPlane", "workers"):
        builder.cluster["status"][part] |= {"availableReplicas": 0}
    builder.cluster["status"]["conditions"] = [condition("Available", "False", "NotAvailable", "", minutes=9)]
    builder.control_plane["status"]["availableReplicas"] = 0
    _age(builder, minutes=10)


def _disconnect(builder: Builder, **since: float) -> None:
    message = "Harvester is unreachable: connection refused; last known to be ready: 3 of 3 control plane machines"
    conditions = builder.harvester_cluster["status"]["conditions"]
    conditions[1] = condition("HarvesterConnectionReady", "False", "HarvesterUnreachable", message, **since)


def _pend(builder: Builder, name: str, reason: str, message: str) -> None:
    """Have a machine be on its way."""
    builder.break_machine(name, reason, message, seconds=40)
    builder.harvester_machines[name]["status"] |= {"virtualMachine": {}, "addresses": []}
    builder.machines[name]["status"] = {
        "phase": "Provisioning",
        "conditions": [condition("Ready", "False", "NotReady", "", seconds=40)],
    }


def _remove(site: Site, builder: Builder, name: str) -> None:
    site.objects.machines.remove(builder.machines.pop(name))
    site.objects.harvester_machines.remove(builder.harvester_machines.pop(name))


def _age(builder: Builder, **delta: float) -> None:
    for obj in (builder.cluster, *builder.machines.values()):
        obj["metadata"]["creationTimestamp"] = ago(**delta)


def _pool(name: str, total: int, used: int) -> Obj:
    ranges = [{"subnet": "172.16.0.0/16", "rangeStart": "172.16.3.1", "rangeEnd": _address(total)}]
    allocated = {_address(number): f"vms/m-{number}" for number in range(1, used + 1)}
    return {"metadata": {"name": name}, "spec": {"ranges": ranges}, "status": {"allocated": allocated}}


def _address(number: int) -> str:
    return f"172.16.3.{number}"


def _host(number: int, ready: str) -> Obj:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": f"harvester-{number}"}, "status": {"conditions": conditions}}
