"""Rules about address pools that an object names or a cluster creates."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.names import rfc1035
from caphv.validation.finding import Fault, Finding, path_text
from caphv.validation.rule import Rules
from webhooks.rules.cluster import has_external_endpoint
from webhooks.rules.model import CLUSTER, CLUSTERS, KINDS, MACHINES, Field, Subject
from webhooks.rules.values import IPv4Network, address, is_end, network, pool_range, subnet

RULES = Rules()

# The controller ends the names of pools that it creates with these.
_CREATED = ("ippool", "vm-ippool")
# Every release that cut names at 63 characters kept at least this much of their beginning.
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
    has_pool = any(config.at(key).present for key in ("ipPoolRef", "ipPoolRefs", "ipPool"))
    if isinstance(config.value, dict) and not has_pool:
        yield config.at("ipPoolRef").required(
            "set ipPoolRef, ipPoolRefs or ipPool; for DHCP remove vmNetworkConfig"
        )


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
        yield config.at("ipPoolRef").required(
            "set ipPoolRef or ipPoolRefs; for DHCP or the cluster's pools remove all"
        )


@RULES.rule(
    "machine-vm-network-new-pool",
    MACHINES,
    "`vmNetworkConfig` of a machine must not have an `ipPool`: the provider creates pools for "
    "clusters only.",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: "
        "172.17.1.0/24, gateway: 172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _machine_vm_network_new_pool(subject: Subject) -> Iterator[Finding]:
    pool = subject.spec.at("vmNetworkConfig", "ipPool")
    if pool.mapping:
        yield pool.forbidden(
            "is made for clusters only: use ipPoolRef, or ipPool of the HarvesterCluster"
        )


@RULES.rule(
    "ip-pool-exclusive",
    CLUSTERS,
    "`ipPool` must not be set together with `ipPoolRef` or `ipPoolRefs`. The controller writes the "
    "name of the pool that it creates into `ipPoolRef`.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-pool, ipPool: {subnet: 172.17.1.0/24, "
        "gateway: 172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _ip_pool_exclusive(subject: Subject) -> Iterator[Finding]:
    for config in (subject.spec.at("vmNetworkConfig"), subject.spec.at("loadBalancerConfig")):
        reference = config.at("ipPoolRef").text
        has_reference = reference and not _is_own_pool(subject, reference)
        if config.at("ipPool").mapping and (has_reference or config.at("ipPoolRefs").present):
            yield config.at("ipPool").forbidden(
                "excludes ipPoolRef and ipPoolRefs: name a pool that exists, or describe one to be "
                "made"
            )


@RULES.rule(
    "pool-refs-unique",
    KINDS,
    "`ipPoolRefs` must name each pool once.",
    "vmNetworkConfig.ipPoolRefs[]",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPoolRefs: [pool-a, "
        "pool-a]}"
    ),
)
def _pool_refs_unique(subject: Subject) -> Iterator[Finding]:
    names: set[str] = set()
    for reference in subject.spec.at("vmNetworkConfig", "ipPoolRefs").each():
        # A namespace before the name has no effect.
        name = reference.text.rpartition("/")[2]
        if name and name in names:
            detail = "this pool is asked before already: name each pool once"
            yield reference.problem(Fault.DUPLICATE, detail)
        names.add(name)


@RULES.rule(
    "pool-ref-unused",
    KINDS,
    "`ipPoolRef` must be one of `ipPoolRefs` where both are set: only the list is used.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPoolRef: pool-a, "
        "ipPoolRefs: [pool-b]}"
    ),
    advice=True,
)
def _unused_pool_ref(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    reference = config.at("ipPoolRef")
    names = [listed.text for listed in config.at("ipPoolRefs").each()]
    if names and reference.text and reference.text not in names:
        yield reference.invalid("is not asked, because ipPoolRefs is set: put it into that list")


@RULES.rule(
    "ip-pool-subnet",
    CLUSTERS,
    "The subnet of a pool must be an IPv4 network in CIDR form, with room for hosts.",
    "vmNetworkConfig.ipPool.subnet",
    "loadBalancerConfig.ipPool.subnet",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0, gateway: 172.17.1.1, "
        "vmNetwork: default/production}}"
    ),
)
def _ip_pool_subnet(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        field = pool.at("subnet")
        pool_subnet = subnet(field)
        # /0 contains every address, and /32 only the gateway.
        is_usable = pool_subnet is not None and pool_subnet.prefixlen not in (0, 32)
        if isinstance(field.value, str) and not is_usable:
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
        field = pool.at("subnet")
        pool_subnet = subnet(field)
        if pool_subnet is None:
            continue
        if str(pool_subnet.network_address) != field.text.partition("/")[0]:
            yield field.invalid(f"is taken for {pool_subnet}: write that")


@RULES.rule(
    "ip-pool-gateway",
    CLUSTERS,
    "The gateway of a pool must be a host of its subnet.",
    "vmNetworkConfig.ipPool.gateway",
    "loadBalancerConfig.ipPool.gateway",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 10.0.0.1, "
        "vmNetwork: default/production}}"
    ),
)
def _ip_pool_gateway(subject: Subject) -> Iterator[Finding]:
    for pool in pools(subject):
        yield from _check_host(pool.at("gateway"), subnet(pool.at("subnet")))


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
            yield from _check_host(pool.at(key), subnet(pool.at("subnet")))


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
        start = address(pool.at("rangeStart"))
        end = address(pool.at("rangeEnd"))
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
        addresses = pool_range(pool)
        gateway = address(pool.at("gateway"))
        if addresses is None or gateway is None:
            continue
        if addresses.first == addresses.last == gateway:
            detail = "has only the gateway's address: give it a larger range"
            yield Finding(pool.path, Fault.INVALID, detail)


@RULES.rule(
    "external-endpoint-in-pool",
    (CLUSTER,),
    "With `ipamType: none`, the address of the endpoint must be outside the range of the pool that "
    "the cluster creates. Its machines do not get it, but others may.",
    "controlPlaneEndpoint.host",
    "vmNetworkConfig.ipPool",
    example=(
        "{loadBalancerConfig: {ipamType: none}, controlPlaneEndpoint: {host: 172.17.1.50, port: "
        "6443}, vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: "
        "172.17.1.0/24, gateway: 172.17.1.1, vmNetwork: default/production}}}"
    ),
    advice=True,
)
def _external_endpoint_in_pool(subject: Subject) -> Iterator[Finding]:
    host = subject.spec.at("controlPlaneEndpoint", "host")
    addresses = pool_range(subject.spec.at("vmNetworkConfig", "ipPool"))
    endpoint = address(host)
    if not has_external_endpoint(subject.spec) or addresses is None or endpoint is None:
        return
    if addresses.first <= endpoint <= addresses.last:
        yield host.invalid(
            f"is in the range of vmNetworkConfig.ipPool, {addresses.first} to {addresses.last}: "
            "set rangeStart or rangeEnd so that it is outside"
        )


@RULES.rule(
    "ip-pools-overlap",
    CLUSTERS,
    "Ranges of two pools must not overlap, whatever their VM networks: Harvester refuses the "
    "second pool.",
    "vmNetworkConfig.ipPool",
    "loadBalancerConfig.ipPool",
    example=(
        "{loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: "
        "172.17.1.1, vmNetwork: default/front}}, vmNetworkConfig: {gateway: 172.17.1.1, "
        "subnetMask: 255.255.255.0, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production}}}"
    ),
)
def _ip_pools_overlap(subject: Subject) -> Iterator[Finding]:
    balancer_pool = subject.spec.at("loadBalancerConfig", "ipPool")
    machine_pool = subject.spec.at("vmNetworkConfig", "ipPool")
    balancers = pool_range(balancer_pool)
    machines = pool_range(machine_pool)
    if balancers is None or machines is None:
        return

    if balancers.first <= machines.last and machines.first <= balancers.last:
        detail = f"shares addresses with {path_text(balancer_pool.path)}: give them ranges apart"
        yield Finding(machine_pool.path, Fault.INVALID, detail)


@RULES.rule(
    "vm-network-fits-pool",
    CLUSTERS,
    "The addresses of `ipPool` must be in the network of `gateway` and `subnetMask`, so that VMs "
    "reach their gateway.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.subnetMask",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 10.0.0.1, subnetMask: 255.255.255.0, ipPool: {subnet: "
        "172.17.1.0/24, gateway: 172.17.1.1, vmNetwork: default/production}}"
    ),
)
def _vm_network_fits_pool(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    addresses = pool_range(config.at("ipPool"))
    gateway = address(config.at("gateway"))
    if addresses is None or gateway is None:
        return

    vm_network = network(gateway, config.at("subnetMask"))
    if vm_network is None:
        return
    if addresses.first not in vm_network or addresses.last not in vm_network:
        yield config.at("gateway").invalid(
            f"its network {vm_network} leaves out addresses of ipPool ({addresses.first} to "
            f"{addresses.last}): correct gateway, subnetMask or ipPool"
        )


@RULES.rule(
    "vm-network-gateway-free",
    CLUSTERS,
    "`gateway` must be that of `ipPool`, or outside its range: a machine would get the gateway's "
    "address.",
    "vmNetworkConfig.gateway",
    "vmNetworkConfig.ipPool",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPool: {subnet: "
        "172.17.1.0/24, gateway: 172.17.1.254, vmNetwork: default/production}}"
    ),
)
def _vm_network_gateway_free(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    pool = config.at("ipPool")
    gateway = address(config.at("gateway"))
    addresses = pool_range(pool)
    pool_gateway = address(pool.at("gateway"))
    if addresses is None or gateway is None or pool_gateway in (None, gateway):
        return

    # Another rule reports a pool whose own gateway is invalid.
    if any(_check_host(pool.at("gateway"), subnet(pool.at("subnet")))):
        return
    if addresses.first <= gateway <= addresses.last:
        yield config.at("gateway").invalid(
            f"ipPool would give this address to a machine ({addresses.first} to {addresses.last}): "
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
    pool = config.at("ipPool")

    gateway = address(config.at("gateway"))
    pool_gateway = address(pool.at("gateway"))
    if gateway is not None and pool_gateway is not None and gateway != pool_gateway:
        yield config.at("gateway").invalid(
            f"ipPool has gateway {pool_gateway}: write the one that VMs have in both places"
        )

    mask = address(config.at("subnetMask"))
    pool_subnet = subnet(pool.at("subnet"))
    if mask is not None and pool_subnet is not None and mask != pool_subnet.netmask:
        yield config.at("subnetMask").invalid(
            f"ipPool has subnet {pool_subnet}: write the network's own, and a range"
        )


def pools(subject: Subject) -> list[Field]:
    """Return the pools that a cluster describes, each as an `ipPool`."""
    balancer_pool = subject.spec.at("loadBalancerConfig", "ipPool")
    machine_pool = subject.spec.at("vmNetworkConfig", "ipPool")
    return [pool for pool in (balancer_pool, machine_pool) if pool.mapping]


def _is_own_pool(subject: Subject, name: str) -> bool:
    """Return whether the controller may have created this pool and written its name."""
    metadata = subject.obj.at("metadata")
    # Cut the names, because clients may send longer ones than an API server accepts.
    namespace = metadata.at("namespace").text[:63]
    cluster = metadata.at("name").text[:253]
    if subject.is_template or not cluster:
        return False
    if not namespace:
        # A file may leave the namespace to kubectl.
        return name.endswith(f"-{_CREATED[0]}")

    # Releases cut long names at different lengths, so a long name need only begin like ours.
    owner = rfc1035(f"{namespace}-{cluster}")
    is_uncut = name in [f"{owner}-{suffix}" for suffix in _CREATED]
    may_be_cut = len(name) > _SURE_LENGTH and name.startswith(owner[:_SURE_LENGTH])
    return is_uncut or may_be_cut


def _check_host(field: Field, pool_subnet: IPv4Network | None) -> Iterator[Finding]:
    """Yield a finding if no host of the subnet can have the address."""
    host = address(field)
    if host is None or pool_subnet is None:
        return
    if host not in pool_subnet:
        yield field.invalid(f"is not in subnet {pool_subnet}")
    elif is_end(host, pool_subnet):
        yield field.invalid(
            f"is the network or broadcast address of {pool_subnet}: use one between them"
        )
