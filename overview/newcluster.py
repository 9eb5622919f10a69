"""Whether a Harvester has what a new cluster names and needs: pure.

Findings are about fields of a ClusterDefinition, so that a command can name the flag or the line that sets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api import ippool, names
from caphv.api.object import Key, Obj, annotations_of, key_of
from caphv.validation.finding import Fault, FieldPath, Finding, did_you_mean
from overview.capacity import CapacityObjects
from overview.details import pools_of
from overview.hostcapacity import overcommit_of
from overview.objects import condition_of
from overview.plan.machinechanges import Needs, effect_of
from overview.plan.needs import Need, needs_and_free
from overview.plan.pools import Pool, Wanted

_MACHINES: FieldPath = ("spec", "machines")
_POOLS: FieldPath = ("spec", "addresses", "ipPoolRefs")
_SHOWN = 3
_FITTING = "VMs that fit on a host"


@dataclass(slots=True)
class Surroundings:
    """What was read of a Harvester for a new cluster. What is None could not be read, so that it is not checked."""

    capacity: CapacityObjects
    namespaces: list[str] | None = None
    storage_classes: list[str] | None = None

    @property
    def images(self) -> dict[str, Obj] | None:
        """Images by namespace and name; by namespace and display name, which the provider looks for first."""
        harvester = self.capacity.harvester
        if not harvester.sees("virtualmachineimages.harvesterhci.io"):
            return None
        shown = {f"{key_of(obj).namespace}/{_display_name(obj)}": obj for obj in harvester.images if _display_name(obj)}
        return {str(key_of(obj)): obj for obj in harvester.images} | shown

    @property
    def networks(self) -> dict[str, Obj] | None:
        """VM networks by namespace and name."""
        harvester = self.capacity.harvester
        if not harvester.sees("network-attachment-definitions.k8s.cni.cncf.io"):
            return None
        return {str(key_of(obj)): obj for obj in harvester.networks}

    @property
    def key_pairs(self) -> dict[str, Obj] | None:
        """Key pairs by namespace and name."""
        harvester = self.capacity.harvester
        if not harvester.sees("keypairs.harvesterhci.io"):
            return None
        return {str(key_of(obj)): obj for obj in harvester.key_pairs}

    @property
    def pools(self) -> dict[str, Obj] | None:
        """IPPools by name."""
        harvester = self.capacity.harvester
        if not harvester.sees("ippools.loadbalancer.harvesterhci.io"):
            return None
        return {str(obj["metadata"]["name"]): obj for obj in harvester.pools}

    def free(self, pool: str) -> int | None:
        """How many addresses of a pool are free; None when that is not known."""
        return next((each.free for each in pools_of(self.capacity.harvester) if each.name == pool), None)


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
        metadata = _mapping(self.definition.get("metadata"))
        return Key(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec, which may be invalid."""
        return _mapping(self.definition.get("spec"))

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
        return [_bare(each) for each in _texts(_mapping(self.spec.get("addresses")).get("ipPoolRefs"))]

    @property
    def balancer_pool(self) -> str:
        """IPPool for the address of its control plane, empty with DHCP."""
        return _bare(str(_mapping(self.spec.get("loadBalancer")).get("ipPoolRef") or ""))


def findings(wanted: NewCluster, found: Surroundings) -> list[Finding]:
    """Return what is absent or too small on Harvester: errors, and advice where a cluster could start nevertheless."""
    checks = (_image, _key_pair, _networks, _storage_classes, _pools)
    named = [finding for check in checks for finding in check(wanted, found)]
    if not wanted.pools or exists(wanted.key, found):
        return named
    return [*named, *_addresses(wanted, found), *_room(wanted, found)]


def exists(cluster: Key, found: Surroundings) -> bool:
    """Whether VMs of the cluster exist: then what they hold already is not needed again."""
    record = f"HarvesterMachine/{cluster.namespace}/{cluster.name}-"
    return any(
        annotations_of(vm).get(names.OWNER_ANNOTATION, "").startswith(record) for vm in found.capacity.harvester.vms
    )


