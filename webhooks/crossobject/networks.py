"""Rules about overlapping addresses: CIDRs of Pods and Services, pools, and static addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from caphv.api import interfaceaddresses, interfaces
from caphv.api.ippool import contradictions
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, Finding, LocatedFinding
from caphv.validation.rule import Rules
from webhooks.crossobject.model import POOL_GROUP, Entry, Inventory, Located
from webhooks.crossobject.owners import machine_templates, users
from webhooks.rules.model import CLUSTER, MACHINE, MACHINE_TEMPLATE, Field

RULES = Rules()

# Prefix length of a static address, unless machine or cluster set another mask (contract).
_DEFAULT_PREFIX = 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network(text: str) -> Network | None:
    """Return the network of a CIDR without its host bits, None for an invalid CIDR.

    Kubernetes also drops the host bits.
    """
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None


def address(text: str) -> ipaddress.IPv4Address | None:
    """Return an IPv4 address, None for any other text."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _blocks(cluster: Entry) -> list[Field]:
    """Return the CIDR blocks of Pods and Services."""
    networks = cluster.field.at("spec", "clusterNetwork")
    return [
        *networks.at("pods", "cidrBlocks").each(),
        *networks.at("services", "cidrBlocks").each(),
    ]


@RULES.rule(
    "cluster-network",
    ("Cluster",),
    "CIDR blocks of Pods and Services must be CIDRs that do not overlap.",
    example=(
        "`pods.cidrBlocks: [10.42.0.0/15]` with `services.cidrBlocks: [10.43.0.0/16]`: choose "
        "separate ones"
    ),
)
def _cluster_network(inventory: Inventory) -> Iterator[Located]:
    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        blocks = _blocks(cluster)
        for block in blocks:
            if network(block.text) is None:
                detail = 'must be a CIDR, for example "10.42.0.0/16"'
                yield LocatedFinding(cluster, block.invalid(detail))

        for earlier, later in combinations(blocks, 2):
            if _overlap(network(earlier.text), network(later.text)):
                detail = f"overlaps {earlier.text}, another block of this cluster"
                yield LocatedFinding(cluster, later.invalid(detail))


def _overlap(first: Network | None, second: Network | None) -> bool:
    """Return whether two networks overlap; an invalid one, or one of another family, does not."""
    if first is None or second is None or first.version != second.version:
        return False
    return first.overlaps(second)


@RULES.rule(
    "cluster-network-overlap",
    ("Cluster",),
    "CIDR blocks of Pods and Services must not overlap the networks of the cluster's machines and "
    "load balancer, or machines cannot reach each other.",
    example=(
        "`pods.cidrBlocks: [172.17.0.0/16]` with machines in 172.17.1.0/24: choose another block"
    ),
)
def _machines_network(inventory: Inventory) -> Iterator[Located]:
    for cluster, infrastructure in inventory.clusters:
        entries = [infrastructure, *machine_templates(inventory, cluster)]
        used = [(entry, subnet) for entry in entries for subnet in _networks(entry.spec)]

        for block in _blocks(cluster):
            for entry, used_network in used:
                if _overlap(network(block.text), used_network):
                    detail = f"overlaps {used_network}, a network of {entry}"
                    yield LocatedFinding(cluster, block.invalid(detail), entry)
                    break


def _networks(spec: Field) -> Iterator[Network]:
    """Yield the networks in the spec of a HarvesterCluster or HarvesterMachine."""
    for pool in (spec.at("loadBalancerConfig", "ipPool"), spec.at("vmNetworkConfig", "ipPool")):
        if pool_network := network(pool.at("subnet").text):
            yield pool_network

    for config in (spec.at("vmNetworkConfig"), spec.at("networkConfig")):
        gateway = config.at("gateway").text
        mask = config.at("subnetMask").text
        if gateway and mask and (gateway_network := network(f"{gateway}/{mask}")):
            yield gateway_network


