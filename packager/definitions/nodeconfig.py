"""What nodes of a cluster start with, in the form in which bootstrap providers take files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api.object import Obj
from packager.addons.merge import at
from packager.definitions import started
from packager.definitions.model import NONE, Definition
from packager.rendering import yaml
from packager.rendering.nodefiles import node_files
from packager.rendering.renderer import Rendered

_K3S_REGISTRIES = "/etc/rancher/k3s/registries.yaml"
_RKE2_CONFIG = "/etc/rancher/rke2/config.yaml.d/50-caphv.yaml"


@dataclass(frozen=True)
class NodeConfig:
    """CNI, files and RKE2's `serverConfig`; `external` says whether kubelets wait for a cloud provider.

    `without_cloud_controller`: servers run without that of their distribution, which can never change.
    """

    cni: str = ""
    external: bool = True
    without_cloud_controller: bool = True
    cloud_config_delivery: str = "Secret"
    server_files: Sequence[Obj] = ()
    agent_files: Sequence[Obj] = ()
    server_config: Mapping[str, Any] = field(default_factory=dict)


def before_rendering(definition: Definition, existing: Sequence[Obj] = ()) -> NodeConfig:
    """Return what is known before the add-ons are rendered, which is all that rendering needs.

    `existing` are the objects of a running cluster.
    """
    addons = definition.addons
    brought = "calico" if definition.distribution == "rke2" else "none"
    external = addons.get("ccm", {}).get("enabled", True) or definition.delivery == NONE
    return NodeConfig(
        cni=addons.get("cni", {}).get("name", brought),
        external=external,
        without_cloud_controller=external or started.without_cloud_controller(existing) is True,
        cloud_config_delivery="File" if "hostPath" in addons.get("cloudConfig", {}) else "Secret",
        server_config=_server_config(addons),
    )


def _server_config(addons: Mapping[str, Any]) -> Obj:
    name = addons.get("cloudProviderName", "external")
    return {"cloudProviderName": name} if addons.get("ccm", {}).get("enabled", True) else {}


def after_rendering(definition: Definition, rendered: Rendered, existing: Sequence[Obj] = ()) -> NodeConfig:
    """Return all that the nodes of a rendered cluster start with."""
    known = before_rendering(definition, existing)
    if definition.distribution == "kubeadm":
        return known
    kept = started.without_cloud_controller(existing) is True
    found = node_files(rendered, without_cloud_controller=kept)
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
    return replace(
        known,
        server_files=[_file(path, content) for path, content in files.items()],
        agent_files=[_file(path, content) for path, content in agent_files.items()],
        server_config=found.server_config,
    )


_MACHINE_VARIABLES = (
    *("vmNetworks", "sshUser", "sshKeyPair", "firmware", "tpm"),
    *("guestConfig", "registries", "cisProfile", "stig", "fipsRequired"),
)
"""Variables of a ClusterClass that replace all machines when they change."""


def with_kept_files(boot: NodeConfig, existing: Sequence[Obj], wanted: Sequence[Obj]) -> NodeConfig:
    """Return `boot` with the files that the nodes of existing objects started with; absent files stay absent.

    New files replace machines, for a setting that the bundles change in place. So files stay until another change
    replaces the machines anyway: another version, or other machines. Workers share their files, so these stay as long
    as the machines of one group do.
    """
    servers, new_servers = _servers(existing), _servers(wanted)
    if servers and _contains(servers, new_servers):
        boot = replace(boot, server_files=_server_files(existing))
    workers, new_workers = _workers(existing), _workers(wanted)
    if any(name in workers and _contains(workers[name], fields) for name, fields in new_workers.items()):
        boot = replace(boot, agent_files=_agent_files(existing))
    return boot


def _servers(objects: Iterable[Obj]) -> list[Any]:
    """Return all that replaces the machines of the control plane, except files; nothing without a control plane."""
    for obj in objects:
        if topology := _topology(obj):
            sizes = _values(topology, ("controlPlane",))
            return [*_shared(topology), sizes, at(topology, "controlPlane", "variables")]
        if str(obj.get("kind")).endswith("ControlPlane"):
            template = at(obj, "spec", "machineTemplate", "spec", "infrastructureRef", "name")
            template = template or at(obj, "spec", "machineTemplate", "infrastructureRef", "name")
            hardening = (("agentConfig", "cisProfile"), ("preRKE2Commands",), ("serverConfig", "kubeAPIServer"))
            return [at(obj, "spec", "version"), template, *(at(obj, "spec", *field) or None for field in hardening)]
    return []


def _workers(objects: Iterable[Obj]) -> dict[str, list[Any]]:
    """Return all that replaces machines of workers, except files, by group."""
    found: dict[str, list[Any]] = {}
    for obj in objects:
        if topology := _topology(obj):
            shared = _shared(topology)
            for group in at(topology, "workers", "machineDeployments") or ():
                found[str(at(group, "name"))] = [*shared, at(group, "failureDomain"), at(group, "variables")]
        if obj.get("kind") == "MachineDeployment":
            machine = ("spec", "template", "spec")
            fields = (("version",), ("infrastructureRef", "name"), ("failureDomain",))
            found[str(at(obj, "metadata", "name"))] = [at(obj, *machine, *field) for field in fields]
    return found


def _shared(topology: Obj) -> list[Any]:
    """Return what replaces all machines of a topology."""
    return [topology.get("version"), _values(topology, _MACHINE_VARIABLES)]


def _server_files(objects: Iterable[Obj]) -> list[Obj]:
    for obj in objects:
        if topology := _topology(obj):
            return _listed(_values(topology, ("controlPlaneFiles",)).get("controlPlaneFiles"))
        if str(obj.get("kind")).endswith("ControlPlane"):
            return _listed(at(obj, "spec", "files") or at(obj, "spec", "kthreesConfigSpec", "files"))
    return []


def _agent_files(objects: Iterable[Obj]) -> list[Obj]:
    for obj in objects:
        if topology := _topology(obj):
            return _listed(_values(topology, ("workerFiles",)).get("workerFiles"))
        if str(obj.get("kind")).endswith("ConfigTemplate"):
            return _listed(at(obj, "spec", "template", "spec", "files"))
    return []


def _topology(obj: Obj) -> Obj | None:
    topology = at(obj, "spec", "topology") if obj.get("kind") == "Cluster" else None
    return topology if isinstance(topology, dict) else None


def _values(topology: Obj, names: Iterable[str]) -> Obj:
    """Return those variables that a topology sets."""
    rows = topology.get("variables")
    return {row["name"]: row.get("value") for row in _listed(rows) if at(row, "name") in names}


def _listed(value: Any) -> list[Any]:
    # A user may have edited the manifest.
    return value if isinstance(value, list) else []


def _contains(existing: Any, wanted: Any) -> bool:
    """Whether existing values hold the wanted ones; on the management cluster, defaults may be filled in."""
    if isinstance(existing, dict) and isinstance(wanted, dict):
        return all(key in existing and _contains(existing[key], value) for key, value in wanted.items())
    if isinstance(existing, list) and isinstance(wanted, list):
        return len(existing) == len(wanted) and all(map(_contains, existing, wanted))
    return bool(existing == wanted)


def _file(path: str, content: bytes) -> Obj:
    return {"path": path, "content": content.decode(), "owner": "root:root", "permissions": "0600"}
