"""Check whether a Harvester has the objects and the room that a new cluster needs. No I/O.

Findings refer to fields of a ClusterDefinition, so that a command can name the flag or the line
that sets the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api import names
from caphv.api.compatibility import CHARTS, compatibility
from caphv.api.counting import counted
from caphv.api.distributions import full_version
from caphv.api.object import Key, annotations_of
from caphv.api.quantity import readable
from caphv.validation.finding import Fault, FieldPath, Finding
from operations.capacity.hosts import overcommit_of
from operations.capacity.machinechanges import Needs, effect_of
from operations.capacity.machinepools import DesiredState, Pool
from operations.capacity.needs import DEVICE, FITTING_VMS, Need, needs_and_free
from operations.capacity.requirements import (
    Requirements,
    Value,
    bare,
    device_values,
    imports_of,
    interface_pools_of,
    looked_up,
    mapping,
    shortcomings,
    texts_at,
)
from operations.capacity.surroundings import Surroundings

_MACHINES: FieldPath = ("spec", "machines")
_ADDRESSES: FieldPath = ("spec", "addresses")
_POOLS: FieldPath = (*_ADDRESSES, "ipPoolRefs")
_LOAD_BALANCER: FieldPath = ("spec", "loadBalancer")
_DEFAULT_STORAGE_CLASS = "longhorn"


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster to be created.

    :param definition: the ClusterDefinition, which may be invalid
    :param pools: the pools of its machines. Without them only names are checked, because the
        definition is not valid or complete yet.
    """

    definition: Mapping[str, Any]
    pools: Sequence[Pool] = field(default=())

    @property
    def key(self) -> Key:
        """Namespace and name."""
        metadata = mapping(self.definition.get("metadata"))
        return Key(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec of the definition, which may be invalid."""
        return mapping(self.definition.get("spec"))

    @property
    def target_namespace(self) -> str:
        """The namespace of its VMs."""
        return str(self.spec.get("targetNamespace") or "default")

    @property
    def machines(self) -> int:
        """The number of machines."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def pool_names(self) -> list[str]:
        """The names of the IPPools of its machines. IPPools have no namespace."""
        return [bare(value.text) for value in self.requirements.pools]

    @property
    def balancer_pool(self) -> str:
        """The IPPool of its control plane's address; empty with DHCP."""
        return bare(str(mapping(self.spec.get("loadBalancer")).get("ipPoolRef") or ""))

    @property
    def requirements(self) -> Requirements:
        """The objects on Harvester that the definition refers to."""
        machines = mapping(self.spec.get("machines"))
        addresses = mapping(self.spec.get("addresses"))
        balancer = mapping(self.spec.get("loadBalancer"))

        image = _text_at(machines, _MACHINES, "image")
        lookup = machines.get("imageLookup")
        images = looked_up((*_MACHINES, "imageLookup"), lookup, _full_version(self.spec))
        key_pair = _text_at(machines, _MACHINES, "sshKeyPair")
        balancer_pool = _text_at(balancer, _LOAD_BALANCER, "ipPoolRef")
        return Requirements(
            self.target_namespace,
            namespace=Value(("spec", "targetNamespace"), self.target_namespace),
            images=[image] if image else images,
            imported=imports_of({**self.spec, "targetNamespace": self.target_namespace}),
            key_pairs=[key_pair] if key_pair else [],
            networks=texts_at((*_MACHINES, "networks"), machines.get("networks")),
            storage_classes=_storage_classes(machines.get("extraDisks")),
            devices=_devices(self.spec),
            pools=texts_at(_POOLS, addresses.get("ipPoolRefs")),
            balancer_pools=[balancer_pool] if balancer_pool else [],
            interface_pools=[
                pool
                for path, part in _machine_settings(self.spec)
                for pool in interface_pools_of(part, path)
            ],
            gateway=_text_at(addresses, _ADDRESSES, "gateway"),
            subnet_mask=_text_at(addresses, _ADDRESSES, "subnetMask"),
        )


def _full_version(spec: Mapping[str, Any]) -> str:
    """Return the Kubernetes version of the machines of a definition, which may be invalid."""
    version = str(spec.get("kubernetesVersion") or "")
    return full_version(version, str(spec.get("distribution") or "rke2"))


def findings(cluster: NewCluster, harvester: Surroundings) -> list[Finding]:
    """Return findings about absent objects and insufficient room on Harvester.

    Findings are errors, or advice if the cluster can be created anyway.
    """
    absent = [*shortcomings(cluster.requirements, harvester), *_check_charts(cluster, harvester)]
    if not cluster.pools or _has_vms(cluster.key, harvester):
        return absent
    return [*absent, *_check_addresses(cluster, harvester), *_check_room(cluster, harvester)]


def _has_vms(cluster: Key, harvester: Surroundings) -> bool:
    """Return whether VMs of the cluster exist, so that it already has what it needs."""
    record = f"HarvesterMachine/{cluster.namespace}/{cluster.name}-"
    return any(
        annotations_of(vm).get(names.OWNER_ANNOTATION, "").startswith(record)
        for vm in harvester.capacity.harvester.vms
    )


def _check_charts(cluster: NewCluster, harvester: Surroundings) -> Iterator[Finding]:
    """Check whether cloud provider and CSI driver of the cluster are compatible with Harvester."""
    table = compatibility()
    limits = harvester.chart_limits
    addons = mapping(cluster.spec.get("addons"))
    distribution = cluster.spec.get("distribution", "rke2")
    if addons.get("cloudProviderName") == "harvester" and distribution == "rke2":
        version = str(cluster.spec.get("kubernetesVersion") or "")
        charts = table.rke2_charts(version)
        remedy = "upgrade Harvester, or use an older release of RKE2, which installs these charts"
        for problem in table.problems(charts, limits.harvester, limits.accepted):
            path = ("spec", "kubernetesVersion")
            yield Finding(path, Fault.UNSUPPORTED, f"{problem}: {remedy}", value=version)
        return

    if _has_vms(cluster.key, harvester):
        return  # a lockfile pins its charts
    charts = _bundle_charts(table.charts, addons)
    remedy = "upgrade Harvester, or set the versions of the charts (ccm.version, csi.version)"
    for problem in table.problems(charts, limits.harvester, limits.accepted):
        yield Finding(("spec", "addons"), Fault.UNSUPPORTED, f"{problem}: {remedy}")


def _bundle_charts(newest: Mapping[str, str], addons: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts of cloud provider and CSI driver that bundles install, by name.

    :param newest: the chart versions of the newest bundles
    :param addons: settings of the cluster, which may set other versions
    """
    charts = {}
    for name, chart in CHARTS.items():
        settings = mapping(addons.get(name))
        if settings.get("enabled") is not False:
            charts[chart] = str(settings.get("version") or newest.get(chart) or "")
    return charts


def _check_addresses(cluster: NewCluster, harvester: Surroundings) -> Iterator[Finding]:
    """Check whether pools have an address for each machine, and one for the control plane."""
    pools = list(dict.fromkeys(cluster.pool_names))
    balancer = cluster.balancer_pool
    used = {*pools, *filter(None, [balancer])}
    if harvester.pools is None or used - harvester.pools.keys():
        return  # other checks report pools that do not exist

    if balancer and balancer not in pools and harvester.free(balancer) == 0:
        detail = "no address is free: add a range, or release leaked addresses (caphv pools audit)"
        yield Finding(("spec", "loadBalancer", "ipPoolRef"), Fault.INVALID, detail, value=balancer)
    if not pools:
        return

    # The address of the control plane may come from a pool of machines.
    free = sum(harvester.free(name) or 0 for name in pools)
    needed = cluster.machines + (balancer in pools)
    numbers = f"{counted(free, 'address is', 'addresses are')} free, and the cluster needs {needed}"
    if free < needed:
        detail = (
            f"{numbers}: add a range or another IPPool, or release leaked addresses (caphv pools "
            "audit)"
        )
        yield Finding(_POOLS, Fault.INVALID, detail, value=pools)
    elif free == needed:
        detail = f"{numbers}: none is left for a rollout, which adds a machine for a time"
        yield Finding(_POOLS, Fault.INVALID, detail, value=pools, advice=True)


def _check_room(cluster: NewCluster, harvester: Surroundings) -> Iterator[Finding]:
    """Check whether quotas allow the machines, and whether hosts and disks have room for them."""
    # Harvester overcommits its hosts. Only existing VMs show what share of its size a VM requests.
    overcommit_known = overcommit_of(harvester.capacity.harvester.instances).is_known

    for need in _needs(cluster, harvester):
        if not need.short or need.free is None:
            continue

        free = readable(need.free, need.unit)
        needed = readable(need.needed, need.unit)
        numbers = f"{free} free, and the cluster needs {needed}"
        # A quota refuses VMs. Full hosts only make VMs wait, and full disks only replicas.
        if need.what.startswith("quota "):
            detail = (
                f"{need.what} has {numbers}: raise the quota on Harvester, or use fewer or smaller "
                "machines"
            )
            target = cluster.target_namespace
            yield Finding(("spec", "targetNamespace"), Fault.INVALID, detail, value=target)
        elif need.what == FITTING_VMS and overcommit_known:
            detail = (
                f"hosts have room for {need.free:.0f} of {need.needed:.0f} VMs: use fewer or "
                "smaller machines, or add hosts"
            )
            yield Finding(_MACHINES, Fault.INVALID, detail, advice=True)
        elif need.what == "storage":
            detail = f"Longhorn has {numbers} {need.note}: use smaller disks, or add storage"
            yield Finding((*_MACHINES, "diskSize"), Fault.INVALID, detail, advice=True)
        elif need.what.startswith(DEVICE):
            yield from _report_devices(cluster, harvester, need, numbers)


def _report_devices(
    cluster: NewCluster, harvester: Surroundings, need: Need, numbers: str
) -> Iterator[Finding]:
    """Warn of devices of which hosts have too few. Another check reports unknown devices."""
    name = need.what.removeprefix(DEVICE)
    if name not in (harvester.devices or ()):
        return
    detail = f"{numbers}: the other machines wait until a device is free, or one more is enabled"
    for value in cluster.requirements.devices:
        if value.text == name:
            yield Finding(value.path, Fault.INVALID, detail, value=name, advice=True)
            return


def _needs(cluster: NewCluster, harvester: Surroundings) -> Sequence[Need]:
    """Return the needs of a new cluster without addresses, as its plan computes them."""
    after = DesiredState(
        {pool.name: pool for pool in cluster.pools if pool.replicas},
        {"targetNamespace": cluster.target_namespace},
    )
    needs: Needs = effect_of(cluster.key, DesiredState(), after).needs
    return needs_and_free(needs, {"spec": dict(after.infrastructure)}, harvester.capacity)


def _text_at(values: Mapping[str, Any], path: FieldPath, name: str) -> Value | None:
    """Return the text of a field with its path; None if it is empty or not a text."""
    text = values.get(name)
    return Value((*path, name), text) if isinstance(text, str) and text else None


def _storage_classes(disks: object) -> list[Value]:
    """Return the StorageClasses of additional disks, with their paths."""
    classes = []
    for index, disk in enumerate(disks if isinstance(disks, list) else ()):
        name = str(mapping(disk).get("storageClass") or _DEFAULT_STORAGE_CLASS)
        classes.append(Value((*_MACHINES, "extraDisks", index, "storageClass"), name))
    return classes


def _devices(spec: Mapping[str, Any]) -> list[Value]:
    """Return the devices of all machines and of each pool, with their paths."""
    return [value for path, part in _machine_settings(spec) for value in device_values(part, path)]


def _machine_settings(spec: Mapping[str, Any]) -> list[tuple[FieldPath, Mapping[str, Any]]]:
    """Return the settings of all machines and of each pool, with their paths."""
    workers = spec.get("workers")
    pools: list[tuple[FieldPath, Any]] = [
        (("spec", "workers", index), pool)
        for index, pool in enumerate(workers if isinstance(workers, list) else ())
    ]
    parts: list[tuple[FieldPath, Any]] = [
        (_MACHINES, spec.get("machines")),
        (("spec", "controlPlane"), spec.get("controlPlane")),
        *pools,
    ]
    return [(path, mapping(part)) for path, part in parts]
