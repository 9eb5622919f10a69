"""Builds the objects of a cluster without a ClusterClass, for RKE2, K3s and kubeadm.

Machine templates cannot be changed, so their names hold a hash over content, cluster and pool. A
change of the size creates another template, which rolls the machines, and two clusters of a
namespace never share a template. The name of a pool has no dash, so no other cluster and pool have
the same `<cluster>-<pool>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from caphv.api.names import API_VERSION, DEPLOYMENT_LABEL, GROUP
from caphv.api.object import Obj
from packager.addons.merge import merge
from packager.definitions import etcdsnapshots, kubevip
from packager.definitions.hardening import POD_SECURITY_FILE
from packager.definitions.model import Definition, Pool, interfaces_of
from packager.definitions.nodeconfig import NodeConfig

CORE = "cluster.x-k8s.io/v1beta2"
_CONTROL_PLANE = "controlplane.cluster.x-k8s.io"
_BOOTSTRAP = "bootstrap.cluster.x-k8s.io"
_KINDS = {
    "rke2": ("RKE2ControlPlane", "RKE2ConfigTemplate"),
    "k3s": ("KThreesControlPlane", "KThreesConfigTemplate"),
    "kubeadm": ("KubeadmControlPlane", "KubeadmConfigTemplate"),
}
_HASH_LENGTH = 8
_API_PORT = 6443
# Nodes of RKE2 register here.
_RKE2_LISTENER = {"name": "rke2-server", "port": 9345, "protocol": "TCP", "backendPort": 9345}


def references(definition: Definition) -> Obj:
    """Return the part of the Cluster's spec that names control plane and infrastructure."""
    return {
        "controlPlaneRef": {
            "apiGroup": _CONTROL_PLANE,
            "kind": _KINDS[definition.distribution][0],
            "name": f"{definition.key.name}-control-plane",
        },
        "infrastructureRef": {
            "apiGroup": GROUP,
            "kind": "HarvesterCluster",
            "name": definition.key.name,
        },
    }


def objects(definition: Definition, node_config: NodeConfig) -> list[Obj]:
    """Return HarvesterCluster, control plane, MachineDeployments and their templates."""
    pools = (definition.control_plane, *definition.workers)
    # The order matters, because each object is applied after the objects that it refers to.
    templates = [_machine_template(definition, pool) for pool in pools]
    result = [
        harvester_cluster(definition, node_config),
        *templates,
        control_plane(definition, node_config),
    ]
    for pool, template in zip(definition.workers, templates[1:], strict=True):
        result.append(_bootstrap_template(definition, pool, node_config))
        result.append(_machine_deployment(definition, pool, template))
    return result


