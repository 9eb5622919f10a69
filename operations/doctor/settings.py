"""Check settings of Harvester that cost nothing today and stop hosts or guests later.

Accounts with the shipped roles may read few of them.
"""

from __future__ import annotations

import bisect
import ipaddress
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from caphv.api import names
from caphv.api.counting import name_some
from caphv.api.object import Obj, annotations_of, at, labels_of, text_at
from operations.doctor.forms import mappings_of, texts_of
from operations.read import harvestersettings
from operations.read.objects import HarvesterObjects, time_of
from operations.status.check import Check, Result, ok

PROXY = "http-proxy"
ROTATION = "auto-rotate-rke2-certs"
OVERCOMMIT = "overcommit-config"
CSI_DRIVERS = "csi-driver-config"
STORAGE_NETWORK = "storage-network"
RWX_NETWORK = "rwx-network"
READ = (
    PROXY,
    ROTATION,
    OVERCOMMIT,
    CSI_DRIVERS,
    STORAGE_NETWORK,
    RWX_NETWORK,
    harvestersettings.CHART_VERSIONS,
)
"""All settings that checks need."""

# Harvester adds these to every noProxy: harvester v1.8.0, pkg/util/proxy.go.
_BUILT_IN_EXCEPTIONS = ("127.0.0.1", "10.0.0.0/8")
# Harvester overcommits to this percentage by default. Beyond it, hosts and disks may fill.
_MAX_PERCENT = {"memory": 150, "storage": 200}
_BY_DHCP = "0.0.0.0"  # kube-vip asks DHCP for an address
# RKE2's certificates end after a year, and the rotation is off by default.
_OLD_CERTIFICATES = timedelta(days=270)
_CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def checks(
    objects: HarvesterObjects, ingress: Obj | None, subject: str, now: datetime
) -> Iterator[Check]:
    """Yield the checks of the settings of one Harvester.

    :param objects: the objects of the Harvester
    :param ingress: Service `kube-system/ingress-expose`, which has the virtual address
    :param subject: the Harvester
    :param now: the time of the checks
    """
    yield from _check_proxy(objects, ingress, subject)
    yield from _check_rotation(objects, subject, now)
    yield from _check_overcommit(objects, subject)


def value_of(objects: HarvesterObjects, name: str) -> Any:
    """Return the parsed value of a setting of Harvester; None if it cannot be read."""
    for setting in objects.settings:
        if setting["metadata"]["name"] == name:
            return harvestersettings.value_of(setting)
    return None


class _Bounds(NamedTuple):
    """The first and the last address of a network, as numbers."""

    first: int
    last: int


