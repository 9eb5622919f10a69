"""What nodes of a cluster start with, in the form in which bootstrap providers take files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj
from packager.addons.merge import at
from packager.definitions.model import NONE, Definition
from packager.rendering import yaml
from packager.rendering.nodefiles import node_files
from packager.rendering.renderer import Rendered

_K3S_REGISTRIES = "/etc/rancher/k3s/registries.yaml"
_RKE2_CONFIG = "/etc/rancher/rke2/config.yaml.d/50-caphv.yaml"


@dataclass(frozen=True)
class NodeConfig:
    """CNI, files and RKE2's `serverConfig`; `external` tells whether kubelets wait for a cloud provider."""

    cni: str = ""
    external: bool = True
    cloud_config_delivery: str = "Secret"
    server_files: Sequence[Obj] = ()
    agent_files: Sequence[Obj] = ()
    server_config: Mapping[str, Any] = field(default_factory=dict)


def before_rendering(definition: Definition) -> NodeConfig:
    """Return what is known before the add-ons are rendered, which is all that rendering needs."""
    addons = definition.addons
    brought = "calico" if definition.distribution == "rke2" else "none"
    return NodeConfig(
        cni=addons.get("cni", {}).get("name", brought),
        external=addons.get("ccm", {}).get("enabled", True) or definition.delivery == NONE,
        cloud_config_delivery="File" if "hostPath" in addons.get("cloudConfig", {}) else "Secret",
        server_config=_server_config(addons),
    )


def _server_config(addons: Mapping[str, Any]) -> Obj:
    name = addons.get("cloudProviderName", "external")
    return {"cloudProviderName": name} if addons.get("ccm", {}).get("enabled", True) else {}


def after_rendering(definition: Definition, rendered: Rendered) -> NodeConfig:
    """Return all that the nodes of a rendered cluster start with."""
    known = before_rendering(definition)
    if definition.distribution == "kubeadm":
        return known
    found = node_files(rendered)
    files, agent_files = dict(found.server_files), dict(found.agent_files)
    replaced = rendered.settings is not None and rendered.settings.cni.kube_proxy_replacement
    if definition.cluster_class and definition.distribution == "rke2" and replaced:
        # ClusterClasses have no variable for it, and RKE2 reads this file as well.
        files[_RKE2_CONFIG] = b"disable-kube-proxy: true\n"
    if not definition.cluster_class:
        # Patches of ClusterClasses add these to files of their variables.
        if definition.distribution == "rke2":
            files |= definition.hardening.server_files
        elif definition.registries:
            registries = {_K3S_REGISTRIES: yaml.dump(dict(definition.registries)).encode()}
            files, agent_files = files | registries, agent_files | registries
    return NodeConfig(
        known.cni,
        known.external,
        known.cloud_config_delivery,
        [_file(path, content) for path, content in files.items()],
        [_file(path, content) for path, content in agent_files.items()],
        found.server_config,
    )


_MACHINE_VARIABLES = (
    *("controlPlane", "vmNetworks", "sshUser", "sshKeyPair", "firmware", "tpm"),
    *("guestConfig", "registries", "cisProfile", "stig", "fipsRequired"),
)
"""Variables of a ClusterClass that replace the machines of the control plane when they change."""


def kept_node_files(existing: Sequence[Obj], wanted: Sequence[Obj]) -> list[Obj] | None:
    """Return the files with which the control plane of existing objects started, None for new ones.

    New files replace all machines of the control plane, for a setting that its bundle changes in place. So they stay
    until another change replaces the machines anyway: another version, or other machines.
    """
    files = _node_files(existing)
    return files if files is not None and _contains(_rollout_fields(existing), _rollout_fields(wanted)) else None


def _rollout_fields(objects: Iterable[Obj]) -> list[Any]:
    """Return all that replaces the machines of the control plane, except files."""
    for obj in objects:
        if obj.get("kind") == "Cluster" and (topology := at(obj, "spec", "topology")):
            rows = topology.get("variables") or ()
            variables = {row["name"]: row.get("value") for row in rows if at(row, "name") in _MACHINE_VARIABLES}
            return [topology.get("version"), variables, at(topology, "controlPlane", "variables")]
        if str(obj.get("kind")).endswith("ControlPlane"):
            template = at(obj, "spec", "machineTemplate", "spec", "infrastructureRef", "name")
            template = template or at(obj, "spec", "machineTemplate", "infrastructureRef", "name")
            hardening = [at(obj, "spec", "agentConfig", "cisProfile"), at(obj, "spec", "preRKE2Commands")]
            return [at(obj, "spec", "version"), template, *(value or None for value in hardening)]
    return []


def _contains(existing: Any, wanted: Any) -> bool:
    """Whether existing values hold the wanted ones; on the management cluster, defaults may be filled in."""
    if isinstance(existing, dict) and isinstance(wanted, dict):
        return all(key in existing and _contains(existing[key], value) for key, value in wanted.items())
    if isinstance(existing, list) and isinstance(wanted, list):
        return len(existing) == len(wanted) and all(map(_contains, existing, wanted))
    return bool(existing == wanted)


def _node_files(objects: Iterable[Obj]) -> list[Obj] | None:
    """Return the files of the control plane of existing objects; None if they have none."""
    for obj in objects:
        if obj.get("kind") == "Cluster":
            rows = at(obj, "spec", "topology", "variables")
            for row in rows if isinstance(rows, list) else ():
                if at(row, "name") == "controlPlaneFiles":
                    return list(row["value"])
        for path in (("spec", "files"), ("spec", "kthreesConfigSpec", "files")):
            if str(obj.get("kind")).endswith("ControlPlane") and isinstance(files := at(obj, *path), list):
                return files
    return None


def _file(path: str, content: bytes) -> Obj:
    return {"path": path, "content": content.decode(), "owner": "root:root", "permissions": "0600"}
