"""Addresses that meet: CIDRs of Pods and Services with the network of the machines, pools with pools and machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from caphv.api.ippool import contradictions
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, LocatedFinding
from caphv.validation.rule import Rules
from webhooks.crossobject.model import POOL_GROUP, Entry, Inventory, Located
from webhooks.crossobject.owners import machine_templates, users
from webhooks.rules.model import CLUSTER, MACHINE, MACHINE_TEMPLATE, Field

RULES = Rules()

# Of a static address, unless machine or cluster say another (contract).
_DEFAULT_PREFIX = 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network(text: str) -> Network | None:
    """The network of a CIDR, host bits cut off as Kubernetes does; None for what is none."""
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None


def address(text: str) -> ipaddress.IPv4Address | None:
    """An IPv4 address; None for what is none."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _blocks(cluster: Entry) -> list[Field]:
    networks = cluster.field.at("spec", "clusterNetwork")
    return [block for part in ("pods", "services") for block in networks.at(part, "cidrBlocks").each()]


@RULES.rule(
    "cluster-network",
    ("Cluster",),
    "CIDR blocks of Pods and Services must be CIDRs that do not overlap.",
    example="`pods.cidrBlocks: [10.42.0.0/15]` with `services.cidrBlocks: [10.43.0.0/16]`: choose separate ones",
)
def _cluster_network(inventory: Inventory) -> Iterator[Located]:
    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        blocks = _blocks(cluster)
        for block in blocks:
            if network(block.text) is None:
                yield LocatedFinding(cluster, block.invalid('must be a CIDR, for example "10.42.0.0/16"'))
        for one, two in combinations(blocks, 2):
            if _overlap(network(one.text), network(two.text)):
                yield LocatedFinding(cluster, two.invalid(f"overlaps {one.text}, another block of this cluster"))


def _overlap(one: Network | None, two: Network | None) -> bool:
    return one is not None and two is not None and one.version == two.version and one.overlaps(two)


@RULES.rule(
    "cluster-network-overlap",
    ("Cluster",),
    "CIDR blocks of Pods and Services must not overlap the networks of the cluster's machines and load balancer, or "
    "machines cannot reach each other.",
    example="`pods.cidrBlocks: [172.17.0.0/16]` with machines in 172.17.1.0/24: choose another block",
)
def _machines_network(inventory: Inventory) -> Iterator[Located]:
    for cluster, infrastructure in inventory.clusters:
        used = [(found, infrastructure) for found in _networks(infrastructure.field.at("spec"))]
        for template in machine_templates(inventory, cluster):
            used += [(found, template) for found in _networks(template.field.at("spec", "template", "spec"))]
        for block in _blocks(cluster):
            for found, entry in used:
                if _overlap(network(block.text), found):
                    yield LocatedFinding(cluster, block.invalid(f"overlaps {found}, a network of {entry}"), entry)
                    break


def _networks(spec: Field) -> Iterator[Network]:
    """Networks that the spec of a HarvesterCluster or HarvesterMachine names."""
    for pool in (spec.at("loadBalancerConfig", "ipPool"), spec.at("vmNetworkConfig", "ipPool")):
        if found := network(pool.at("subnet").text):
            yield found
    for config in (spec.at("vmNetworkConfig"), spec.at("networkConfig")):
        gateway, mask = config.at("gateway").text, config.at("subnetMask").text
        if gateway and mask and (found := network(f"{gateway}/{mask}")):
            yield found


class _Range(NamedTuple):
    """Addresses that a pool gives out; `where` is its Harvester, empty if unknown, and its VM network."""

    entry: Entry
    field: Field
    where: tuple[str, str]
    first: ipaddress.IPv4Address
    last: ipaddress.IPv4Address


def harvester(infrastructure: Entry) -> str:
    """By what two HarvesterClusters are known to use the same Harvester: the same identity Secret."""
    secret = infrastructure.field.at("spec", "identitySecret")
    return f"{secret.at('namespace').text}/{secret.at('name').text}"


def qualified(vm_network: str, infrastructure: Entry | None) -> str:
    """A VM network as `namespace/name`."""
    if "/" in vm_network or infrastructure is None:
        return vm_network
    return f"{infrastructure.field.at('spec', 'targetNamespace').text}/{vm_network}"


