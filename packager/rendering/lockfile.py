"""The file `caphv.yaml` with the bundles of a cluster: what a later rendering must keep or compare.

It holds the pinned versions, what cannot change in a live cluster, and a hash over all other files of the cluster. It
stands above the folders that Fleet reads, so Fleet does not take it for a manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding
from packager.addons.gather import parsed
from packager.addons.merge import origin
from packager.addons.settings import HELM_CONTROLLER, AddonSettings
from packager.addons.versions import Versions, pinned
from packager.git.folder import RECORD, Tree, recorded
from packager.rendering import sources
from packager.rendering import yaml as yamltext
from packager.tree import cluster_folder

FILE = "caphv.yaml"

_EFFECTS = {
    "cni": "the running CNI would stay next to the new one, and Pods would have no network",
    "encapsulation": "nodes would lose contact with each other's Pods until all have changed",
    "kubeProxyReplacement": "Services would stop to work until every node is replaced",
    "podCIDRs": "running Pods would keep addresses that are no longer routed",
    "serviceCIDRs": "existing Services would keep addresses that are no longer served, DNS first",
}
_NETWORKS = ("podCIDRs", "serviceCIDRs")


@dataclass(frozen=True)
class Record:
    """Content of the file: versions, what cannot change, the hash over the other files, and what they are made of.

    `sources` is None in a file of 0.11, which does not contain it.
    """

    versions: Versions
    network: Mapping[str, Any]
    content_hash: str
    sources: sources.Sources | None = None
    installer: str = ""
    """Who installs charts, as `AddonSettings.installer`."""
    branch: str = ""
    """The branch that has only the bundles of its group, as `<workspace>/<group>`."""


def record_path(settings: AddonSettings) -> str:
    """Path of a cluster's record in the repository."""
    return f"{cluster_folder(*settings.cluster)}/{FILE}"


def write(settings: AddonSettings, record: Record) -> bytes:
    """Return the content of the file."""
    content = {
        **({"branch": record.branch} if record.branch else {}),
        "cluster": {"namespace": settings.cluster.namespace, "name": settings.cluster.name},
        "contentHash": record.content_hash,
        **({"installedBy": record.installer} if record.installer else {}),
        "network": dict(record.network),
        # Without a mirror and templates of users the file stays as 0.11 wrote it.
        **({"sources": made_of} if record.sources and (made_of := record.sources.as_data()) else {}),
        "versions": record.versions.as_data(),
    }
    return yamltext.dump(content).encode()


def read(content: bytes) -> Record:
    """Return what a record says. Raises ValueError when it is none."""
    try:
        value, fault = parsed(content.decode())
        if fault or not isinstance(value, dict):
            msg = fault or "must be an object"
            raise ValueError(msg)
        made_of = sources.pinned(value.get("sources"))
        installer = str(value.get("installedBy", ""))
        return Record(pinned(value["versions"]), dict(value["network"]), str(value["contentHash"]), made_of, installer)
    except (KeyError, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"lacks or spoils a field: {type(error).__name__} {error}"
        raise ValueError(msg) from None


def held(previous: Tree, folder: str) -> Record | None:
    """Return what the record in a cluster's folder says, None for a new cluster.

    Raises ValueError when it is none, or missing from a folder whose list of files has it: as a new cluster, this one
    would get the newest versions, and nothing would be compared.
    """
    content = previous.get(f"{folder}/{FILE}")
    if content is None and FILE in recorded(previous.get(f"{folder}/{RECORD}")):
        raise ValueError("is missing")
    return None if content is None else read(content)


def changes(settings: AddonSettings, before: Mapping[str, Any]) -> list[Finding]:
    """Return a refusal for each change that would break a live cluster's network."""
    now: Obj = settings.network
    changed = [field for field, value in now.items() if field in before and before[field] != value]
    if now["cni"] == "none" or before.get("cni") in (None, "none"):
        # No CNI of the bundles runs. Networks are settings of API server and controllers, and K3s then runs flannel.
        kept = ("cni", *_NETWORKS) if settings.distribution == "k3s" else _NETWORKS
        changed = [field for field in changed if field in kept]
    return [
        Finding(
            origin(settings.origins, ("cni", "name" if field == "cni" else field)),
            Fault.FORBIDDEN,
            f"was rendered as {_shown(before[field])} and would become {_shown(now[field])}: "
            f"{_effect(settings.distribution, field)}. Create a new cluster, or force it with annotation "
            f"addons.caphv.io/allow-network-change=true. {_recreated(settings)}",
            "live-network",
        )
        for field in changed
    ]


def _effect(distribution: str, field: str) -> str:
    """Return what a change does; K3s and RKE2 compare settings of servers (`CriticalControlArgs`) when one joins."""
    critical = ("cni", *_NETWORKS) if distribution == "k3s" else _NETWORKS
    joins = distribution not in ("k3s", "rke2") or field not in critical
    return _EFFECTS[field] + ("" if joins else ", and new servers could not join")


def _recreated(settings: AddonSettings) -> str:
    folder = cluster_folder(*settings.cluster)
    return f"If a new cluster has the name of a deleted one, remove folder {folder} from the repository"


def moved_charts(settings: AddonSettings, before: str) -> list[Finding]:
    """Return a refusal if another one would install the charts: Fleet would uninstall a release that it had."""
    if settings.installer == before:
        return []
    names = {"": "Fleet", HELM_CONTROLLER: "RKE2's Helm controller"}
    detail = (
        f"charts of this cluster are installed by {names.get(before, before)}, and its releases would be removed under "
        f"the other one: restore the setting, or create a new cluster with it. {_recreated(settings)}"
    )
    path = origin(settings.origins, ("charts", "installedBy"))
    return [Finding(path, Fault.FORBIDDEN, detail, "charts-installer")]


def _shown(value: Any) -> str:
    return (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value).lower() if value is True else str(value)
    )
