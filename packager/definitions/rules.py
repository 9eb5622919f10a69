"""Rules about a ClusterDefinition that its schema cannot express, such as combined fields."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api import bootimage, names, parking
from caphv.api.object import Obj
from caphv.api.parkschedule import ScheduleError, load_zone, parse_schedule
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rule, Rules
from packager import secretscan
from packager.definitions import sizerules
from packager.rendering.gitrepo import GitRepoOptions

ADDONS_LABEL = "caphv.io/addons"
DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
KINDS = ("ClusterDefinition",)
RULES = Rules()
"""Their checks take a definition that its schema accepts."""

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


def all_rules() -> tuple[Rule, ...]:
    """Return the rules of this module and those about the sizes of machines."""
    return (*sizerules.RULES, *RULES)


def check(obj: Obj) -> list[Finding]:
    """Return findings about a definition that its schema accepts."""
    return [finding for rule in all_rules() for finding in rule.findings(obj)]


def check_valid_parts(obj: Any, reported: Iterable[Finding]) -> list[Finding]:
    """Return further findings about a definition that its schema refuses.

    Users want all errors at once. Rules that need missing or malformed fields are left out, and so
    are fields that the schema has reported.
    """
    findings: list[Finding] = []
    for rule in all_rules():
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            findings += rule.findings(obj)
    reported_paths = [finding.path for finding in reported]
    return [
        finding
        for finding in findings
        if not any(_is_same_place(finding.path, path) for path in reported_paths)
    ]


def _is_same_place(path: FieldPath, other: FieldPath) -> bool:
    """Whether two paths are the same, or one leads to the other."""
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


@RULES.rule(
    "definition-class",
    KINDS,
    "The ClusterClass must fit the distribution, and must not be set with `individualObjects`.",
)
def _check_class(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    path: FieldPath = ("spec", "clusterClass")
    name = spec.get("clusterClass")
    distribution = spec.get("distribution", "rke2")
    if name and spec.get("individualObjects"):
        detail = "must not be set with individualObjects: remove one of them"
        yield Finding(path, Fault.FORBIDDEN, detail)
    # A user's own class may have any name, and make clusters of any distribution.
    others = {f"harvester-{other}" for other in DISTRIBUTIONS if other != distribution}
    if name in others:
        detail = (
            f"does not create clusters of {distribution}: remove the field, and the right class is "
            "used"
        )
        yield Finding(path, Fault.INVALID, detail, value=name)


@RULES.rule(
    "definition-version", KINDS, "The suffix of the version must be one of the distribution."
)
def _check_version(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    version, distribution = spec["kubernetesVersion"], spec.get("distribution", "rke2")
    # `rke2r1` and `rke2r2` are releases of one distribution, so the number is no part of its name.
    suffix = version.partition("+")[2].rstrip("0123456789")
    expected = {"rke2": "rke2r", "k3s": "k3s", "kubeadm": ""}[distribution]
    if suffix and suffix != expected:
        detail = (
            f"is not a version of {distribution}: remove the suffix after +, and it is filled in"
        )
        yield Finding(("spec", "kubernetesVersion"), Fault.INVALID, detail, value=version)


@RULES.rule(
    "definition-load-balancer",
    KINDS,
    "`ipPoolRef` must be set with `ipamType: pool` and `endpoint` with `ipamType: none`, and only "
    "with it. An external endpoint must be an IPv4 address or a DNS name, and has no description.",
)
def _check_load_balancer(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    # Without the field, the address comes from DHCP.
    balancer = spec.get("loadBalancer", {})
    path: FieldPath = ("spec", "loadBalancer", "ipPoolRef")
    if balancer.get("ipamType") == "pool" and "ipPoolRef" not in balancer:
        detail = "must be set when ipamType is pool: name an IPPool on Harvester"
        yield Finding(path, Fault.REQUIRED, detail)
    if balancer.get("ipamType") == "dhcp" and "ipPoolRef" in balancer:
        detail = "has no effect with ipamType dhcp: remove it, or use ipamType pool"
        yield Finding(path, Fault.FORBIDDEN, detail)
    yield from _check_external_endpoint(balancer)


def _check_external_endpoint(balancer: Obj) -> Iterator[Finding]:
    """Check the fields that depend on `ipamType: none`."""
    path: FieldPath = ("spec", "loadBalancer")
    if balancer.get("ipamType") != "none":
        if "endpoint" in balancer:
            detail = "has no effect without ipamType none: remove it, or use ipamType none"
            yield Finding((*path, "endpoint"), Fault.FORBIDDEN, detail)
        return

    for name in ("ipPoolRef", "description"):
        if name in balancer:
            detail = "has no effect with ipamType none: remove it, or use ipamType pool or dhcp"
            yield Finding((*path, name), Fault.FORBIDDEN, detail)
    if "endpoint" not in balancer:
        detail = "must be set when ipamType is none: give the address of your load balancer"
        yield Finding((*path, "endpoint"), Fault.REQUIRED, detail)
        return

    # A name whose last label has only digits is meant as an address.
    host = balancer["endpoint"]["host"]
    if host.rpartition(".")[2].isdecimal() and not _is_ipv4(host):
        detail = "must be an IPv4 address or a DNS name"
        yield Finding((*path, "endpoint", "host"), Fault.INVALID, detail, value=host)


@RULES.rule(
    "definition-image",
    KINDS,
    "Machines must have either `image` or `imageLookup`, the latter with `baseOS` if its format "
    "contains `{{.BaseOS}}`. Images must have different names and be no ISOs, and their URLs must "
    "not lead to loopback or link-local addresses.",
)
def _check_images(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    machines, path = spec["machines"], ("spec", "machines")
    lookup = machines.get("imageLookup")
    if lookup is None and "image" not in machines:
        detail = "name a VirtualMachineImage on Harvester, or set imageLookup"
        yield Finding((*path, "image"), Fault.REQUIRED, detail)
    if lookup is not None:
        if "image" in machines:
            detail = "image names the image already: remove one of them"
            yield Finding((*path, "imageLookup"), Fault.FORBIDDEN, detail)
        if bootimage.needs_base_os(lookup["format"]) and "baseOS" not in lookup:
            detail = "format contains {{.BaseOS}}: name the operating system"
            yield Finding((*path, "imageLookup", "baseOS"), Fault.REQUIRED, detail)

    yield from _check_imports(spec)


def _check_imports(spec: dict[str, Any]) -> Iterator[Finding]:
    target, names_before = spec.get("targetNamespace", "default"), set[str]()
    for index, image in enumerate(spec.get("images", ())):
        place: FieldPath = ("spec", "images", index)
        # Findings leave out the URL, because its query may grant a download.
        if bootimage.is_iso(image["url"]):
            detail = "is an ISO, which starts an installer: give a cloud image (qcow2)"
            yield Finding((*place, "url"), Fault.INVALID, detail)
        if bootimage.leads_inside(image["url"]):
            detail = "leads to the host that downloads it: name a server"
            yield Finding((*place, "url"), Fault.INVALID, detail)
        name = bootimage.qualified(image["name"], target)
        if name in names_before:
            detail = "another image has this name: remove one of them"
            yield Finding((*place, "name"), Fault.DUPLICATE, detail, value=image["name"])
        names_before.add(name)


@RULES.rule("definition-firmware", KINDS, "UEFI must be enabled for Secure Boot.")
def _check_firmware(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    firmware = spec["machines"].get("firmware", {})
    if firmware.get("secureBoot") and not firmware.get("efi"):
        path: FieldPath = ("spec", "machines", "firmware", "efi")
        yield Finding(path, Fault.REQUIRED, "must be true for secureBoot")


@RULES.rule(
    "definition-hardening",
    KINDS,
    "CIS profile and STIG must be set for RKE2 only, and a STIG must come with a CIS profile, "
    "Secure Boot and a TPM.",
)
def _check_hardening(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    hardening, distribution = spec.get("hardening", {}), spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "hardening")

    for name in ("cisProfile", "stig"):
        if hardening.get(name) and distribution != "rke2":
            detail = f"is for RKE2 only, and not for {distribution}: remove it"
            yield Finding((*path, name), Fault.FORBIDDEN, detail, value=hardening[name])
    if not hardening.get("stig") or distribution != "rke2":
        return

    if not hardening.get("cisProfile"):
        yield Finding((*path, "cisProfile"), Fault.REQUIRED, "must be set with stig: use cis")
    machines = spec["machines"]
    if not machines.get("firmware", {}).get("secureBoot"):
        path = ("spec", "machines", "firmware", "secureBoot")
        detail = "must be true with stig: use an image with a signed boot loader"
        yield Finding(path, Fault.REQUIRED, detail)
    if not machines.get("tpm", {}).get("enabled"):
        path = ("spec", "machines", "tpm", "enabled")
        yield Finding(path, Fault.REQUIRED, "must be true with stig")


@RULES.rule(
    "definition-registries",
    KINDS,
    "Registries must be set for RKE2 and K3s only, and Secrets with access to them for RKE2 only.",
)
def _check_registries(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    registries, distribution = spec.get("registries"), spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "registries")
    if registries and distribution == "kubeadm":
        detail = "is for RKE2 and K3s: configure containerd in the machine image, and remove this"
        yield Finding(path, Fault.FORBIDDEN, detail)
    elif registries and registries.get("configs") and distribution == "k3s":
        detail = "is for RKE2 only: put credentials for K3s into the machine image, and remove this"
        yield Finding((*path, "configs"), Fault.FORBIDDEN, detail)

    # Credentials belong in a Secret that is named here, so that no credential is in Git.
    for name, config in (registries or {}).get("configs", {}).items():
        if not config.get("authSecret") and not config.get("tls"):
            detail = "must name authSecret, tls, or both"
            yield Finding((*path, "configs", name), Fault.REQUIRED, detail)


@RULES.rule(
    "definition-etcd-snapshots",
    KINDS,
    "Snapshots of etcd must be set for RKE2 and K3s only, and a CA must not come with "
    "`insecureSkipVerify`.",
)
def _check_etcd_snapshots(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    snapshots, path = spec.get("etcdSnapshots"), ("spec", "etcdSnapshots")
    if snapshots and spec.get("distribution", "rke2") == "kubeadm":
        detail = "is for RKE2 and K3s: kubeadm takes no snapshots, so run etcdctl, and remove this"
        yield Finding(path, Fault.FORBIDDEN, detail)

    s3 = (snapshots or {}).get("s3", {})
    if s3.get("insecureSkipVerify") and "caSecretName" in s3:
        detail = "has no effect with insecureSkipVerify: remove one of them"
        yield Finding((*path, "s3", "caSecretName"), Fault.FORBIDDEN, detail)


@RULES.rule(
    "definition-address",
    KINDS,
    "Gateway and DNS servers must be IPv4 addresses, and the subnet mask must be one.",
)
def _check_addresses(obj: Obj) -> Iterator[Finding]:
    addresses = obj["spec"].get("addresses", {})
    if not addresses:
        return

    root: FieldPath = ("spec", "addresses")
    gateway = addresses["gateway"]
    texts: list[tuple[FieldPath, str]] = [(("gateway",), gateway)]
    for index, server in enumerate(addresses.get("dnsServers", ())):
        texts.append((("dnsServers", index), server))
    for path, text in texts:
        if not _is_ipv4(text):
            detail = "must be an IPv4 address, for example 172.16.0.1"
            yield Finding((*root, *path), Fault.INVALID, detail, value=text)

    # Read the mask late, so that the addresses are checked even if this field is missing.
    mask = addresses["subnetMask"]
    if not _is_mask(mask):
        detail = "must be a subnet mask, for example 255.255.0.0"
        yield Finding((*root, "subnetMask"), Fault.INVALID, detail, value=mask)
        return
    if not _is_ipv4(gateway):
        return
    network = ipaddress.IPv4Network((gateway, mask), strict=False)
    # Networks of one or two addresses have no network or broadcast address.
    if network.prefixlen >= 31:
        return
    if ipaddress.IPv4Address(gateway) in (network.network_address, network.broadcast_address):
        detail = f"must not be the network or broadcast address of {network}: use one between them"
        yield Finding((*root, "gateway"), Fault.INVALID, detail, value=gateway)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_mask(text: str) -> bool:
    if not _is_ipv4(text):
        return False
    # A mask has ones, then zeros, so its inverse is one less than a power of two.
    inverse = ~int(ipaddress.IPv4Address(text)) & 0xFFFFFFFF
    return inverse & (inverse + 1) == 0 and inverse != 0xFFFFFFFF


@RULES.rule("definition-pool-name", KINDS, "Worker pool names must be unique.")
def _check_pool_names(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    seen: set[str] = set()
    for index, pool in enumerate(spec.get("workers", ())):
        if pool["name"] in seen:
            path: FieldPath = ("spec", "workers", index, "name")
            detail = "worker pool names must be unique: rename one"
            yield Finding(path, Fault.DUPLICATE, detail, value=pool["name"])
        seen.add(pool["name"])


@RULES.rule(
    "definition-addons",
    KINDS,
    "Settings of the add-ons must fit the distribution, the ClusterClass and the delivery.",
)
def _check_addons(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    addons, distribution = spec.get("addons", {}), spec.get("distribution", "rke2")
    root: FieldPath = ("spec", "addons")

    def finding(path: FieldPath, detail: str, value: Any) -> Finding:
        return Finding((*root, *path), Fault.INVALID, detail, value=value)

    if addons.get("distribution", distribution) != distribution:
        detail = "set spec.distribution instead, and remove this"
        yield finding(("distribution",), detail, addons["distribution"])

    cni = addons.get("cni", {}).get("name", "none")
    delivery = spec.get("addonDelivery", "Fleet")
    if distribution == "kubeadm" and delivery == "ClusterResourceSet":
        detail = (
            "creates HelmChart manifests for the Helm controller of RKE2 and K3s, which kubeadm "
            "lacks: use Fleet, which installs the charts itself, or None, and install them with "
            "Helm"
        )
        yield Finding(("spec", "addonDelivery"), Fault.UNSUPPORTED, detail, value=delivery)
    elif distribution == "kubeadm" and cni != "none" and delivery == "None":
        detail = (
            "is not installed with addonDelivery None: use Fleet, or remove the field and install "
            "a CNI yourself"
        )
        yield finding(("cni", "name"), detail, cni)

    if addons.get("cloudProviderName") == "harvester" and not spec.get("individualObjects"):
        detail = (
            "needs individualObjects, since ClusterClasses have no variable for it: set that, or "
            "remove the field"
        )
        yield finding(("cloudProviderName",), detail, "harvester")


@RULES.rule(
    "definition-fleet",
    KINDS,
    "The Fleet repository must be the URL of a Git repository without credentials.",
)
def _check_fleet(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    fleet = spec.get("fleet")
    if fleet is None:
        return

    if spec.get("addonDelivery", "Fleet") != "Fleet":
        detail = "has no effect with this addonDelivery: remove it, or use Fleet"
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, detail)

    try:
        helm = {
            "helm_secret_name": fleet.get("helmSecretName", ""),
            "helm_repo_regex": fleet.get("helmRepoURLRegex", ""),
        }
        GitRepoOptions(fleet["repo"], folder=fleet.get("path", ""), **helm)
    except ValueError as error:
        # The finding does not show the value, which may hold a password.
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, str(error))


@RULES.rule(
    "definition-reserved",
    KINDS,
    "Labels and annotations that are derived from the spec, and the provider's records of a parked "
    "Cluster, must not be set by hand.",
)
def _check_reserved_names(obj: Obj) -> Iterator[Finding]:
    metadata = obj["metadata"]
    for part, reserved in (("labels", _RESERVED_LABELS), ("annotations", _RESERVED_ANNOTATIONS)):
        for name in sorted(reserved.keys() & metadata.get(part, {}).keys()):
            detail = f"is derived from {reserved[name]}: set that instead, and remove this"
            yield Finding(("metadata", part, name), Fault.FORBIDDEN, detail)
    for name in sorted(parking.RECORDS & metadata.get("annotations", {}).keys()):
        detail = "is a record of the provider about a Cluster that it parks: remove this"
        yield Finding(("metadata", "annotations", name), Fault.FORBIDDEN, detail)


@RULES.rule(
    "definition-park-schedule",
    KINDS,
    "Annotation `caphv.io/park-schedule` must have windows of days and times, and one time zone.",
)
def _check_park_schedule(obj: Obj) -> Iterator[Finding]:
    text = obj["metadata"].get("annotations", {}).get(names.PARK_SCHEDULE_ANNOTATION)
    if text is None:
        return
    try:
        load_zone(parse_schedule(text).zone)
    except ScheduleError as error:
        path: FieldPath = ("metadata", "annotations", names.PARK_SCHEDULE_ANNOTATION)
        yield Finding(path, Fault.INVALID, error.detail, value=text)


@RULES.rule(secretscan.RULE, KINDS, secretscan.DESCRIPTION)
def _check_secrets(obj: Obj) -> Iterator[Finding]:
    yield from secretscan.check(obj)


TWICE = RULES.declare(
    "definition-twice", "Two definitions must not define the same cluster.", kinds=KINDS
)
SOURCE = RULES.declare(
    "definition-source",
    "Two sources of a shared repository must not define the same cluster. Only `caphv packager` "
    "checks it.",
    kinds=KINDS,
)