def _image(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    path = (*_MACHINES, "image")
    reference = _mapping(wanted.spec.get("machines")).get("image")
    known = found.images
    if known is None or not isinstance(reference, str) or not reference:
        return
    image = known.get(reference if "/" in reference else f"{wanted.target_namespace}/{reference}")
    if image is None:
        yield _absent(path, reference, "VM image", known, wanted.target_namespace)
        return
    imported = condition_of(image, "Imported")
    if imported and imported.get("status") != "True":
        why = str(imported.get("message") or "") or f"{(image.get('status') or {}).get('progress') or 0} %"
        detail = f"the VM image is not imported yet ({why}): wait for it, or import it again on Harvester"
        failed = imported.get("status") == "False"
        yield Finding(path, Fault.INVALID, detail, value=reference, advice=not failed)


def _key_pair(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    reference = _mapping(wanted.spec.get("machines")).get("sshKeyPair")
    known = found.key_pairs
    if known is not None and isinstance(reference, str) and reference and reference not in known:
        yield _absent((*_MACHINES, "sshKeyPair"), reference, "KeyPair", known)


def _networks(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    known = found.networks
    for index, reference in enumerate(_texts(_mapping(wanted.spec.get("machines")).get("networks"))):
        if known is not None and reference not in known:
            yield _absent((*_MACHINES, "networks", index), reference, "VM network", known)


def _storage_classes(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    disks = _mapping(wanted.spec.get("machines")).get("extraDisks")
    for index, disk in enumerate(disks if isinstance(disks, list) else ()):
        name = str(_mapping(disk).get("storageClass") or "longhorn")
        if found.storage_classes is not None and name not in found.storage_classes:
            path = (*_MACHINES, "extraDisks", index, "storageClass")
            yield _absent(path, name, "StorageClass", found.storage_classes)


def _pools(wanted: NewCluster, found: Surroundings) -> Iterator[Finding]:
    known = found.pools
    if known is None:
        return
    networks = _texts(_mapping(wanted.spec.get("machines")).get("networks"))
    for index, name in enumerate(wanted.pool_names):
        path = (*_POOLS, index)
        if name not in known:
            yield _absent(path, name, "IPPool", known)
        elif networks and not ippool.serves(known[name], networks):
            selected = (known[name].get("spec") or {}).get("selector") or {}
            detail = (
                f"the IPPool serves VM network {selected.get('network')} only: name that network, or another IPPool"
            )
            yield Finding(path, Fault.INVALID, detail, value=name)
        elif found.free(name) is None:
            detail = "its ranges are invalid: correct spec.ranges of the IPPool on Harvester"
            yield Finding(path, Fault.INVALID, detail, value=name)
        yield from _contradictions(wanted, known.get(name))
    if wanted.balancer_pool and wanted.balancer_pool not in known:
        yield _absent(("spec", "loadBalancer", "ipPoolRef"), wanted.balancer_pool, "IPPool", known)


def _contradictions(wanted: NewCluster, pool: Obj | None) -> Iterator[Finding]:
    """Whether gateway and mask are those of the pool."""
    addresses = _mapping(wanted.spec.get("addresses"))
    values = {name: str(addresses.get(name) or "") for name in ("gateway", "subnetMask")}
    problems = ippool.contradictions(pool, values["gateway"], values["subnetMask"]) if pool else {}
    for name, problem in problems.items():
        detail = f"{problem}: correct it, or VMs never report their address"
        yield Finding(("spec", "addresses", name), Fault.INVALID, detail, value=values[name])


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
    numbers = f"{_count(free, 'address is', 'addresses are')} free, and the cluster needs {needed}"
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


def _absent(path: FieldPath, reference: str, kind: str, known: Iterable[str], namespace: str = "") -> Finding:
    existing = sorted(known)
    where = "" if "/" in reference or not namespace else f" in namespace {namespace}"
    same = [each for each in existing if each != reference and _bare(each) == _bare(reference)]
    hint = f"; Harvester has {', '.join(same[:_SHOWN])}" if same else did_you_mean(reference, existing)
    if not hint and existing and len(existing) <= _SHOWN:
        hint = f"; Harvester has {', '.join(existing)}"
    remedy = "upload it to Harvester" if kind == "VM image" else "create it on Harvester"
    detail = f"{kind} does not exist{where}{hint}: {remedy}, or name another"
    return Finding(path, Fault.INVALID, detail, value=reference)


def _bare(reference: str) -> str:
    return reference.rpartition("/")[2]


def _display_name(image: Obj) -> str:
    return str((image.get("spec") or {}).get("displayName") or "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str) and each] if isinstance(value, list) else []


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _amount(value: float, unit: str) -> str:
    return f"{value / 1024**3:.1f} GiB".replace(".0 ", " ") if unit == "B" else f"{value:.1f}".removesuffix(".0")
