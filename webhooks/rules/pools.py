"""Rules about address pools: those that a cluster or machine names, and those that a cluster has made."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.names import rfc1035
from caphv.validation.finding import Fault, Finding, rendered
from caphv.validation.rule import Rules
from webhooks.rules.model import CLUSTERS, KINDS, MACHINES, Field, Subject
from webhooks.rules.values import IPv4Network, address, is_end, network, pool_range, subnet

RULES = Rules()

# The ends of names that the controller gives to pools.
_CREATED = ("ippool", "vm-ippool")
# Of names that were cut at 63 characters this much is left at least, whatever release cut them.
_SURE_LENGTH = 40


@RULES.rule(
    "vm-network-pool",
    CLUSTERS,
    "`vmNetworkConfig` of a cluster must have a pool: `ipPoolRef`, `ipPoolRefs` or `ipPool`.",
    "vmNetworkConfig",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
    refused_by_go=True,
)
def _vm_network_pool(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    named = (config.at(key).present for key in ("ipPoolRef", "ipPoolRefs", "ipPool"))
    if isinstance(config.value, dict) and not any(named):
        yield config.at("ipPoolRef").required("set ipPoolRef, ipPoolRefs or ipPool; for DHCP remove vmNetworkConfig")


@RULES.rule(
    "machine-vm-network-pool",
    MACHINES,
    "`vmNetworkConfig` of a machine must name existing pools: `ipPoolRef` or `ipPoolRefs`.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0}",
)
def _machine_vm_network_pool(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    if config.mapping and not (config.at("ipPoolRef").present or config.at("ipPoolRefs").present):
        yield config.at("ipPoolRef").required("set ipPoolRef or ipPoolRefs; for DHCP or the cluster's pools remove all")


@RULES.rule(
    "machine-vm-network-new-pool",
    MACHINES,
    "`vmNetworkConfig` of a machine must not have an `ipPool`: the provider creates pools for clusters only.",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: 172.17.1.0/24, "
        "gateway: 172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _machine_vm_network_new_pool(subject: Subject) -> Iterator[Finding]:
    pool = subject.spec.at("vmNetworkConfig", "ipPool")
    if pool.mapping:
        yield pool.forbidden("is made for clusters only: use ipPoolRef, or ipPool of the HarvesterCluster")


@RULES.rule(
    "ip-pool-exclusive",
    CLUSTERS,
    "`ipPool` must not be set together with `ipPoolRef` or `ipPoolRefs`. The controller writes the name of the pool "
    "that it creates into `ipPoolRef`.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-pool, ipPool: {subnet: 172.17.1.0/24, gateway: "
        "172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _ip_pool_exclusive(subject: Subject) -> Iterator[Finding]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("loadBalancerConfig")):
        pool, reference, references = (config.at(key) for key in ("ipPool", "ipPoolRef", "ipPoolRefs"))
        other = reference.text and not _created(subject, reference.text)
        if pool.mapping and (other or references.present):
            yield pool.forbidden(
                "excludes ipPoolRef and ipPoolRefs: name a pool that exists, or describe one to be made"
            )


@RULES.rule(
    "pool-refs-unique",
    KINDS,
    "`ipPoolRefs` must name each pool once.",
    "vmNetworkConfig.ipPoolRefs[]",
    example="vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPoolRefs: [pool-a, pool-a]}",
)
def _pool_refs_unique(subject: Subject) -> Iterator[Finding]:
    seen: set[str] = set()
    for reference in subject.spec.at("vmNetworkConfig", "ipPoolRefs").each():
        name = reference.text.rpartition("/")[2]
        if name and name in seen:
            yield reference.problem(Fault.DUPLICATE, "this pool is asked before already: name each pool once")
        seen.add(name)


@RULES.rule(
    "pool-ref-unused",
    KINDS,
    "`ipPoolRef` must be one of `ipPoolRefs` where both are set: only the list is used.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPoolRef: pool-a, ipPoolRefs: [pool-b]}"
    ),
    advice=True,
)
def _pool_ref_unused(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    named = [reference.text for reference in config.at("ipPoolRefs").each()]
    if named and config.at("ipPoolRef").text and config.at("ipPoolRef").text not in named:
        yield config.at("ipPoolRef").invalid("is not asked, because ipPoolRefs is set: put it into that list")


@RULES.rule(
    "ip-pool-subnet",
    CLUSTERS,
    "The subnet of a pool must be an IPv4 network in CIDR form, with room for hosts.",
    "vmNetworkConfig.ipPool.subnet",
    "loadBalancerConfig.ipPool.subnet",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0, gateway: 172.17.1.1, vmNetwork: "
        "default/production}}"
    ),
)
def _ip_pool_subnet(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        field = pool.at("subnet")
        whole = subnet(field)
        if isinstance(field.value, str) and (whole is None or whole.prefixlen in (0, 32)):
            yield field.invalid("must be an IPv4 subnet in CIDR form, for example 172.17.1.0/24")


@RULES.rule(
    "ip-pool-subnet-host",
    CLUSTERS,
    "The subnet of a pool must be written with its network address.",
    "vmNetworkConfig.ipPool.subnet",
    "loadBalancerConfig.ipPool.subnet",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.5/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production}}"
    ),
    advice=True,
)
def _ip_pool_subnet_host(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        whole = subnet(pool.at("subnet"))
        if whole is not None and str(whole.network_address) != pool.at("subnet").text.partition("/")[0]:
            yield pool.at("subnet").invalid(f"is taken for {whole}: write that")


@RULES.rule(
    "ip-pool-gateway",
    CLUSTERS,
    "The gateway of a pool must be a host of its subnet.",
    "vmNetworkConfig.ipPool.gateway",
    "loadBalancerConfig.ipPool.gateway",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 10.0.0.1, vmNetwork: "
        "default/production}}"
    ),
)
def _ip_pool_gateway(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        yield from _outside(pool.at("gateway"), subnet(pool.at("subnet")))


@RULES.rule(
    "ip-pool-range",
    CLUSTERS,
    "The range of a pool must be inside its subnet, without network and broadcast address.",
    "vmNetworkConfig.ipPool.rangeStart",
    "vmNetworkConfig.ipPool.rangeEnd",
    "loadBalancerConfig.ipPool.rangeStart",
    "loadBalancerConfig.ipPool.rangeEnd",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production, rangeStart: 172.17.2.10}}"
    ),
)
def _ip_pool_range(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        for key in ("rangeStart", "rangeEnd"):
            yield from _outside(pool.at(key), subnet(pool.at("subnet")))


@RULES.rule(
    "ip-pool-range-order",
    CLUSTERS,
    "The range of a pool must start before it ends.",
    "vmNetworkConfig.ipPool.rangeEnd",
    "loadBalancerConfig.ipPool.rangeEnd",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production, rangeStart: 172.17.1.100, rangeEnd: 172.17.1.50}}"
    ),
)
def _ip_pool_range_order(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        start, end = address(pool.at("rangeStart")), address(pool.at("rangeEnd"))
        if start is not None and end is not None and start > end:
            yield pool.at("rangeEnd").invalid(f"is before rangeStart {start}: exchange the two")


@RULES.rule(
    "ip-pool-empty",
    CLUSTERS,
    "A pool must have an address to allocate besides that of its gateway.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production, rangeStart: 172.17.1.1, rangeEnd: 172.17.1.1}}"
    ),
)
def _ip_pool_empty(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        given, gateway = pool_range(pool), address(pool.at("gateway"))
        if given is not None and gateway is not None and given.first == given.last == gateway:
            yield Finding(pool.path, Fault.INVALID, "has only the gateway's address: give it a larger range")


@RULES.rule(
    "ip-pools-overlap",
    CLUSTERS,
    "Ranges of two pools must not overlap, whatever their VM networks: Harvester refuses the second pool.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example=(
        "{loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/front}}, vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, "
        "ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, vmNetwork: default/production}}}"
    ),
)
def _ip_pools_overlap(subject: Subject) -> Iterator[Finding]:
    balancers, machines = (subject.spec.at(key, "ipPool") for key in ("loadBalancerConfig", "vmNetworkConfig"))
    one, other = pool_range(balancers), pool_range(machines)
    if one is None or other is None:
        return
    if one.first <= other.last and other.first <= one.last:
        detail = f"shares addresses with {rendered(balancers.path)}: give them ranges apart"
        yield Finding(machines.path, Fault.INVALID, detail)


@RULES.rule(
    "vm-network-fits-pool",
    CLUSTERS,
    "The addresses of `ipPool` must be in the network of `gateway` and `subnetMask`, so that VMs reach their gateway.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 10.0.0.1, subnetMask: 255.255.255.0, ipPool: {subnet: 172.17.1.0/24, "
        "gateway: 172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _vm_network_fits_pool(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    given, gateway = pool_range(config.at("ipPool")), address(config.at("gateway"))
    within = network(gateway, config.at("subnetMask")) if gateway is not None else None
    if given is not None and within is not None and not (given.first in within and given.last in within):
        yield config.at("gateway").invalid(
            f"its network {within} leaves out addresses of ipPool ({given.first} to {given.last}): "
            "correct gateway, subnetMask or ipPool"
        )


@RULES.rule(
    "vm-network-gateway-free",
    CLUSTERS,
    "`gateway` must be that of `ipPool`, or outside its range: a machine would get the gateway's address.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: 172.17.1.0/24, "
        "gateway: 172.17.1.254, vmNetwork: default/production}}"
    ),
)
def _vm_network_gateway_free(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    pool, gateway = config.at("ipPool"), address(config.at("gateway"))
    given, reserved = pool_range(pool), address(pool.at("gateway"))
    if given is None or gateway is None or reserved in (None, gateway):
        return
    # A wrong gateway of the pool is reported as such.
    is_known = not list(_outside(pool.at("gateway"), subnet(pool.at("subnet"))))
    if is_known and given.first <= gateway <= given.last:
        yield config.at("gateway").invalid(
            f"ipPool would give this address to a machine ({given.first} to {given.last}): "
            "make it the gateway of ipPool, too, or leave it out of the range"
        )


@RULES.rule(
    "vm-network-like-pool",
    CLUSTERS,
    "`gateway` and `subnetMask` must describe the same network as `ipPool`.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 172.17.0.1, subnetMask: 255.255.0.0, "
        "ipPool: {subnet: 172.17.3.0/24, gateway: 172.17.3.1, vmNetwork: default/production}}"
    ),
    advice=True,
)
def _vm_network_like_pool(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    pool, gateway, mask = config.at("ipPool"), config.at("gateway"), address(config.at("subnetMask"))
    whole, reserved = subnet(pool.at("subnet")), address(pool.at("gateway"))
    if address(gateway) is not None and reserved is not None and address(gateway) != reserved:
        yield gateway.invalid(f"ipPool has gateway {reserved}: write the one that VMs have in both places")
    if mask is not None and whole is not None and mask != whole.netmask:
        yield config.at("subnetMask").invalid(f"ipPool has subnet {whole}: write the network's own, and a range")


def pools(subject: Subject) -> list[Field]:
    """Pools that a cluster describes, each as an `ipPool`."""
    places = (subject.spec.at("loadBalancerConfig", "ipPool"), subject.spec.at("vmNetworkConfig", "ipPool"))
    return [pool for pool in places if pool.mapping]


def _created(subject: Subject, name: str) -> bool:
    """Whether the controller may have made a pool of this name for this cluster, and written the name into it."""
    metadata = subject.obj.at("metadata")
    # No API server takes longer ones, but other clients send them.
    namespace, cluster = metadata.at("namespace").text[:63], metadata.at("name").text[:253]
    if subject.is_template or not cluster:
        return False
    if not namespace:
        # A file may leave it to kubectl.
        return name.endswith(f"-{_CREATED[0]}")
    owner = rfc1035(f"{namespace}-{cluster}")
    return name in {f"{owner}-{suffix}" for suffix in _CREATED} or (
        len(name) > _SURE_LENGTH and name.startswith(owner[:_SURE_LENGTH])
    )


def _outside(field: Field, within: IPv4Network | None) -> Iterator[Finding]:
    """What is wrong with a host of a subnet."""
    host = address(field)
    if host is None or within is None:
        return
    if host not in within:
        yield field.invalid(f"is not in subnet {within}")
    elif is_end(host, within):
        yield field.invalid(f"is the network or broadcast address of {within}: use one between them")