def harvester_cluster(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the HarvesterCluster, which describes everything on Harvester but the machines."""
    balancer: Obj = dict(definition.load_balancer)
    endpoint = balancer.pop("endpoint", None)
    balancer.pop("kubeVip", None)
    if definition.distribution == "rke2" and endpoint is None:
        balancer["listeners"] = [_RKE2_LISTENER]

    spec: Obj = {
        "targetNamespace": definition.target_namespace,
        **definition.identity,
        "loadBalancerConfig": balancer,
    }
    if endpoint:
        spec["controlPlaneEndpoint"] = {"port": _API_PORT, **endpoint}
    if definition.addresses:
        spec["vmNetworkConfig"] = dict(definition.addresses)
    spec["cloudConfig"] = {"delivery": node_config.cloud_config_delivery}
    if definition.failure_domains:
        spec["controlPlaneFailureDomains"] = list(definition.failure_domains)
    if definition.images:
        spec["images"] = [dict(image) for image in definition.images]
    if definition.control_plane_backups:
        spec["controlPlaneBackups"] = dict(definition.control_plane_backups)
    if definition.guest_volumes:
        spec["guestVolumes"] = definition.guest_volumes
    return _obj(definition, API_VERSION, "HarvesterCluster", definition.key.name, spec)


def control_plane(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the control plane object of the distribution."""
    template = _machine_template(definition, definition.control_plane)["metadata"]["name"]
    reference = {"kind": "HarvesterMachineTemplate", "name": template}
    machine: Obj = {"spec": {"infrastructureRef": {"apiGroup": GROUP, **reference}}}

    if definition.distribution == "k3s":
        settings = _k3s(definition, node_config)
        # Only this provider names the template by version and not below `spec`.
        machine = {"infrastructureRef": {"apiVersion": API_VERSION, **reference}}
    elif definition.distribution == "rke2":
        settings = _rke2(definition, node_config)
    else:
        settings = _kubeadm(definition, node_config)

    spec = {
        "version": definition.version,
        "replicas": definition.control_plane.replicas,
        **settings,
        "machineTemplate": machine,
    }
    kind = _KINDS[definition.distribution][0]
    name = references(definition)["controlPlaneRef"]["name"]
    return _obj(definition, f"{_CONTROL_PLANE}/v1beta2", kind, name, spec)


def _rke2(definition: Definition, node_config: NodeConfig) -> Obj:
    hardening = definition.hardening
    server = merge({"cni": node_config.cni}, node_config.server_config)
    if hardening.api_server_arguments:
        server["kubeAPIServer"] = {"extraArgs": list(hardening.api_server_arguments)}
    if etcd := etcdsnapshots.rke2_etcd(definition.etcd_snapshots, definition.key):
        server["etcd"] = etcd

    node = _rke2_node(definition, node_config)
    # Only servers read the file, because agents have no API server.
    if hardening.cis_profile:
        node = merge(node, {"agentConfig": {"podSecurityAdmissionConfigFile": POD_SECURITY_FILE}})
    return {
        "registrationMethod": "control-plane-endpoint",
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "serverConfig": server,
        **node,
        **({"files": list(node_config.server_files)} if node_config.server_files else {}),
    }


def _rke2_node(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the fields that servers and agents have in common."""
    hardening = definition.hardening
    arguments = ["cloud-provider=external"] if node_config.external else []
    arguments += hardening.kubelet_arguments
    agent: Obj = {}
    if arguments:
        agent["kubelet"] = {"extraArgs": arguments}
    if hardening.cis_profile:
        agent["cisProfile"] = hardening.cis_profile

    node: Obj = {"agentConfig": agent} if agent else {}
    node |= _commands(definition, "preRKE2Commands")
    if definition.registries:
        node["privateRegistriesConfig"] = dict(definition.registries)
    return node


def _commands(definition: Definition, field: str) -> Obj:
    return {field: list(commands)} if (commands := definition.hardening.commands) else {}


def _k3s(definition: Definition, node_config: NodeConfig) -> Obj:
    # Most settings of the server are in a file, because not all of them have fields.
    files = {"files": list(node_config.server_files)} if node_config.server_files else {}
    server: Obj = {}
    if node_config.without_cloud_controller:
        server = {"disableCloudController": True, "disableComponents": ["servicelb"]}
    return {
        "kthreesConfigSpec": {
            "serverConfig": server,
            **files,
            **_k3s_server_commands(definition),
        }
    }


def _k3s_server_commands(definition: Definition) -> Obj:
    snapshot_commands = etcdsnapshots.k3s_commands(definition.etcd_snapshots)
    commands = [*definition.hardening.commands, *snapshot_commands]
    return {"preK3sCommands": commands} if commands else {}


def _kubeadm(definition: Definition, node_config: NodeConfig) -> Obj:
    registration = _registration(node_config)
    spec: Obj = {
        "format": "cloud-config",
        "initConfiguration": registration,
        "joinConfiguration": registration,
    }
    if node_config.server_files:
        spec["files"] = list(node_config.server_files)

    kube_vip = kubevip.kubeadm_commands(definition.load_balancer)
    if commands := [*definition.hardening.commands, *kube_vip.before]:
        spec["preKubeadmCommands"] = commands
    if kube_vip.after:
        spec["postKubeadmCommands"] = list(kube_vip.after)
    return {"kubeadmConfigSpec": spec}


def _registration(node_config: NodeConfig) -> Obj:
    # cloud-init replaces the expression on each machine.
    registration: Obj = {"name": "{{ ds.meta_data.local_hostname }}"}
    if node_config.external:
        registration["kubeletExtraArgs"] = [{"name": "cloud-provider", "value": "external"}]
    return {"nodeRegistration": registration}


def _bootstrap_template(definition: Definition, pool: Pool, node_config: NodeConfig) -> Obj:
    files = {"files": list(node_config.agent_files)} if node_config.agent_files else {}
    # Each bootstrap provider has fields of its own.
    if definition.distribution == "kubeadm":
        spec: Obj = {
            "format": "cloud-config",
            "joinConfiguration": _registration(node_config),
            **_commands(definition, "preKubeadmCommands"),
        }
    elif definition.distribution == "k3s":
        agent = {"kubeletArgs": ["cloud-provider=external"]} if node_config.external else {}
        spec = {"agentConfig": agent, **files, **_commands(definition, "preK3sCommands")}
    else:
        spec = {**_rke2_node(definition, node_config), **files}

    kind = _KINDS[definition.distribution][1]
    name = f"{definition.key.name}-{pool.name}"
    return _obj(definition, f"{_BOOTSTRAP}/v1beta2", kind, name, {"template": {"spec": spec}})


def _machine_deployment(definition: Definition, pool: Pool, template: Obj) -> Obj:
    """Return the MachineDeployment of a pool of workers, with its machine template."""
    name = f"{definition.key.name}-{pool.name}"
    labels = {DEPLOYMENT_LABEL: name}
    bootstrap = {"apiGroup": _BOOTSTRAP, "kind": _KINDS[definition.distribution][1], "name": name}
    infrastructure = {
        "apiGroup": GROUP,
        "kind": template["kind"],
        "name": template["metadata"]["name"],
    }

    machine = {
        "clusterName": definition.key.name,
        "version": definition.version,
        "bootstrap": {"configRef": bootstrap},
        "infrastructureRef": infrastructure,
        **({"failureDomain": pool.failure_domain} if pool.failure_domain else {}),
    }
    spec = {
        "clusterName": definition.key.name,
        "replicas": pool.replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": machine},
    }
    return _obj(definition, CORE, "MachineDeployment", name, spec)


def _machine_template(definition: Definition, pool: Pool) -> Obj:
    """Return the HarvesterMachineTemplate of a pool, whose name holds a hash of its content."""
    spec: Obj = {
        "cpu": pool.cpu,
        "memory": pool.memory,
        **pool.maxima,
        **pool.host_resources,
        **interfaces_of(pool),
        "sshUser": definition.ssh_user,
        "sshKeyPair": definition.ssh_key_pair,
        "networks": list(definition.networks),
        "volumes": [dict(volume) for volume in pool.volumes],
    }
    if definition.firmware:
        spec["firmware"] = dict(definition.firmware)
    if definition.tpm:
        spec["tpm"] = dict(definition.tpm)
    if definition.guest_config:
        spec["guestConfig"] = dict(definition.guest_config)
    spec |= pool.affinities

    content = orjson.dumps([definition.key.name, pool.name, spec], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]
    name = f"{definition.key.name}-{pool.name}-{digest}"
    template = {"template": {"spec": spec}}
    return _obj(definition, API_VERSION, "HarvesterMachineTemplate", name, template)


def _obj(
    definition: Definition, api_version: str, kind: str, name: str, spec: Mapping[str, Any]
) -> Obj:
    metadata = {"name": name, "namespace": definition.key.namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}
