"""Decide which IPAddressClaims a machine needs, and what its guest configures. Pure.

The contract is that of Cluster API for IPAM providers (kubernetes-sigs/cluster-api v1.13.6,
docs/book/src/developer/providers/contracts/ipam.md): a claim names a pool, and its
`status.addressRef` names an IPAddress with address, prefix and gateway of one family. A claim per
interface and pool, its name, its owner and the label of its cluster are as with Cluster API's
provider for vSphere (kubernetes-sigs/cluster-api-provider-vsphere 0115a11,
controllers/vspherevm_ipaddress_reconciler.go).

Unlike there, claims have no finalizer: the in-cluster IPAM provider releases an address as soon as
its claim is marked as deleted (kubernetes-sigs/cluster-api-ipam-provider-in-cluster 09cab12,
pkg/ipamutil/reconciler.go). The owner reference does not block the deletion of the owner, because
the finalizer of the HarvesterMachine already waits for its claims. No form of the reference keeps a
claim from the garbage collector if a user deletes the owner in the foreground: that deletes all
dependents at once, while the VM runs (kubernetes/kubernetes,
pkg/controller/garbagecollector/graph_builder.go, processTransitions).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from caphv.api import interfaces, names, resources
from caphv.api.conditions import get_condition
from caphv.api.object import Obj, at, being_deleted, dict_at, list_at, text_at, uid_of
from caphv.api.plaintext import plain
from reconciler.machine.guestinterfaces import GuestAddress

_CLAIM_KIND = resources.ip_address_claims(resources.IPAM_VERSIONS[0]).kind
_MAX_DETAIL = 512
_MAX_VALUE = 64
# Loopback and broadcast. Guests of the sandbox have other addresses of 127.0.0.0/8.
_NO_HOSTS = frozenset(map(ipaddress.ip_address, ("127.0.0.1", "::1", "255.255.255.255")))


@dataclass(frozen=True)
class WantedClaim:
    """A claim of an address for the interface with this number, the first of which is 0.

    `pool` has `apiGroup`, `kind` and `name`.
    """

    name: str
    interface: int
    pool: Mapping[str, str]

    @property
    def pool_name(self) -> str:
        """Kind and name of the pool, for messages."""
        return f"{self.pool['kind']} {self.pool['name']}"


def wanted_claims(machine: str, spec: Obj) -> tuple[WantedClaim, ...]:
    """Return the claims of a machine, in the order of interfaces and pools.

    IPPools on Harvester need none, see `interfaces`.

    Their names are `<machine>-<interface>-<pool>` with numbers from 0, so that no two machines of a
    namespace have a name in common.
    """
    return tuple(
        WantedClaim(f"{machine}-{number}-{index}", number, pool)
        for number, settings in interfaces.settings_by_number(spec)
        for index, pool in enumerate(settings.get("addressesFromPools") or ())
        if not interfaces.is_harvester_pool(pool)
    )


def machine_of(claim: str) -> str:
    """Return the name of the machine whose claim would have this name."""
    return claim.rsplit("-", 2)[0]


def claim_object(claim: WantedClaim, machine: Obj, cluster: str, version: str) -> Obj:
    """Return the IPAddressClaim to create.

    :param machine: the HarvesterMachine, which owns the claim
    :param cluster: name of the Cluster; `clusterctl move` takes claims by this label
    :param version: version of the IPAM API
    """
    metadata = machine["metadata"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": resources.HARVESTER_MACHINES.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    resource = resources.ip_address_claims(version)
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": claim.name,
            "namespace": metadata["namespace"],
            "labels": {names.CLUSTER_NAME_LABEL: cluster},
            "ownerReferences": [owner],
        },
        "spec": {"clusterName": cluster, "poolRef": dict(claim.pool)},
    }


def is_owned(claim: Obj, machine: Obj) -> bool:
    """Return whether a claim belongs to a HarvesterMachine: this one, not another of its name."""
    owners = claim["metadata"].get("ownerReferences") or ()
    controllers = [owner.get("uid") for owner in owners if owner.get("controller") is True]
    return bool(uid_of(machine)) and uid_of(machine) in controllers


def names_pool(claim: Obj, wanted: WantedClaim) -> bool:
    """Return whether a claim is for the wanted pool. Claims are immutable."""
    pool = dict_at(claim, "spec", "poolRef")
    return all(pool.get(key) == value for key, value in wanted.pool.items())


def address_name(claim: Obj) -> str:
    """Return the name of the IPAddress that answers a claim, empty while there is none."""
    return text_at(claim, "status", "addressRef", "name")


def answers_claim(address: Obj, claim: Obj) -> bool:
    """Return whether an IPAddress is the answer to a claim, not to a former one of its name.

    By the contract, its controller is the claim.
    """
    owners = address["metadata"].get("ownerReferences") or ()
    uids = {owner.get("uid") for owner in owners if owner.get("kind") == _CLAIM_KIND}
    return (
        not being_deleted(address)
        and at(address, "spec", "claimRef", "name") == claim["metadata"]["name"]
        and (not uids or uid_of(claim) in uids)
    )


def pending_reason(claim: Obj) -> tuple[str, str]:
    """Return reason and message with which an IPAM provider says why a claim has no address."""
    condition = get_condition(list_at(claim, "status", "conditions"), "Ready") or {}
    if condition.get("status") == "True":
        return "", ""
    message = plain(str(condition.get("message") or ""), _MAX_DETAIL)
    return str(condition.get("reason") or ""), message


def claimed_address(obj: Obj) -> GuestAddress:
    """Return the content of an IPAddress. Raises `ValueError` for one that no guest can use.

    The result has the addresses as Python writes them, never the text of the pool, because it
    becomes a part of files in the guest.
    """
    spec = obj.get("spec") or {}
    address = _host_address("address", spec.get("address"))
    # The guest would have no route to its network by an address that is valid on each link.
    if address.is_link_local:
        raise ValueError(f"its address {address} is link-local")

    prefix = spec.get("prefix")
    if (
        not isinstance(prefix, int)
        or isinstance(prefix, bool)
        or not 0 < prefix <= address.max_prefixlen
    ):
        raise ValueError(f"its prefix is {plain(repr(prefix), _MAX_VALUE)}")
    if not spec.get("gateway"):
        return GuestAddress(str(address), prefix)

    # Routers of IPv6 often have a link-local address only.
    gateway = _host_address("gateway", spec["gateway"])
    if gateway.version != address.version:
        raise ValueError(f"its gateway {gateway} is of another family than {address}")
    if gateway == address:
        raise ValueError(f"its gateway is {address}, too")
    return GuestAddress(str(address), prefix, str(gateway))


def _host_address(field: str, value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address that one host can have. Raises `ValueError`."""
    text = "" if value is None else str(value)
    described = f"its {field} {plain(repr(text[:_MAX_VALUE]), _MAX_VALUE)}"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{described} is no IP address") from None

    # Python takes any text for the scope of an address of IPv6, line feeds included.
    if getattr(address, "scope_id", None) is not None:
        raise ValueError(f"{described} has a scope")
    if (
        address.is_unspecified
        or address.is_multicast
        or address in _NO_HOSTS
        or getattr(address, "ipv4_mapped", None) is not None
    ):
        raise ValueError(f"{described} is not the address of one host")
    return address