def _ranges(inventory: Inventory) -> Iterator[_Range]:
    for entry in inventory.of_kind(CLUSTER):
        spec = entry.field.at("spec")
        for pool in (spec.at("loadBalancerConfig", "ipPool"), spec.at("vmNetworkConfig", "ipPool")):
            where = (harvester(entry), qualified(pool.at("vmNetwork").text, entry))
            yield from _range(entry, pool, where)
    for entry in inventory.of_kind("IPPool", POOL_GROUP):
        vm_network = entry.field.at("spec", "selector", "network").text
        for part in entry.field.at("spec", "ranges").each():
            yield from _range(entry, part, ("", vm_network))


def _range(entry: Entry, field: Field, where: tuple[str, str]) -> Iterator[_Range]:
    subnet = network(field.at("subnet").text)
    if not isinstance(subnet, ipaddress.IPv4Network):
        return
    first = address(field.at("rangeStart").text) or subnet.network_address
    last = address(field.at("rangeEnd").text) or subnet.broadcast_address
    yield _Range(entry, field, where, first, last)


def _same_network(one: tuple[str, str], two: tuple[str, str]) -> bool:
    # Of IPPools it is not known which Harvester they are for: files usually are about one.
    return bool(one[1]) and one[1] == two[1] and (one[0] == two[0] or not one[0] or not two[0])


def _exclusive(one: tuple[str, str], two: tuple[str, str]) -> bool:
    """Whether pools need separate ranges: on one Harvester always, otherwise if they may share a VM network."""
    return bool(one[0] and one[0] == two[0]) or _same_network(one, two)


@RULES.rule(
    "pool-overlap",
    (CLUSTER, "IPPool"),
    "Address ranges of pools on one Harvester, or on one VM network, must not overlap, even for different clusters: "
    "Harvester refuses the second pool.",
    example="HarvesterClusters `a` and `b` with pools 172.17.1.50-100 and 172.17.1.90-120: separate the ranges",
)
def _pool_overlap(inventory: Inventory) -> Iterator[Located]:
    widest: list[_Range] = []
    for two in sorted(_ranges(inventory), key=lambda given: (given.first, given.entry.index)):
        # Pools of one object are compared by the rules about that object.
        widest = [wide for wide in widest if wide.last >= two.first]
        meets = (wide for wide in widest if wide.entry is not two.entry and _exclusive(wide.where, two.where))
        if one := next(meets, None):
            start = two.field.at("rangeStart") if two.field.at("rangeStart").present else two.field.at("subnet")
            detail = f"range {two.first}-{two.last} overlaps {one.first}-{one.last} of {one.entry}: separate them"
            yield LocatedFinding(two.entry, start.invalid(detail), one.entry)
        else:
            widest.append(two)


@RULES.rule(
    "pool-subnet",
    (CLUSTER, MACHINE, MACHINE_TEMPLATE),
    "Gateway and mask of `vmNetworkConfig` must be those of a subnet of the IPPools that it names: machines with "
    "others never report their address.",
    example="`subnetMask: 255.255.0.0` with IPPool `machines` in 172.16.0.0/17: 255.255.128.0",
)
def _pool_subnet(inventory: Inventory) -> Iterator[Located]:
    # Nothing can refer to a pool without a name, whatever else it lacks.
    pools = {pool.name: pool for pool in inventory.of_kind("IPPool", POOL_GROUP) if pool.name}
    for kind in (CLUSTER, MACHINE, MACHINE_TEMPLATE):
        for entry in inventory.of_kind(kind):
            root = ("spec", "template", "spec") if kind == MACHINE_TEMPLATE else ("spec",)
            config = entry.field.at(*root, "vmNetworkConfig")
            for name in config.at("ipPoolRefs").each() or [config.at("ipPoolRef")]:
                pool = pools.get(name.text.rpartition("/")[2])
                values = (config.at("gateway").text, config.at("subnetMask").text)
                problems = contradictions(pool.obj, *values) if pool else {}
                for field, problem in problems.items():
                    yield LocatedFinding(entry, config.at(field).invalid(f"{problem}: correct it"), pool)


class _Static(NamedTuple):
    entry: Entry
    field: Field
    where: tuple[str, str]
    address: ipaddress.IPv4Address


