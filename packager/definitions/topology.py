"""The topology of a Cluster that uses a ClusterClass, from which all other objects follow.

The variables are defined by the shipped ClusterClasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caphv.api.object import Obj
from packager.definitions.model import Definition, Pool, interfaces_of
from packager.definitions.nodeconfig import NodeConfig

_WORKER_CLASS = "default-worker"
# One MachineHealthCheck for the cluster replaces the health checks that the class creates for each
# group of machines.
_NO_HEALTH_CHECK = {"enabled": False}


def topology(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return `spec.topology` of the Cluster."""
    control_plane: Obj = {
        "replicas": definition.control_plane.replicas,
        "healthCheck": _NO_HEALTH_CHECK,
    }
    if affinities := definition.control_plane.affinities:
        control_plane["variables"] = {"overrides": _as_list(affinities)}
    return {
        "classRef": {"name": definition.cluster_class},
        "version": definition.version,
        "controlPlane": control_plane,
        "workers": {"machineDeployments": [_workers(pool) for pool in definition.workers]},
        "variables": _as_list(_variables(definition, node_config)),
    }


def _workers(pool: Pool) -> Obj:
    return {
        "class": _WORKER_CLASS,
        "name": pool.name,
        "replicas": pool.replicas,
        "healthCheck": _NO_HEALTH_CHECK,
        **({"failureDomain": pool.failure_domain} if pool.failure_domain else {}),
        "variables": {"overrides": _as_list({"worker": _sizes(pool), **pool.affinities})},
    }


def _variables(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the variables by name. Variables without a value are left to the ClusterClass."""
    variables: Obj = {
        "targetNamespace": definition.target_namespace,
        "cloudConfigDelivery": node_config.cloud_config_delivery,
        "loadBalancer": dict(definition.load_balancer),
        "vmNetworks": list(definition.networks),
        "sshUser": definition.ssh_user,
        "sshKeyPair": definition.ssh_key_pair,
        "controlPlane": _sizes(definition.control_plane),
    }
    # An empty value would override the default of the class.
    optional: Obj = {
        "identitySecretName": definition.identity_secret,
        "clusterIdentityName": definition.cluster_identity,
        "firmware": dict(definition.firmware),
        "tpm": dict(definition.tpm),
        "guestConfig": dict(definition.guest_config),
        "failureDomains": list(definition.failure_domains),
        "controlPlaneBackups": dict(definition.control_plane_backups),
        "guestVolumes": definition.guest_volumes,
        "images": [dict(image) for image in definition.images],
        "registries": dict(definition.registries),
        "etcdSnapshots": dict(definition.etcd_snapshots),
    }
    variables |= {name: value for name, value in optional.items() if value}

    variables |= definition.hardening.variables
    variables |= definition.addresses
    variables |= _cni(definition, node_config)
    if node_config.server_files:
        variables["controlPlaneFiles"] = list(node_config.server_files)
    if node_config.agent_files:
        variables["workerFiles"] = list(node_config.agent_files)
    return variables


def _cni(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the variable for the CNI that the distribution installs by itself, if any."""
    if definition.distribution == "kubeadm":
        return {}
    # K3s itself installs only flannel. Any other CNI comes with the bundles.
    if definition.distribution == "k3s":
        return {"cni": "flannel" if node_config.cni == "none" else "none"}
    return {"cni": node_config.cni}


def _sizes(pool: Pool) -> Obj:
    return {
        "cpuCount": pool.cpu,
        "memorySize": pool.memory,
        **pool.maxima,
        **pool.host_resources,
        **interfaces_of(pool),
        "volumes": [dict(volume) for volume in pool.volumes],
    }


def _as_list(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]
