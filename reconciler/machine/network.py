"""Which network configuration a machine gets, from the fields of the machine and its cluster.

One place decides the precedence, because address management, cloud-init and the deletion of a machine must agree on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caphv.api import ippool
from caphv.api.object import Obj

DEFAULT_MASK = "255.255.0.0"


@dataclass(frozen=True)
class StaticAddress:
    """The address of the first NIC, known before the VM exists; `mask` is dotted (`255.255.0.0`)."""

    address: str
    mask: str
    gateway: str
    dns_servers: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolNetwork:
    """The address comes from the first of `pools` (names of cluster-scoped IPPools) that has one.

    `pools` is empty as long as the pool that the cluster defines (`vmNetworkConfig.ipPool`) has not been created.
    """

    pools: tuple[str, ...]
    mask: str
    gateway: str
    dns_servers: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dhcp:
    """Every NIC asks a DHCP server of its network."""


Network = StaticAddress | PoolNetwork | Dhcp


def effective_network(machine_spec: Obj, cluster_spec: Obj, *, created_pool: str = "") -> Network:
    """Apply the contract's precedence to the specs of a HarvesterMachine and its HarvesterCluster.

    `created_pool` names the pool made from the cluster's `vmNetworkConfig.ipPool`; it is used while the reference to it
    has not been written back to the spec.
    """
    own = machine_spec.get("vmNetworkConfig")
    pooled = own or cluster_spec.get("vmNetworkConfig")
    static = machine_spec.get("networkConfig")
    if static:
        return StaticAddress(
            address=static.get("address", ""),
            mask=static.get("subnetMask") or (pooled or {}).get("subnetMask") or DEFAULT_MASK,
            gateway=static.get("gateway", ""),
            dns_servers=tuple(static.get("dnsServers") or ()),
            dns_search=tuple(static.get("dnsSearch") or ()),
        )
    if pooled:
        return PoolNetwork(
            pools=_pool_names(pooled, "" if own else created_pool),
            mask=pooled.get("subnetMask") or DEFAULT_MASK,
            gateway=pooled.get("gateway", ""),
            dns_servers=tuple(pooled.get("dnsServers") or ()),
            dns_search=tuple(pooled.get("dnsSearch") or ()),
        )
    return Dhcp()


def _pool_names(config: Obj, created_pool: str) -> tuple[str, ...]:
    return ippool.referenced_pools(config) or ((created_pool,) if config.get("ipPool") and created_pool else ())


def with_address(network: PoolNetwork, address: str) -> StaticAddress:
    """Turn a pool's network into the static configuration of the machine that was given `address`."""
    return StaticAddress(
        address=address,
        mask=network.mask,
        gateway=network.gateway,
        dns_servers=network.dns_servers,
        dns_search=network.dns_search,
    )


def dhcp_interfaces(network: Network, nic_count: int) -> tuple[str, ...]:
    """Name the guest's interfaces (`eth0`, …) that have to ask for an address: all, or all but the first."""
    first = 0 if isinstance(network, Dhcp) else 1
    return tuple(f"eth{index}" for index in range(first, nic_count))


def serving_pools(network: PoolNetwork, pools: Sequence[Obj], networks: Sequence[str]) -> tuple[str, ...]:
    """Keep the pools of `network`, in order, that serve a machine on `networks`.

    A pool that is not among `pools` stays: whether it is missing is for the allocation to say.
    """
    known = {pool["metadata"]["name"]: pool for pool in pools}
    return tuple(name for name in network.pools if name not in known or ippool.serves(known[name], networks))
