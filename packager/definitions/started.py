"""What the servers of a running cluster were started with, and none may differ in.

Servers of K3s and RKE2 compare these settings with a running one when they join (`CriticalControlArgs` of K3s), and do
not start with others: a change would end every later rollout of the control plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from caphv.api import names
from caphv.api.object import Obj
from caphv.runtime.text import TextError, load_yaml
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.merge import at

RULE = "live-servers"
_K3S_CONFIG = "/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"
_NETWORKS = {"podCIDRs": "pods", "serviceCIDRs": "services"}


def without_cloud_controller(existing: Sequence[Obj]) -> bool | None:
    """Whether servers run without the cloud controller of their distribution; None if that is not known.

    ClusterClasses turn it off, too, so only those of K3s whose file says so are known.
    """
    for obj in existing:
        if obj.get("kind") == "KThreesControlPlane":
            disabled = at(obj, "spec", "kthreesConfigSpec", "serverConfig", "disableComponents")
            return "servicelb" in (disabled or ())
        if obj.get("kind") == "RKE2ControlPlane":
            config = at(obj, "spec", "serverConfig")
            disabled = at(config, "disableComponents", "kubernetesComponents")
            return at(config, "cloudProviderName") == "harvester" or "cloudController" in (disabled or ())
    return True if _k3s_config(existing).get("disable-cloud-controller") is True else None


def changes(existing: Sequence[Obj], wanted: Sequence[Obj]) -> list[Finding]:
    """Return a refusal for each setting with which new servers of a running cluster could not join."""
    return [*_networks(existing, wanted), *_flannel(existing, wanted), *_cloud_controller(existing, wanted)]


def _networks(existing: Sequence[Obj], wanted: Sequence[Obj]) -> Iterator[Finding]:
    before, now = (at(_cluster(objects), "spec", "clusterNetwork") for objects in (existing, wanted))
    for field, kind in _NETWORKS.items():
        old, new = (at(network, kind, "cidrBlocks") for network in (before, now))
        if old and old != new:
            yield _finding(("clusterNetwork", field), f"is {', '.join(map(str, old))} in the running cluster")


def _flannel(existing: Sequence[Obj], wanted: Sequence[Obj]) -> Iterator[Finding]:
    before, now = (_k3s_config(objects) for objects in (existing, wanted))
    if before and now and before.get("flannel-backend") != now.get("flannel-backend"):
        running = "no flannel" if "flannel-backend" in before else "flannel"
        yield _finding(("addons", "cni", "name"), f"servers of the running cluster started with {running}")


def _cloud_controller(existing: Sequence[Obj], wanted: Sequence[Obj]) -> Iterator[Finding]:
    if without_cloud_controller(existing) is False and without_cloud_controller(wanted):
        own = "servers of the running cluster started with the cloud controller of their distribution"
        yield _finding(("addons", "ccm", "enabled"), own)


def _finding(path: FieldPath, what: str) -> Finding:
    detail = (
        f"{what}, and new servers could not join with another setting. Create a new cluster, or, if all servers have "
        f"the setting already, force it with annotation {names.ALLOW_NETWORK_CHANGE_ANNOTATION}=true"
    )
    return Finding(("spec", *path), Fault.FORBIDDEN, detail, RULE)


def _cluster(objects: Sequence[Obj]) -> Obj:
    return next((obj for obj in objects if obj.get("kind") == "Cluster"), {})


def _k3s_config(objects: Sequence[Obj]) -> Obj:
    """Return the settings of servers of K3s in the file that the packager writes; empty without one."""
    for obj in objects:
        files: Any = at(obj, "spec", "kthreesConfigSpec", "files")
        rows = at(obj, "spec", "topology", "variables") if obj.get("kind") == "Cluster" else None
        for row in rows if isinstance(rows, list) else ():
            files = at(row, "value") if at(row, "name") == "controlPlaneFiles" else files
        for file in files if isinstance(files, list) else ():
            if at(file, "path") == _K3S_CONFIG:
                return _parsed(str(at(file, "content")))
    return {}


def _parsed(text: str) -> Obj:
    try:
        found = load_yaml(text)
    except TextError:
        return {}
    return found if isinstance(found, dict) else {}
