"""The lockfile of a cluster's bundles, `caphv.yaml`, with which later renderings compare.

It holds the pinned versions, the settings that cannot change in a live cluster, and a hash over all
other files of the cluster. Fleet reads the folders of the bundles only, so it never deploys the
lockfile, which is next to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding
from packager.addons.merge import origin
from packager.addons.settings import HELM_CONTROLLER, AddonSettings
from packager.addons.versions import Versions, parse_versions
from packager.addons.yamlvalues import parse_yaml
from packager.git.folder import FILE_LIST, Tree, parse_file_list
from packager.rendering import sources
from packager.rendering import yaml as yamltext
from packager.tree import cluster_folder

FILE = "caphv.yaml"
NETWORK_RULE = "live-network"

_EFFECTS = {
    "cni": "the running CNI would stay next to the new one, and Pods would have no network",
    "encapsulation": "nodes would lose contact with each other's Pods until all have changed",
    "kubeProxyReplacement": "Services would stop to work until every node is replaced",
    "podCIDRs": "running Pods would keep addresses that are no longer routed",
    "serviceCIDRs": "existing Services would keep addresses that are no longer served, DNS first",
}
_NETWORKS = ("podCIDRs", "serviceCIDRs")


@dataclass(frozen=True)
class Lockfile:
    """Content of a lockfile.

    `network` holds the settings that cannot change, and `content_hash` covers the other files of
    the cluster, which were rendered with `sources`. `installer` is as in `AddonSettings`.
    """

    versions: Versions
    network: Mapping[str, Any]
    content_hash: str
    sources: sources.Sources
    installer: str


def serialize(settings: AddonSettings, lockfile: Lockfile) -> bytes:
    """Return the content of a lockfile."""
    content: Obj = {
        "cluster": {"namespace": settings.cluster.namespace, "name": settings.cluster.name},
        "contentHash": lockfile.content_hash,
    }
    # Write the installer only if the user chose one: lockfiles of older releases lack the field.
    if lockfile.installer:
        content["installedBy"] = lockfile.installer
    content["network"] = dict(lockfile.network)
    if pinned_sources := lockfile.sources.as_data():
        content["sources"] = pinned_sources
    content["versions"] = lockfile.versions.as_data()
    return yamltext.dump(content).encode()


def parse(content: bytes) -> Lockfile:
    """Parse the content of a lockfile. Raises `ValueError` if it is invalid."""
    try:
        value = parse_yaml(content.decode())
        if not isinstance(value, dict):
            raise ValueError("must be an object")

        return Lockfile(
            versions=parse_versions(value["versions"]),
            network=dict(value["network"]),
            content_hash=str(value["contentHash"]),
            sources=sources.parse_sources(value.get("sources", {})),
            installer=str(value.get("installedBy", "")),
        )
    except (KeyError, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"lacks or spoils a field: {type(error).__name__} {error}"
        raise ValueError(msg) from None


def read(previous: Tree, folder: str) -> Lockfile | None:
    """Return the lockfile in a cluster's folder, None for a new cluster.

    Raises `ValueError` if the lockfile is invalid, or if it is missing although the cluster's list
    of files names it. Such a cluster must not count as new, because it would get the newest
    versions without any check.
    """
    content = previous.get(f"{folder}/{FILE}")
    if content is None and FILE in parse_file_list(previous.get(f"{folder}/{FILE_LIST}")):
        raise ValueError("is missing")
    return None if content is None else parse(content)


def check_network(settings: AddonSettings, before: Mapping[str, Any]) -> list[Finding]:
    """Return a finding for each change that would break the network of a live cluster."""
    new: Obj = settings.network
    changed = [name for name, value in new.items() if name in before and before[name] != value]
    if new["cni"] == "none" or before.get("cni") in (None, "none"):
        # The bundles install no CNI, but API server and controllers still use the networks. K3s
        # runs flannel if no CNI is chosen.
        fixed = ("cni", *_NETWORKS) if settings.distribution == "k3s" else _NETWORKS
        changed = [name for name in changed if name in fixed]

    findings = []
    for name in changed:
        detail = (
            f"was rendered as {_format(before[name])} and would become {_format(new[name])}: "
            f"{effect_of(settings.distribution, name)}. Create a new cluster, or force it with "
            f"annotation addons.caphv.io/allow-network-change=true. {_advise_on_new(settings)}"
        )
        path = origin(settings.origins, ("cni", "name" if name == "cni" else name))
        findings.append(Finding(path, Fault.FORBIDDEN, detail, NETWORK_RULE))
    return findings


def effect_of(distribution: str, field: str) -> str:
    """Return what the change of a network setting would break."""
    # A server joins only if its `CriticalControlArgs` are those of the existing servers.
    compared = ("cni", *_NETWORKS) if distribution == "k3s" else _NETWORKS
    if distribution in ("k3s", "rke2") and field in compared:
        return f"{_EFFECTS[field]}, and new servers could not join"
    return _EFFECTS[field]


def _advise_on_new(settings: AddonSettings) -> str:
    folder = cluster_folder(*settings.cluster)
    return (
        f"If a new cluster has the name of a deleted one, remove folder {folder} from the "
        "repository"
    )


def check_installer(settings: AddonSettings, before: str) -> list[Finding]:
    """Return a finding for another installer, under which existing releases would be removed."""
    if settings.installer == before:
        return []
    names = {"": "Fleet", HELM_CONTROLLER: "RKE2's Helm controller"}
    detail = (
        f"charts of this cluster are installed by {names.get(before, before)}, and its releases "
        "would be removed under the other one: restore the setting, or create a new cluster with "
        f"it. {_advise_on_new(settings)}"
    )
    path = origin(settings.origins, ("charts", "installedBy"))
    return [Finding(path, Fault.FORBIDDEN, detail, "charts-installer")]


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "true" if value is True else str(value)
