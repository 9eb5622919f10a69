"""Configuration of a cluster's nodes, in the form in which bootstrap providers take files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api.object import Obj, at, list_at
from packager.definitions import etcdsnapshots, kubevip, started
from packager.definitions.model import NONE, Definition
from packager.rendering import yaml
from packager.rendering.nodefiles import node_files
from packager.rendering.rendered import Rendered

_K3S_REGISTRIES = "/etc/rancher/k3s/registries.yaml"
_RKE2_CONFIG = "/etc/rancher/rke2/config.yaml.d/50-caphv.yaml"


@dataclass(frozen=True)
class NodeConfig:
    """CNI, files and RKE2's `serverConfig`.

    `external`: kubelets wait for a cloud provider. `without_cloud_controller`: servers run without
    the cloud controller of their distribution, which can never change.
    """

    cni: str = ""
    external: bool = True
    without_cloud_controller: bool = True
    cloud_config_delivery: str = "Secret"
    server_files: Sequence[Obj] = ()
    agent_files: Sequence[Obj] = ()
    server_config: Mapping[str, Any] = field(default_factory=dict)


def config_before_rendering(definition: Definition, existing: Sequence[Obj] = ()) -> NodeConfig:
    """Return the part of the configuration that rendering the add-ons needs.

    :param definition: the definition
    :param existing: the objects of a running cluster
    """
    addons = definition.addons
    default_cni = "calico" if definition.distribution == "rke2" else "none"
    external = addons.get("ccm", {}).get("enabled", True) or definition.delivery == NONE
    return NodeConfig(
        cni=addons.get("cni", {}).get("name", default_cni),
        external=external,
        without_cloud_controller=external or started.lacks_cloud_controller(existing) is True,
        cloud_config_delivery="File" if "hostPath" in addons.get("cloudConfig", {}) else "Secret",
        server_config=_server_config(addons),
    )


def _server_config(addons: Mapping[str, Any]) -> Obj:
    name = addons.get("cloudProviderName", "external")
    return {"cloudProviderName": name} if addons.get("ccm", {}).get("enabled", True) else {}


def config_after_rendering(
    definition: Definition, rendered: Rendered, existing: Sequence[Obj]
) -> NodeConfig:
    """Return the whole configuration of the nodes, which includes files for rendered add-ons.

    :param definition: the definition
    :param rendered: the rendered add-ons
    :param existing: the objects of a running cluster
    """
    config = config_before_rendering(definition, existing)
    # Patches of ClusterClasses add the Pod to files of their variables.
    pods = []
    if not definition.cluster_class:
        pods = [*kubevip.server_files(definition.distribution, definition.load_balancer)]
    if definition.distribution == "kubeadm":
        return replace(config, server_files=pods)

    # Joining servers must have the same setting as the running ones.
    without_controller = started.lacks_cloud_controller(existing) is True
    nodes = node_files(rendered, without_cloud_controller=without_controller)
    server_files = dict(nodes.server_files)
    agent_files = dict(nodes.agent_files)
    replaces_proxy = rendered.settings is not None and rendered.settings.cni.kube_proxy_replacement
    if definition.cluster_class and definition.distribution == "rke2" and replaces_proxy:
        # ClusterClasses have no variable for kube-proxy, but RKE2 reads this file as well.
        server_files[_RKE2_CONFIG] = b"disable-kube-proxy: true\n"
    if not definition.cluster_class:
        # Patches of ClusterClasses add these to files of their variables.
        if definition.distribution == "rke2":
            server_files |= definition.hardening.server_files
        elif definition.registries:
            registries = yaml.dump(dict(definition.registries)).encode()
            server_files[_K3S_REGISTRIES] = registries
            agent_files[_K3S_REGISTRIES] = registries

    files = [_file(path, content) for path, content in server_files.items()]
    if not definition.cluster_class:
        snapshots = definition.etcd_snapshots
        files += etcdsnapshots.server_files(definition.distribution, snapshots)

    return replace(
        config,
        server_files=[*files, *pods],
        agent_files=[_file(path, content) for path, content in agent_files.items()],
        server_config=nodes.server_config,
    )


# Files of servers that follow from fields of a definition, and not from its add-ons.
_OWN_FILES = frozenset((*etcdsnapshots.FILES.values(), *kubevip.FILES.values()))
# Variables of a ClusterClass that replace all machines when they change.
_MACHINE_VARIABLES = (
    *("vmNetworks", "sshUser", "sshKeyPair", "firmware", "tpm"),
    *("guestConfig", "registries", "cisProfile", "stig", "fipsRequired"),
)


def keep_files(
    node_config: NodeConfig, existing: Sequence[Obj], desired: Sequence[Obj]
) -> NodeConfig:
    """Return `node_config` with the files that the nodes of existing objects started with.

    Absent files stay absent. New files would replace machines, only for a setting that the bundles
    change in place. So files stay until another change replaces the machines anyway, such as
    another version. Workers share their files, so these stay while the machines of one group stay.
    """
    old_servers = _server_fields(existing)
    servers_stay = bool(old_servers) and _contains(old_servers, _server_fields(desired))
    old_workers = _worker_fields(existing)
    workers_stay = any(
        group in old_workers and _contains(old_workers[group], fields)
        for group, fields in _worker_fields(desired).items()
    )
    return replace(
        node_config,
        server_files=_server_files(existing) if servers_stay else node_config.server_files,
        agent_files=_agent_files(existing) if workers_stay else node_config.agent_files,
    )


def _server_fields(objects: Iterable[Obj]) -> list[Any]:
    """Return all fields, except files, whose change replaces the machines of the control plane.

    Files of the cluster's own fields, which `_OWN_FILES` names, are among the fields: other add-ons
    never change them. The list is empty without a control plane.
    """
    for obj in objects:
        if topology := _topology(obj):
            values = _values(topology, ("controlPlane", "etcdSnapshots"))
            balancer = _values(topology, ("loadBalancer",)).get("loadBalancer")
            return [
                *_machine_fields(topology),
                values,
                at(topology, "controlPlane", "variables"),
                at(balancer, "kubeVip"),
            ]

        if str(obj.get("kind")).endswith("ControlPlane"):
            machine = at(obj, "spec", "machineTemplate")
            # The control plane of K3s has the reference one level higher.
            template = at(machine, "spec", "infrastructureRef", "name")
            template = template or at(machine, "infrastructureRef", "name")
            return [
                at(obj, "spec", "version"),
                template,
                at(obj, "spec", "agentConfig", "cisProfile") or None,
                at(obj, "spec", "preRKE2Commands") or None,
                at(obj, "spec", "serverConfig", "kubeAPIServer") or None,
                at(obj, "spec", "serverConfig", "etcd", "backupConfig") or None,
                [
                    file
                    for file in _control_plane_files(obj)
                    if str(at(file, "path")) in _OWN_FILES or at(file, "contentFrom")
                ],
            ]
    return []


def _worker_fields(objects: Iterable[Obj]) -> dict[str, list[Any]]:
    """Return all fields, except files, whose change replaces machines of workers, by group."""
    workers: dict[str, list[Any]] = {}
    for obj in objects:
        if topology := _topology(obj):
            machine_fields = _machine_fields(topology)
            for group in list_at(topology, "workers", "machineDeployments"):
                fields = [at(group, "failureDomain"), at(group, "variables")]
                workers[str(at(group, "name"))] = [*machine_fields, *fields]

        if obj.get("kind") == "MachineDeployment":
            machine = at(obj, "spec", "template", "spec")
            workers[str(at(obj, "metadata", "name"))] = [
                at(machine, "version"),
                at(machine, "infrastructureRef", "name"),
                at(machine, "failureDomain"),
            ]
    return workers


def _machine_fields(topology: Obj) -> list[Any]:
    """Return the fields whose change replaces all machines of a topology."""
    return [topology.get("version"), _values(topology, _MACHINE_VARIABLES)]


def _server_files(objects: Iterable[Obj]) -> list[Obj]:
    for obj in objects:
        if topology := _topology(obj):
            return _as_list(_values(topology, ("controlPlaneFiles",)).get("controlPlaneFiles"))
        if str(obj.get("kind")).endswith("ControlPlane"):
            return _control_plane_files(obj)
    return []


def _control_plane_files(obj: Obj) -> list[Obj]:
    places = (("files",), ("kthreesConfigSpec", "files"), ("kubeadmConfigSpec", "files"))
    files = (at(obj, "spec", *place) for place in places)
    return _as_list(next(filter(None, files), None))


def _agent_files(objects: Iterable[Obj]) -> list[Obj]:
    for obj in objects:
        if topology := _topology(obj):
            return _as_list(_values(topology, ("workerFiles",)).get("workerFiles"))
        if str(obj.get("kind")).endswith("ConfigTemplate"):
            return _as_list(at(obj, "spec", "template", "spec", "files"))
    return []


def _topology(obj: Obj) -> Obj | None:
    topology = at(obj, "spec", "topology") if obj.get("kind") == "Cluster" else None
    return topology if isinstance(topology, dict) else None


def _values(topology: Obj, names: Iterable[str]) -> Obj:
    """Return the variables of these names that a topology sets."""
    rows = _as_list(topology.get("variables"))
    return {row["name"]: row.get("value") for row in rows if at(row, "name") in names}


def _as_list(value: Any) -> list[Any]:
    # A user may have edited the manifest.
    return value if isinstance(value, list) else []


def _contains(existing: Any, desired: Any) -> bool:
    """Whether existing values hold the desired ones.

    A management cluster adds defaults to existing values.
    """
    if isinstance(existing, dict) and isinstance(desired, dict):
        return all(
            key in existing and _contains(existing[key], value) for key, value in desired.items()
        )
    if isinstance(existing, list) and isinstance(desired, list):
        return len(existing) == len(desired) and all(map(_contains, existing, desired))
    return bool(existing == desired)


def _file(path: str, content: bytes) -> Obj:
    return {"path": path, "content": content.decode(), "owner": "root:root", "permissions": "0600"}
