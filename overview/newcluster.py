"""Whether a Harvester has what a new cluster names and needs: pure.

Findings are about fields of a ClusterDefinition, so that a command can name the flag or the line that sets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api import names
from caphv.api.counting import counted
from caphv.api.object import Key, annotations_of
from caphv.validation.finding import Fault, FieldPath, Finding
from overview.hostcapacity import overcommit_of
from overview.plan.machinechanges import Needs, effect_of
from overview.plan.needs import Need, needs_and_free
from overview.plan.pools import Pool, Wanted
from overview.requirements import Requirements, Value, bare, mapping, shortcomings, texts_at
from overview.surroundings import Surroundings

_MACHINES: FieldPath = ("spec", "machines")
_POOLS: FieldPath = ("spec", "addresses", "ipPoolRefs")
_FITTING = "VMs that fit on a host"
_DEFAULT_STORAGE_CLASS = "longhorn"


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster that is to be created: its definition as it is written, and its machines by pool.

    Without `pools` only names are checked: the definition is not valid yet, or not complete.
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
        """Its spec, which may be invalid."""
        return mapping(self.definition.get("spec"))

    @property
    def target_namespace(self) -> str:
        """Namespace for its VMs."""
        return str(self.spec.get("targetNamespace") or "default")

    @property
    def machines(self) -> int:
        """How many machines it has."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def pool_names(self) -> list[str]:
        """IPPools for its machines; a namespace before a name means nothing."""
        return [bare(value.text) for value in self.requirements.pools]

    @property
    def balancer_pool(self) -> str:
        """IPPool for the address of its control plane, empty with DHCP."""
        return bare(str(mapping(self.spec.get("loadBalancer")).get("ipPoolRef") or ""))

    @property
    def requirements(self) -> Requirements:
        """What it names on Harvester."""
        machines, addresses = mapping(self.spec.get("machines")), mapping(self.spec.get("addresses"))
        disks = machines.get("extraDisks")
        classes = [
            Value(
                (*_MACHINES, "extraDisks", index, "storageClass"),
                str(mapping(disk).get("storageClass") or _DEFAULT_STORAGE_CLASS),
            )
            for index, disk in enumerate(disks if isinstance(disks, list) else ())
        ]
        return Requirements(
            self.target_namespace,
            namespace=Value(("spec", "targetNamespace"), self.target_namespace),
            images=_texts(machines, "image", _MACHINES),
            key_pairs=_texts(machines, "sshKeyPair", _MACHINES),
            networks=texts_at((*_MACHINES, "networks"), machines.get("networks")),
            storage_classes=classes,
            pools=texts_at(_POOLS, addresses.get("ipPoolRefs")),
            balancer_pools=_texts(mapping(self.spec.get("loadBalancer")), "ipPoolRef", ("spec", "loadBalancer")),
            gateway=next(iter(_texts(addresses, "gateway", _POOLS[:-1])), None),
            subnet_mask=next(iter(_texts(addresses, "subnetMask", _POOLS[:-1])), None),
        )


def findings(wanted: NewCluster, found: Surroundings) -> list[Finding]:
    """Return what is absent or too small on Harvester: errors, and advice where a cluster could start nevertheless."""
    named = list(shortcomings(wanted.requirements, found))
    if not wanted.pools or exists(wanted.key, found):
        return named
    return [*named, *_addresses(wanted, found), *_room(wanted, found)]


def exists(cluster: Key, found: Surroundings) -> bool:
    """Whether VMs of the cluster exist: then what they hold already is not needed again."""
    record = f"HarvesterMachine/{cluster.namespace}/{cluster.name}-"
    return any(
        annotations_of(vm).get(names.OWNER_ANNOTATION, "").startswith(record) for vm in found.capacity.harvester.vms
    )


def _addresses(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    """Whether pools have an address for each machine, and one for the control plane."""
    known, own = found.pools, list(dict.fromkeys(wanted.pool_names))
    if known is None or not known.keys() >= {*own, *filter(None, [wanted.balancer_pool])}:
        return
    balancer = wanted.balancer_pool
    if balancer and balancer not in own and found.free(balancer) == 0:
        detail = "no address is free: add a range, or release leaked addresses (caphv pools audit)"
        yield Finding(("spec", "loadBalancer", "ipPoolRef"), Fault.INVALID, detail, value=balancer)
    if not own:
        return
    free = sum(found.free(name) or 0 for name in own)
    needed = wanted.machines + (balancer in own)
    numbers = f"{counted(free, 'address is', 'addresses are')} free, and the cluster needs {needed}"
    if free < needed:
        detail = f"{numbers}: add a range or another IPPool, or release leaked addresses (caphv pools audit)"
        yield Finding(_POOLS, Fault.INVALID, detail, value=own)
    elif free == needed:
        detail = f"{numbers}: none is left for a rollout, which adds a machine for a time"
        yield Finding(_POOLS, Fault.INVALID, detail, value=own, advice=True)


def _room(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    """Whether quotas allow the machines, and hosts and disks have room for them."""
    target = wanted.target_namespace
    for need in _needs(wanted, found):
        if not need.short or need.free is None:
            continue
        numbers = f"{_amount(need.free, need.unit)} free, and the cluster needs {_amount(need.needed, need.unit)}"
        if need.what.startswith("quota "):
            detail = f"{need.what} has {numbers}: raise the quota on Harvester, or use fewer or smaller machines"
            yield Finding(("spec", "targetNamespace"), Fault.INVALID, detail, value=target)
        elif need.what == _FITTING and overcommit_of(found.capacity.harvester.instances).known:
            # Otherwise it is not known how much of its size a VM requests: Harvester overcommits.
            detail = f"hosts have room for {need.free:.0f} of {need.needed:.0f} VMs: use fewer or smaller machines"
            yield Finding(_MACHINES, Fault.INVALID, f"{detail}, or add hosts", advice=True)
        elif need.what == "storage":
            detail = f"Longhorn has {numbers} {need.note}: use smaller disks, or add storage"
            yield Finding((*_MACHINES, "diskSize"), Fault.INVALID, detail, advice=True)


def _needs(wanted: NewCluster, found: Surroundings) -> Sequence[Need]:
    """What the plan of a new cluster compares, without addresses."""
    after = Wanted(
        {pool.name: pool for pool in wanted.pools if pool.replicas}, {"targetNamespace": wanted.target_namespace}
    )
    needs: Needs = effect_of(wanted.key, Wanted(), after).needs
    return needs_and_free(needs, {"spec": dict(after.infrastructure)}, found.capacity)


def _texts(values: Mapping[str, Any], name: str, path: FieldPath) -> list[Value]:
    text = values.get(name)
    return [Value((*path, name), text)] if isinstance(text, str) and text else []


def _amount(value: float, unit: str) -> str:
    return f"{value / 1024**3:.1f} GiB".replace(".0 ", " ") if unit == "B" else f"{value:.1f}".removesuffix(".0")