def _statics(inventory: Inventory) -> Iterator[_Static]:
    for entry in inventory.of_kind(MACHINE):
        spec = entry.field.at("spec")
        field, networks = spec.at("networkConfig", "address"), spec.at("networks").each()
        if (given := address(field.text)) and networks:
            infrastructure = inventory.infrastructure(entry)
            where = (harvester(infrastructure) if infrastructure else "", qualified(networks[0].text, infrastructure))
            yield _Static(entry, field, where, given)


@RULES.rule(
    "static-address-duplicate",
    (MACHINE,),
    "Static addresses must be unique on a VM network.",
    example="two HarvesterMachines with `networkConfig.address: 172.17.1.60`: give each its own",
)
def _static_duplicate(inventory: Inventory) -> Iterator[Located]:
    first: dict[ipaddress.IPv4Address, list[_Static]] = {}
    for static in _statics(inventory):
        known = first.setdefault(static.address, [])
        if other := next((one for one in known if _same_network(one.where, static.where)), None):
            detail = f"{other.entry} has this address on VM network {static.where[1]}, too: give each its own"
            yield LocatedFinding(static.entry, static.field.problem(Fault.DUPLICATE, detail), other.entry)
        known.append(static)


@RULES.rule(
    "static-address-in-pool",
    (MACHINE,),
    "A static address must be outside the ranges of pools on its VM network: a pool would give it to another machine.",
    example="`networkConfig.address: 172.17.1.60` and a pool 172.17.1.50-100: take an address outside of the range",
    advice=True,
)
def _static_in_pool(inventory: Inventory) -> Iterator[Located]:
    ranges = list(_ranges(inventory))
    for static in _statics(inventory):
        for pool in ranges:
            if _same_network(pool.where, static.where) and pool.first <= static.address <= pool.last:
                detail = f"lies in range {pool.first}-{pool.last} of {pool.entry}: take an address outside of it"
                yield LocatedFinding(static.entry, static.field.invalid(detail), pool.entry)
                break


@RULES.rule(
    "static-address-template",
    (MACHINE_TEMPLATE,),
    "A template with a static address must be used for at most one machine.",
    example="`networkConfig` in a template of a MachineDeployment with 3 replicas: use a pool",
)
def _static_template(inventory: Inventory) -> Iterator[Located]:
    for template, owner, replicas in users(inventory):
        field = template.field.at("spec", "template", "spec", "networkConfig", "address")
        if field.text and replicas.number is not None and replicas.number > 1:
            detail = f"{owner} makes {replicas.number} machines of this template, all with this address: use a pool"
            yield LocatedFinding(template, field.invalid(detail), owner)


@RULES.rule(
    "static-address-network",
    (MACHINE, MACHINE_TEMPLATE),
    "A static address without a mask of its own must be in one network with its gateway by the mask of its cluster.",
    example="`networkConfig: {address: 172.17.1.60, gateway: 172.17.2.1}` in a cluster with mask 255.255.255.0:"
    " correct the gateway",
)
def _static_network(inventory: Inventory) -> Iterator[Located]:
    for machine in inventory.of_kind(MACHINE):
        if infrastructure := inventory.infrastructure(machine):
            yield from _unreachable(machine, machine.field.at("spec", "networkConfig"), infrastructure)
    for cluster, infrastructure in inventory.clusters:
        for template in machine_templates(inventory, cluster):
            static = template.field.at("spec", "template", "spec", "networkConfig")
            yield from _unreachable(template, static, infrastructure)


def _unreachable(entry: Entry, static: Field, infrastructure: Entry) -> Iterator[Located]:
    own, gateway = address(static.at("address").text), address(static.at("gateway").text)
    mask = infrastructure.field.at("spec", "vmNetworkConfig", "subnetMask").text
    if own is None or gateway is None or not mask or static.at("subnetMask").present:
        return
    within, default = network(f"{own}/{mask}"), network(f"{own}/{_DEFAULT_PREFIX}")
    # What is beyond the mask that a machine gets without a cluster's is reported by the rules about that machine.
    if within and default and gateway in default and gateway not in within:
        detail = f"is not in the machine's network {within} by the mask of {infrastructure}"
        yield LocatedFinding(
            entry, static.at("gateway").invalid(f"{detail}: correct it, or set subnetMask"), infrastructure
        )
