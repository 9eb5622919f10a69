"""What the schema of a ClusterDefinition cannot say: how its fields go together, and what must not stand in it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

from caphv.api import names
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.merge import Obj
from packager.rendering import secretscan
from packager.rendering.gitrepo import GitRepoOptions

ADDONS_LABEL = "caphv.io/addons"
DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
DESCRIPTIONS = {
    "definition-class": "A ClusterClass fits the distribution, and excludes `individualObjects`.",
    "definition-version": "The suffix of the version fits the distribution.",
    "definition-load-balancer": "`ipPoolRef` goes with `ipamType: pool`, and only with it.",
    "definition-firmware": "Secure Boot needs UEFI.",
    "definition-address": "Gateway, subnet mask and DNS servers are IPv4 addresses, and the mask is one.",
    "definition-pool-name": "Two pools of workers have two names.",
    "definition-reserved": "Labels and annotations that are made from fields of the spec are set there.",
    "definition-addons": "Settings of the add-ons fit the distribution, the ClusterClass and the way of delivery.",
    "definition-fleet": "The Fleet repository is a URL of Git without credentials.",
    "definition-twice": "Two definitions do not make one cluster.",
    "no-secrets-in-git": "Nothing in it is a Secret or looks like a credential.",
}
"""Rule → what it says, for `caphv validate`."""

_RESERVED_LABELS = {
    names.CNI_LABEL: "spec.addons.cni.name",
    names.CSI_LABEL: "spec.addons.csi.enabled",
    names.AUTO_IMPORT_LABEL: "spec.rancherAutoImport",
    ADDONS_LABEL: "spec.addonDelivery",
}
_RESERVED_ANNOTATIONS = {
    names.ADDON_VALUES_ANNOTATION: "spec.addons",
    names.OLD_CNI_MTU_ANNOTATION: "spec.addons.cni.mtu",
    names.OLD_CNI_ENCAPSULATION_ANNOTATION: "spec.addons.cni.encapsulation",
    names.OLD_CNI_BGP_ANNOTATION: "spec.addons.cni.bgp",
}


def check(obj: Obj) -> list[Finding]:
    """Return what is wrong with a definition that its schema accepts."""
    spec = obj["spec"]
    checks: tuple[Callable[[Obj], Iterator[Finding]], ...] = (
        _class,
        _version,
        _load_balancer,
        _firmware,
        _addresses,
        _pools,
        _addons,
        _fleet,
    )
    found = [finding for rule in checks for finding in rule(spec)]
    return [*found, *_reserved(obj["metadata"]), *secretscan.check(obj)]


def _class(spec: Obj) -> Iterator[Finding]:
    path: FieldPath = ("spec", "clusterClass")
    name, distribution = spec.get("clusterClass"), spec.get("distribution", "rke2")
    if name and spec.get("individualObjects"):
        detail = "excludes individualObjects: remove one of them"
        yield Finding(path, Fault.FORBIDDEN, detail, "definition-class")
    others = {f"harvester-{other}" for other in DISTRIBUTIONS if other != distribution}
    if name in others:
        detail = f"makes no clusters of {distribution}: leave it out, and the right one is taken"
        yield Finding(path, Fault.INVALID, detail, "definition-class", name)


def _version(spec: Obj) -> Iterator[Finding]:
    version, distribution = spec["kubernetesVersion"], spec.get("distribution", "rke2")
    suffix = version.partition("+")[2].rstrip("0123456789")
    wanted = {"rke2": "rke2r", "k3s": "k3s", "kubeadm": ""}[distribution]
    if suffix and suffix != wanted:
        detail = f"is no version of {distribution}: leave +… out, and it is filled in"
        yield Finding(("spec", "kubernetesVersion"), Fault.INVALID, detail, "definition-version", version)


def _load_balancer(spec: Obj) -> Iterator[Finding]:
    balancer = spec.get("loadBalancer", {})
    path: FieldPath = ("spec", "loadBalancer", "ipPoolRef")
    if balancer.get("ipamType") == "pool" and "ipPoolRef" not in balancer:
        detail = "must be set when ipamType is pool: name an IPPool on Harvester"
        yield Finding(path, Fault.REQUIRED, detail, "definition-load-balancer")
    if balancer.get("ipamType") == "dhcp" and "ipPoolRef" in balancer:
        detail = "has no effect with ipamType dhcp: remove it, or take ipamType pool"
        yield Finding(path, Fault.FORBIDDEN, detail, "definition-load-balancer")


def _firmware(spec: Obj) -> Iterator[Finding]:
    firmware = spec["machines"].get("firmware", {})
    if firmware.get("secureBoot") and not firmware.get("efi"):
        path: FieldPath = ("spec", "machines", "firmware", "efi")
        yield Finding(path, Fault.REQUIRED, "must be true for secureBoot", "definition-firmware")


def _addresses(spec: Obj) -> Iterator[Finding]:
    addresses = spec.get("addresses", {})
    root: FieldPath = ("spec", "addresses")
    texts: list[tuple[FieldPath, str]] = [(("gateway",), addresses["gateway"])] if addresses else []
    texts += [(("dnsServers", index), text) for index, text in enumerate(addresses.get("dnsServers", ()))]
    for path, text in texts:
        if not _is_ipv4(text):
            detail = "must be an IPv4 address, for example 172.16.0.1"
            yield Finding((*root, *path), Fault.INVALID, detail, "definition-address", text)
    if addresses and not _is_mask(addresses["subnetMask"]):
        detail = "must be a subnet mask, for example 255.255.0.0"
        yield Finding((*root, "subnetMask"), Fault.INVALID, detail, "definition-address", addresses["subnetMask"])


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_mask(text: str) -> bool:
    if not _is_ipv4(text):
        return False
    # All ones before all zeros: what is left after the ones is one less than a power of two.
    rest = ~int(ipaddress.IPv4Address(text)) & 0xFFFFFFFF
    return rest & (rest + 1) == 0 and rest != 0xFFFFFFFF


def _pools(spec: Obj) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, pool in enumerate(spec.get("workers", ())):
        if pool["name"] in seen:
            path: FieldPath = ("spec", "workers", index, "name")
            yield Finding(path, Fault.DUPLICATE, "give each pool its own name", "definition-pool-name", pool["name"])
        seen.add(pool["name"])


def _addons(spec: Obj) -> Iterator[Finding]:
    addons, distribution = spec.get("addons", {}), spec.get("distribution", "rke2")
    root: FieldPath = ("spec", "addons")

    def finding(path: FieldPath, detail: str, value: Any) -> Finding:
        return Finding((*root, *path), Fault.INVALID, detail, "definition-addons", value)

    if addons.get("distribution", distribution) != distribution:
        yield finding(("distribution",), "set spec.distribution instead, and remove this", addons["distribution"])
    cni, delivery = addons.get("cni", {}).get("name", "none"), spec.get("addonDelivery", "Fleet")
    if distribution == "kubeadm" and delivery == "ClusterResourceSet":
        detail = (
            "makes HelmChart manifests for the Helm controller of RKE2 or K3s, and kubeadm has none: take Fleet, which "
            "installs the charts itself, or None, and install them with Helm"
        )
        yield Finding(("spec", "addonDelivery"), Fault.UNSUPPORTED, detail, "definition-addons", delivery)
    elif distribution == "kubeadm" and cni != "none" and delivery == "None":
        detail = "nobody installs it with addonDelivery None: take Fleet, or leave it out and install a CNI yourself"
        yield finding(("cni", "name"), detail, cni)
    if addons.get("cloudProviderName") == "harvester" and not spec.get("individualObjects"):
        detail = "ClusterClasses have no variable for it: set individualObjects, or leave it out"
        yield finding(("cloudProviderName",), detail, "harvester")


def _fleet(spec: Obj) -> Iterator[Finding]:
    fleet = spec.get("fleet")
    if fleet is None:
        return
    if spec.get("addonDelivery", "Fleet") != "Fleet":
        detail = "has no effect with this addonDelivery: remove it, or take Fleet"
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, detail, "definition-fleet")
    try:
        GitRepoOptions(fleet["repo"], folder=fleet.get("path", ""))
    except ValueError as error:
        # Without its value: it may hold a password.
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, str(error), "definition-fleet")


def _reserved(metadata: Obj) -> Iterator[Finding]:
    for part, reserved in (("labels", _RESERVED_LABELS), ("annotations", _RESERVED_ANNOTATIONS)):
        for name in sorted(reserved.keys() & metadata.get(part, {}).keys()):
            detail = f"is made from {reserved[name]}: set that, and remove this"
            yield Finding(("metadata", part, name), Fault.FORBIDDEN, detail, "definition-reserved")