@RULES.rule(
    "interface-route-dhcp",
    (MACHINE, MACHINE_TEMPLATE),
    "The first interface must not have `routes` if neither machine nor cluster gives it an "
    "address: guests take those next to DHCP from its server.",
    example=(
        "`networkInterfaces: [{network: default/production, routes: [...]}]` in a cluster without "
        "`vmNetworkConfig`: add pools, or remove the routes"
    ),
)
def _routes_with_dhcp(inventory: Inventory) -> Iterator[Located]:
    for entry, infrastructure in _with_infrastructure(inventory):
        yield from _check_routes(entry, infrastructure)


class _Consumer(NamedTuple):
    """A machine or template of machines, and the HarvesterCluster whose network it uses."""

    entry: Entry
    infrastructure: Entry


def _with_infrastructure(inventory: Inventory) -> Iterator[_Consumer]:
    """Yield the machines and templates whose HarvesterCluster is in the inventory."""
    for machine in inventory.of_kind(MACHINE):
        if infrastructure := inventory.infrastructure(machine):
            yield _Consumer(machine, infrastructure)
    for cluster, infrastructure in inventory.clusters:
        for template in machine_templates(inventory, cluster):
            yield _Consumer(template, infrastructure)


def _check_routes(entry: Entry, infrastructure: Entry) -> Iterator[Located]:
    """Yield routes of a first interface that has DHCP because the cluster gives no addresses."""
    if infrastructure.spec.at("vmNetworkConfig").present:
        return
    # The rules about one object report all other conflicts.
    reported = list(interfaces.conflicts(entry.spec.mapping))
    field = entry.spec.at(interfaces.FIELD)
    for conflict in interfaces.conflicts(entry.spec.mapping, first_has_dhcp=True):
        if conflict.kind == interfaces.ROUTE and conflict not in reported:
            finding = Finding((*field.path, *conflict.path), Fault.INVALID, conflict.detail)
            yield LocatedFinding(entry, finding, infrastructure)


class _Link(NamedTuple):
    """A VM network and its Harvester; either is empty if unknown."""

    harvester: str
    vm_network: str


class _Range(NamedTuple):
    """Addresses of a pool."""

    entry: Entry
    field: Field
    link: _Link
    first: ipaddress.IPv4Address
    last: ipaddress.IPv4Address


def harvester(infrastructure: Entry) -> str:
    """Return what identifies the Harvester of a HarvesterCluster: the name of its identity.

    HarvesterClusters with the same identity share a Harvester.
    """
    if reference := infrastructure.field.at("spec", "identityRef", "name").text:
        return reference
    secret = infrastructure.field.at("spec", "identitySecret")
    return f"{secret.at('namespace').text}/{secret.at('name').text}"


def qualify(vm_network: str, infrastructure: Entry | None) -> str:
    """Return a VM network as `namespace/name` if its namespace is known, else unchanged."""
    if "/" in vm_network or infrastructure is None:
        return vm_network
    return f"{infrastructure.spec.at('targetNamespace').text}/{vm_network}"


def _ranges(inventory: Inventory) -> Iterator[_Range]:
    """Yield the address ranges of all pools that clusters describe, and of all IPPools."""
    for entry in inventory.of_kind(CLUSTER):
        for config in ("loadBalancerConfig", "vmNetworkConfig"):
            pool = entry.spec.at(config, "ipPool")
            link = _Link(harvester(entry), qualify(pool.at("vmNetwork").text, entry))
            yield from _range(entry, pool, link)

    for entry in inventory.of_kind("IPPool", POOL_GROUP):
        vm_network = entry.spec.at("selector", "network").text
        for part in entry.spec.at("ranges").each():
            yield from _range(entry, part, _Link("", vm_network))


def _range(entry: Entry, field: Field, link: _Link) -> Iterator[_Range]:
    """Yield the addresses of a pool, unless its subnet is invalid."""
    subnet = network(field.at("subnet").text)
    if not isinstance(subnet, ipaddress.IPv4Network):
        return
    first = address(field.at("rangeStart").text) or subnet.network_address
    last = address(field.at("rangeEnd").text) or subnet.broadcast_address
    yield _Range(entry, field, link, first, last)


