"""Checks settings that cannot change in a running cluster.

The network of Pods must be the same on all nodes. For clusters with bundles, their lockfile also
shows that. Other clusters have no lockfile, so the manifest of each cluster is compared.

Servers of K3s and RKE2 compare these settings with a running server when they join
(`CriticalControlArgs` of K3s), and do not start if they differ. So a change would end every later
rollout of the control plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from caphv.api import names
from caphv.api.object import Obj, at, list_at
from caphv.runtime.text import TextError, load_yaml
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.facts import ClusterFacts
from packager.addons.settings import AddonSettings, cni_of
from packager.rendering.lockfile import NETWORK_RULE, effect_of

RULE = "live-servers"
_K3S_CONFIG = "/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"
_NETWORKS = {"podCIDRs": "pods", "serviceCIDRs": "services"}


def lacks_cloud_controller(existing: Sequence[Obj]) -> bool | None:
    """Whether servers run without their distribution's cloud controller; None if unknown.

    ClusterClasses also turn it off. With one, only the configuration file of K3s shows it.
    """
    for obj in existing:
        if obj.get("kind") == "KThreesControlPlane":
            config = at(obj, "spec", "kthreesConfigSpec", "serverConfig")
            return "servicelb" in list_at(config, "disableComponents")
        if obj.get("kind") == "RKE2ControlPlane":
            config = at(obj, "spec", "serverConfig")
            disabled = list_at(config, "disableComponents", "kubernetesComponents")
            return "cloudController" in disabled or at(config, "cloudProviderName") == "harvester"
    return True if _k3s_config(existing).get("disable-cloud-controller") is True else None


def check_changes(existing: Sequence[Obj], desired: Sequence[Obj]) -> list[Finding]:
    """Return a refusal for each change that would keep new servers from joining a cluster."""
    return [
        *_check_networks(existing, desired),
        *_check_flannel(existing, desired),
        *_check_cloud_controller(existing, desired),
    ]


def check_cni(
    existing: Sequence[Obj], desired: ClusterFacts, settings: AddonSettings
) -> Iterator[Finding]:
    """Yield a refusal for each change of the CNI that would break the network of running Pods.

    :param existing: the objects of the running cluster
    :param desired: facts of the cluster as its definition describes it
    :param settings: the settings that follow from these facts
    """
    cluster = _cluster(existing)
    # A definition writes the settings of its CNI into the Cluster, so other objects add nothing.
    old = cni_of(replace(desired, cluster=cluster)) if cluster else None
    new = settings.cni
    # Without a CNI of ours there is nothing to replace, except flannel of K3s.
    if old is None or "none" in (old.name, new.name):
        return

    for field, name, before, after in (
        ("name", "cni", old.name, new.name),
        ("encapsulation", "encapsulation", old.encapsulation, new.encapsulation),
        (
            "kubeProxyReplacement",
            "kubeProxyReplacement",
            old.kube_proxy_replacement,
            new.kube_proxy_replacement,
        ),
    ):
        if before != after:
            detail = (
                f"is {_format(before)} in the running cluster and would become {_format(after)}: "
                f"{effect_of(settings.distribution, name)}. Create a new cluster, or force it with "
                f"annotation {names.ALLOW_NETWORK_CHANGE_ANNOTATION}=true"
            )
            path = ("spec", "addons", "cni", field)
            yield Finding(path, Fault.FORBIDDEN, detail, NETWORK_RULE)


def _check_networks(existing: Sequence[Obj], desired: Sequence[Obj]) -> Iterator[Finding]:
    old_network = at(_cluster(existing), "spec", "clusterNetwork")
    new_network = at(_cluster(desired), "spec", "clusterNetwork")
    for field, kind in _NETWORKS.items():
        old = list_at(old_network, kind, "cidrBlocks")
        new = list_at(new_network, kind, "cidrBlocks")
        if old and old != new:
            difference = f"is {', '.join(map(str, old))} in the running cluster"
            yield _finding(("clusterNetwork", field), difference)


def _check_flannel(existing: Sequence[Obj], desired: Sequence[Obj]) -> Iterator[Finding]:
    # The file has this setting only if K3s' own flannel is off.
    old = _k3s_config(existing)
    new = _k3s_config(desired)
    if old and new and old.get("flannel-backend") != new.get("flannel-backend"):
        running = "no flannel" if "flannel-backend" in old else "flannel"
        difference = f"servers of the running cluster started with {running}"
        yield _finding(("addons", "cni", "name"), difference)


def _check_cloud_controller(existing: Sequence[Obj], desired: Sequence[Obj]) -> Iterator[Finding]:
    if lacks_cloud_controller(existing) is False and lacks_cloud_controller(desired):
        difference = (
            "servers of the running cluster started with the cloud controller of their distribution"
        )
        yield _finding(("addons", "ccm", "enabled"), difference)


def _finding(path: FieldPath, difference: str) -> Finding:
    detail = (
        f"{difference}, and new servers could not join with another setting. Create a new "
        "cluster, or, if all servers have the setting already, force it with annotation "
        f"{names.ALLOW_NETWORK_CHANGE_ANNOTATION}=true"
    )
    return Finding(("spec", *path), Fault.FORBIDDEN, detail, RULE)


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cluster(objects: Sequence[Obj]) -> Obj:
    return next((obj for obj in objects if obj.get("kind") == "Cluster"), {})


def _k3s_config(objects: Sequence[Obj]) -> Obj:
    """Return the settings of K3s in the file that the packager writes; empty without one."""
    for obj in objects:
        files = list_at(obj, "spec", "kthreesConfigSpec", "files")
        # With a ClusterClass, the files are a variable of the Cluster.
        for row in list_at(obj, "spec", "topology", "variables"):
            if at(row, "name") == "controlPlaneFiles":
                files = list_at(row, "value")

        for file in files:
            if at(file, "path") == _K3S_CONFIG:
                return _parse(str(at(file, "content")))
    return {}


def _parse(text: str) -> Obj:
    try:
        config = load_yaml(text)
    except TextError:
        return {}
    return config if isinstance(config, dict) else {}
