"""Decide the network configuration of a machine from the specs of the machine and its cluster.

Only this module decides the precedence, because address management, cloud-init and the deletion of
a machine must agree on it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from caphv.api import interfaces, ippool
from caphv.api.object import Obj

DEFAULT_MASK = "255.255.0.0"


@dataclass(frozen=True)
class StaticAddress:
    """The address of the first NIC, known before the VM exists.

    `mask` is dotted (`255.255.0.0`).
    """

    address: str
    mask: str
    gateway: str
    dns_servers: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolNetwork:
    """An address from the first of `pools` (names of cluster-scoped IPPools) with a free one.

    `pools` is empty until the pool that the cluster defines (`vmNetworkConfig.ipPool`) has been
    created.
    """

    pools: tuple[str, ...]
    mask: str
    gateway: str
    dns_servers: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dhcp:
    """Every NIC gets its address from a DHCP server."""


@dataclass(frozen=True)
class InterfaceNetwork:
    """The first NIC gets its addresses as its settings say; see `guestinterfaces`."""


Network = StaticAddress | PoolNetwork | Dhcp | InterfaceNetwork


def effective_network(machine_spec: Obj, cluster_spec: Obj) -> Network:
    """Apply the contract's precedence to the specs of a machine and its HarvesterCluster."""
    if 0 in interfaces.addressed_numbers(machine_spec):
        return InterfaceNetwork()

    config = machine_spec.get("vmNetworkConfig") or cluster_spec.get("vmNetworkConfig")
    static = machine_spec.get("networkConfig")
    if static:
        return StaticAddress(
            address=static.get("address", ""),
            mask=static.get("subnetMask") or (config or {}).get("subnetMask") or DEFAULT_MASK,
            gateway=static.get("gateway", ""),
            dns_servers=tuple(static.get("dnsServers") or ()),
            dns_search=tuple(static.get("dnsSearch") or ()),
        )
    if not config:
        return Dhcp()

    return PoolNetwork(
        pools=ippool.referenced_pools(config),
        mask=config.get("subnetMask") or DEFAULT_MASK,
        gateway=config.get("gateway", ""),
        dns_servers=tuple(config.get("dnsServers") or ()),
        dns_search=tuple(config.get("dnsSearch") or ()),
    )


def with_address(network: PoolNetwork, address: str) -> StaticAddress:
    """Return the static configuration of a machine that got `address` from a pool."""
    return StaticAddress(
        address=address,
        mask=network.mask,
        gateway=network.gateway,
        dns_servers=network.dns_servers,
        dns_search=network.dns_search,
    )


def dhcp_interfaces(
    network: Network, nic_count: int, addressed: Collection[int] = ()
) -> tuple[str, ...]:
    """Name the guest's interfaces (`eth0`, …) that get their address by DHCP.

    :param addressed: numbers of the interfaces whose settings give them addresses
    """
    first = 0 if isinstance(network, Dhcp) else 1
    return tuple(f"eth{number}" for number in range(first, nic_count) if number not in addressed)


def serving_pools(
    network: PoolNetwork, pools: Sequence[Obj], networks: Sequence[str]
) -> tuple[str, ...]:
    """Return the pools of `network`, in order, that serve a machine on `networks`.

    The result includes names that `pools` lacks, because the allocation reports missing pools.
    """
    existing = {pool["metadata"]["name"]: pool for pool in pools}
    return tuple(
        name
        for name in network.pools
        if name not in existing or ippool.serves(existing[name], networks)
    )