def _may_share_network(first: _Link, second: _Link) -> bool:
    """Return whether two addresses may be on the same VM network of the same Harvester."""
    if not first.vm_network or first.vm_network != second.vm_network:
        return False
    # An IPPool does not name its Harvester, but the files usually describe only one.
    return first.harvester == second.harvester or not first.harvester or not second.harvester


def _need_separate_ranges(first: _Link, second: _Link) -> bool:
    """Return whether two pools share a Harvester or may share a VM network."""
    share_harvester = bool(first.harvester) and first.harvester == second.harvester
    return share_harvester or _may_share_network(first, second)


@RULES.rule(
    "pool-overlap",
    (CLUSTER, "IPPool"),
    "Address ranges of pools on one Harvester, or on one VM network, must not overlap, even for "
    "different clusters: Harvester refuses the second pool.",
    example=(
        "HarvesterClusters `a` and `b` with pools 172.17.1.50-100 and 172.17.1.90-120: separate "
        "the ranges"
    ),
)
def _pool_overlap(inventory: Inventory) -> Iterator[Located]:
    # Sort by the first address, so that a range can only overlap ranges that are still open.
    ordered = sorted(_ranges(inventory), key=lambda pool: (pool.first, pool.entry.index))
    open_pools: list[_Range] = []
    for pool in ordered:
        open_pools = [other for other in open_pools if other.last >= pool.first]
        other = _conflicting(pool, open_pools)
        # A pool that overlaps also stays open, because a later one may overlap only this pool.
        open_pools.append(pool)
        if other is None:
            continue

        range_start = pool.field.at("rangeStart")
        field = range_start if range_start.present else pool.field.at("subnet")
        detail = (
            f"range {pool.first}-{pool.last} overlaps {other.first}-{other.last} of "
            f"{other.entry}: separate them"
        )
        yield LocatedFinding(pool.entry, field.invalid(detail), other.entry)


def _conflicting(pool: _Range, others: list[_Range]) -> _Range | None:
    """Return the first pool that needs a separate range.

    Other rules compare the pools of the same object.
    """
    for other in others:
        if other.entry is not pool.entry and _need_separate_ranges(other.link, pool.link):
            return other
    return None


@RULES.rule(
    "pool-subnet",
    (CLUSTER, MACHINE, MACHINE_TEMPLATE),
    "Gateway and mask of `vmNetworkConfig` must be those of a subnet of the IPPools that it names: "
    "machines with others never report their address.",
    example="`subnetMask: 255.255.0.0` with IPPool `machines` in 172.16.0.0/17: 255.255.128.0",
)
def _pool_subnet(inventory: Inventory) -> Iterator[Located]:
    # Skip pools without a name, because nothing can reference them.
    pools = {pool.name: pool for pool in inventory.of_kind("IPPool", POOL_GROUP) if pool.name}
    for kind in (CLUSTER, MACHINE, MACHINE_TEMPLATE):
        for entry in inventory.of_kind(kind):
            config = entry.spec.at("vmNetworkConfig")
            gateway = config.at("gateway").text
            mask = config.at("subnetMask").text

            for name in config.at("ipPoolRefs").each() or [config.at("ipPoolRef")]:
                pool = pools.get(name.text.rpartition("/")[2])
                problems = contradictions(pool.obj, gateway, mask) if pool else {}
                for field, problem in problems.items():
                    detail = f"{problem}: correct it"
                    yield LocatedFinding(entry, config.at(field).invalid(detail), pool)


class _Static(NamedTuple):
    """The static address of a machine."""

    entry: Entry
    field: Field
    link: _Link
    address: interfaceaddresses.Address