class Exceptions:
    """The entries of a `noProxy`: each is an address, a network, or `*` for everything.

    Names except no address. The entries are parsed once, because a setting may have tens of
    thousands of them.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        """Parse the entries."""
        stripped = {entry.strip() for entry in entries}
        self._has_everything = "*" in stripped
        networks = [network for entry in stripped if (network := _parse(entry))]

        # Adjacent networks are collapsed, because two halves of a network except it as well as the
        # network itself. The ranges are then apart and in order, which `cover` relies on.
        self._ranges: dict[int, list[_Bounds]] = {}
        for version in (4, 6):
            same_family = [network for network in networks if network.version == version]
            collapsed = ipaddress.collapse_addresses(same_family)  # type: ignore[type-var]
            self._ranges[version] = list(map(_bounds, collapsed))

    def cover(self, network: Network) -> bool:
        """Return whether the entries together except each address of a network."""
        if self._has_everything:
            return True

        # Only the last range that does not begin after the network can contain it.
        bounds = _bounds(network)
        ranges = self._ranges[network.version]
        index = bisect.bisect(ranges, bounds.first, key=lambda candidate: candidate.first) - 1
        return index >= 0 and bounds.last <= ranges[index].last


@lru_cache(maxsize=16)
def _exceptions_of(listed: str) -> Exceptions:
    """Return the exceptions of a setting, which each identity of a Harvester has again."""
    return Exceptions([*_BUILT_IN_EXCEPTIONS, *listed.split(",")])


def _bounds(network: Network) -> _Bounds:
    """Return the bounds of a network."""
    return _Bounds(int(network.network_address), int(network.broadcast_address))


def _check_proxy(objects: HarvesterObjects, ingress: Obj | None, subject: str) -> Iterator[Check]:
    """Check that a proxy has exceptions for what hosts must reach directly.

    :param objects: the objects of the Harvester
    :param ingress: Service `kube-system/ingress-expose`
    :param subject: the Harvester
    """
    configured = value_of(objects, PROXY)
    if not isinstance(configured, dict):
        return
    if not configured.get("httpProxy") and not configured.get("httpsProxy"):
        return

    listed = text_at(configured, "noProxy")
    exceptions = _exceptions_of(listed)
    hosts = _uncovered(_host_addresses(objects), exceptions)
    internal = _uncovered([*_virtual_addresses(ingress), *_pod_networks(objects)], exceptions)

    # Harvester refuses a change that leaves a host out, but not a host that joins later.
    if hosts:
        message = (
            f"noProxy of setting {PROXY} does not cover addresses of hosts: {name_some(hosts)}"
        )
        remedy = (
            f"Add the hosts' network to noProxy of Harvester's setting {PROXY}, or each address: "
            "hosts reach each other through the proxy otherwise, and do not come back after a "
            "restart"
        )
        yield Check("proxy", subject, Result.ERROR, message=message, remedy=remedy)
    if internal:
        message = (
            f"noProxy of setting {PROXY} does not cover the virtual address and the cluster's "
            f"networks: {name_some(internal)}"
        )
        remedy = (
            f"Add them to noProxy of Harvester's setting {PROXY}: new hosts join by the virtual "
            "address, and Pods reach each other by these networks"
        )
        yield Check("proxy", subject, Result.WARNING, message=message, remedy=remedy)
    if not listed and not hosts and not internal:
        message = (
            f"setting {PROXY} has no exceptions: images and backups at internal addresses go "
            "through the proxy"
        )
        remedy = f"Add the internal networks and domains to noProxy of Harvester's setting {PROXY}"
        yield Check("proxy", subject, Result.WARNING, message=message, remedy=remedy)


def _check_rotation(objects: HarvesterObjects, subject: str, now: datetime) -> Iterator[Check]:
    """Warn if Harvester does not renew the certificates of its RKE2, and the oldest may end soon.

    :param objects: the objects of the Harvester
    :param subject: the Harvester
    :param now: the time of the check
    """
    configured = value_of(objects, ROTATION)
    if not isinstance(configured, dict) or configured.get("enable"):
        return

    created = [
        time_of(host["metadata"].get("creationTimestamp"))
        for host in objects.hosts
        if _CONTROL_PLANE_LABEL in labels_of(host)
    ]
    oldest = min(filter(None, created), default=now)
    message = (
        f"setting {ROTATION} is off: certificates of Harvester's RKE2 that are not renewed within "
        "a year may stop its components"
    )
    if now - oldest < _OLD_CERTIFICATES:
        yield ok("certificate-rotation", subject, message)
        return
    remedy = (
        f"Enable Harvester's setting {ROTATION}: Advanced, Settings in its UI. Leave the token of "
        "its RKE2 as it is, because Harvester does not support that rotation"
    )
    yield Check("certificate-rotation", subject, Result.WARNING, message=message, remedy=remedy)


def _check_overcommit(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Warn of settings beyond Harvester's defaults, which may fill hosts and disks."""
    configured = value_of(objects, OVERCOMMIT)
    if not isinstance(configured, dict):
        return

    for name, most in _MAX_PERCENT.items():
        percent = configured.get(name)
        if isinstance(percent, int) and percent > most:
            message = f"setting {OVERCOMMIT} allows {percent} % of the existing {name}"
            remedy = f"Reduce {name} to {most}, the default, or monitor the actual use"
            yield Check(
                "over-provisioning", subject, Result.WARNING, message=message, remedy=remedy
            )


def _host_addresses(objects: HarvesterObjects) -> Iterator[str]:
    """Yield the addresses that Harvester's own webhook requires: those with type InternalIP."""
    for host in objects.hosts:
        for address in mappings_of(at(host, "status", "addresses")):
            if address.get("type") == "InternalIP":
                yield str(address.get("address"))


def _virtual_addresses(ingress: Obj | None) -> Iterator[str]:
    """Yield the virtual addresses of Harvester, and the one in the network of Services."""
    if ingress is None:
        return
    for address in annotations_of(ingress).get(names.VIP_ANNOTATION, "").split(","):
        # The status has the address that DHCP assigned.
        if address.strip() != _BY_DHCP:
            yield address
    for entry in mappings_of(at(ingress, "status", "loadBalancer", "ingress")):
        yield text_at(entry, "ip")
    yield text_at(ingress, "spec", "clusterIP")


def _pod_networks(objects: HarvesterObjects) -> Iterator[str]:
    for host in objects.hosts:
        networks = texts_of(at(host, "spec", "podCIDRs"))
        yield from networks or [text_at(host, "spec", "podCIDR")]


def _uncovered(addresses: Iterable[str], exceptions: Exceptions) -> list[str]:
    """Return the addresses and networks that no exception covers, sorted; others are no network."""
    networks = {address: _parse(address) for address in addresses}
    return sorted(
        text for text, network in networks.items() if network and not exceptions.cover(network)
    )


def _parse(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None
