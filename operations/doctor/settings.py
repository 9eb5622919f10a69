"""Check settings of Harvester that cost nothing today and stop hosts or guests later.

Accounts with the shipped roles may read few of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api import names
from caphv.api.counting import name_some
from caphv.api.object import Obj, annotations_of, at
from caphv.runtime.text import TextError, load_json
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result

PROXY = "http-proxy"
ROTATION = "auto-rotate-rke2-certs"
OVERCOMMIT = "overcommit-config"
CSI_DRIVERS = "csi-driver-config"
STORAGE_NETWORK = "storage-network"
RWX_NETWORK = "rwx-network"
CHART_VERSIONS = "harvester-csi-ccm-versions"
READ = (
    PROXY,
    ROTATION,
    OVERCOMMIT,
    CSI_DRIVERS,
    STORAGE_NETWORK,
    RWX_NETWORK,
    CHART_VERSIONS,
)
"""All settings that checks need."""

# Harvester adds these to every noProxy: harvester v1.8.0, pkg/util/proxy.go.
_BUILT_IN_EXCEPTIONS = ("127.0.0.1", "10.0.0.0/8")
# Harvester overcommits to this percentage by default. Beyond it, hosts and disks may fill.
_MOST_PERCENT = {"memory": 150, "storage": 200}
_BY_DHCP = "0.0.0.0"  # kube-vip asks DHCP for an address
_SHOWN = 5

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def checks(objects: HarvesterObjects, ingress: Obj | None, subject: str) -> Iterator[Check]:
    """Yield the checks of the settings of one Harvester.

    :param objects: the objects of the Harvester
    :param ingress: Service `kube-system/ingress-expose`, which has the virtual address
    :param subject: the Harvester
    """
    yield from _check_proxy(objects, ingress, subject)
    yield from _check_rotation(objects, subject)
    yield from _check_overcommit(objects, subject)


def value_of(objects: HarvesterObjects, name: str) -> Any:
    """Return the parsed value of a setting of Harvester; None where it cannot be read."""
    for setting in objects.settings:
        if setting["metadata"]["name"] == name:
            try:
                return load_json(str(setting.get("value") or setting.get("default") or "null"))
            except TextError:
                return None
    return None


def is_excepted(network: Network, exceptions: Iterable[str]) -> bool:
    """Return whether entries of a `noProxy` together except each address of a network.

    An entry is an address, a network, or `*` for everything. Names except no address.
    """
    entries = [entry.strip() for entry in exceptions]
    if "*" in entries:
        return True

    # Two halves of a network except it as well as the network itself.
    covering = [parsed for entry in entries if (parsed := _parse(entry))]
    same_family = [other for other in covering if other.version == network.version]
    collapsed = ipaddress.collapse_addresses(same_family)  # type: ignore[type-var]
    return any(network.subnet_of(other) for other in collapsed)  # type: ignore[arg-type]


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

    listed = str(configured.get("noProxy") or "")
    exceptions = [*_BUILT_IN_EXCEPTIONS, *listed.split(",")]
    hosts = _uncovered(_host_addresses(objects), exceptions)
    internal = _uncovered([*_virtual_addresses(ingress), *_pod_networks(objects)], exceptions)

    # Harvester refuses a change that leaves a host out, but not a host that joins later.
    if hosts:
        message = (
            f"noProxy of setting {PROXY} does not cover addresses of hosts: "
            f"{name_some(hosts, _SHOWN)}"
        )
        remedy = (
            f"Add the hosts' network to noProxy of Harvester's setting {PROXY}, or each address: "
            "hosts reach each other through the proxy otherwise, and do not come back after a "
            "restart"
        )
        yield Check("proxy", subject, Result.ERROR, message, remedy)
    if internal:
        message = (
            f"noProxy of setting {PROXY} does not cover the virtual address and the cluster's "
            f"networks: {name_some(internal, _SHOWN)}"
        )
        remedy = (
            f"Add them to noProxy of Harvester's setting {PROXY}: new hosts join by the virtual "
            "address, and Pods reach each other by these networks"
        )
        yield Check("proxy", subject, Result.WARNING, message, remedy)
    if not listed and not hosts and not internal:
        message = (
            f"setting {PROXY} has no exceptions: images and backups at internal addresses go "
            "through the proxy"
        )
        remedy = f"Add the internal networks and domains to noProxy of Harvester's setting {PROXY}"
        yield Check("proxy", subject, Result.WARNING, message, remedy)


def _check_rotation(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Warn if Harvester does not renew the certificates of its RKE2, which end after a year."""
    configured = value_of(objects, ROTATION)
    if isinstance(configured, dict) and not configured.get("enable"):
        message = (
            f"setting {ROTATION} is off: after a year, components of Harvester fail when a host "
            "restarts or is upgraded"
        )
        remedy = (
            f"Enable Harvester's setting {ROTATION}: Advanced, Settings in its UI. Leave the token "
            "of its RKE2 as it is, because Harvester does not support that rotation"
        )
        yield Check("certificate-rotation", subject, Result.WARNING, message, remedy)


def _check_overcommit(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Warn of settings beyond Harvester's defaults, which may fill hosts and disks."""
    configured = value_of(objects, OVERCOMMIT)
    if not isinstance(configured, dict):
        return

    for name, most in _MOST_PERCENT.items():
        percent = configured.get(name)
        if isinstance(percent, int) and percent > most:
            message = f"setting {OVERCOMMIT} allows {percent} % of the existing {name}"
            remedy = f"Reduce {name} to {most}, the default, or watch what is really used"
            yield Check("over-provisioning", subject, Result.WARNING, message, remedy)


def _host_addresses(objects: HarvesterObjects) -> Iterator[str]:
    """Yield the addresses that Harvester's own webhook requires: those with type InternalIP."""
    for host in objects.hosts:
        for address in at(host, "status", "addresses") or ():
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
    for entry in at(ingress, "status", "loadBalancer", "ingress") or ():
        yield str(entry.get("ip") or "")
    yield str(at(ingress, "spec", "clusterIP") or "")


def _pod_networks(objects: HarvesterObjects) -> Iterator[str]:
    for host in objects.hosts:
        spec = host.get("spec") or {}
        yield from map(str, spec.get("podCIDRs") or [spec.get("podCIDR") or ""])


def _uncovered(addresses: Iterable[str], exceptions: list[str]) -> list[str]:
    """Return the addresses and networks that no exception covers, sorted; others are no network."""
    networks = {address: _parse(address) for address in addresses}
    return sorted(
        text
        for text, network in networks.items()
        if network and not is_excepted(network, exceptions)
    )


def _parse(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None