def _statics(inventory: Inventory) -> Iterator[_Static]:
    """Yield the static addresses of machines whose VM network is known."""
    for entry in inventory.of_kind(MACHINE):
        networks = entry.spec.at("networks").each()
        if not networks:
            continue
        infrastructure = inventory.infrastructure(entry)
        harvester_id = harvester(infrastructure) if infrastructure else ""

        field = entry.spec.at("networkConfig", "address")
        if static_address := address(field.text):
            # The first interface has the static address.
            link = _Link(harvester_id, qualify(networks[0].text, infrastructure))
            yield _Static(entry=entry, field=field, link=link, address=static_address)
        for interface in entry.spec.at("networkInterfaces").each():
            link = _Link(harvester_id, qualify(interface.at("network").text, infrastructure))
            for item in interface.at("addresses").each():
                field = item.at("address")
                if parsed := interfaceaddresses.interface_of(field.text):
                    yield _Static(entry=entry, field=field, link=link, address=parsed.ip)


@RULES.rule(
    "static-address-duplicate",
    (MACHINE,),
    "Static addresses must be unique on a VM network.",
    example="two HarvesterMachines with `networkConfig.address: 172.17.1.60`: give each its own",
)
def _static_duplicate(inventory: Inventory) -> Iterator[Located]:
    by_address: dict[interfaceaddresses.Address, list[_Static]] = {}
    for static in _statics(inventory):
        others = by_address.setdefault(static.address, [])
        for other in others:
            if _may_share_network(other.link, static.link):
                detail = (
                    f"{other.entry} has this address on VM network {static.link.vm_network}, too: "
                    "give each its own"
                )
                finding = static.field.problem(Fault.DUPLICATE, detail)
                yield LocatedFinding(static.entry, finding, other.entry)
                break
        others.append(static)


@RULES.rule(
    "static-address-in-pool",
    (MACHINE,),
    "A static address must be outside the ranges of pools on its VM network: a pool would give it "
    "to another machine.",
    example=(
        "`networkConfig.address: 172.17.1.60` and a pool 172.17.1.50-100: take an address outside "
        "of the range"
    ),
    advice=True,
)
def _static_in_pool(inventory: Inventory) -> Iterator[Located]:
    pools = list(_ranges(inventory))
    for static in _statics(inventory):
        for pool in pools:
            is_inside = (
                isinstance(static.address, ipaddress.IPv4Address)
                and pool.first <= static.address <= pool.last
            )
            if is_inside and _may_share_network(pool.link, static.link):
                detail = (
                    f"lies in range {pool.first}-{pool.last} of {pool.entry}: take an address "
                    "outside of it"
                )
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
        field = template.spec.at("networkConfig", "address")
        if field.text and replicas.number is not None and replicas.number > 1:
            detail = (
                f"{owner} makes {replicas.number} machines of this template, all with this "
                "address: use a pool"
            )
            yield LocatedFinding(template, field.invalid(detail), owner)


@RULES.rule(
    "static-address-network",
    (MACHINE, MACHINE_TEMPLATE),
    "A static address without a mask of its own must be in one network with its gateway by the "
    "mask of its cluster.",
    example=(
        "`networkConfig: {address: 172.17.1.60, gateway: 172.17.2.1}` in a cluster with mask "
        "255.255.255.0: correct the gateway"
    ),
)
def _static_network(inventory: Inventory) -> Iterator[Located]:
    for entry, infrastructure in _with_infrastructure(inventory):
        yield from _check_gateway(entry, infrastructure)


def _check_gateway(entry: Entry, infrastructure: Entry) -> Iterator[Located]:
    """Yield a static gateway outside of the machine's network by the mask of its cluster."""
    static = entry.spec.at("networkConfig")
    host = address(static.at("address").text)
    gateway = address(static.at("gateway").text)
    mask = infrastructure.spec.at("vmNetworkConfig", "subnetMask").text
    # The rules about one object check a machine with its own mask.
    if host is None or gateway is None or not mask or static.at("subnetMask").present:
        return

    by_cluster = network(f"{host}/{mask}")
    by_default = network(f"{host}/{_DEFAULT_PREFIX}")
    if by_cluster is None or by_default is None:
        return
    # The rules about a machine report a gateway beyond the default mask.
    if gateway in by_default and gateway not in by_cluster:
        detail = (
            f"is not in the machine's network {by_cluster} by the mask of {infrastructure}: "
            "correct it, or set subnetMask"
        )
        yield LocatedFinding(entry, static.at("gateway").invalid(detail), infrastructure)
