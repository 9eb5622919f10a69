"""A Cluster that uses a ClusterClass: all else follows from its topology. Variables are those of the shipped ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caphv.api.object import Obj
from packager.addons.merge import at
from packager.definitions.model import Definition, Pool
from packager.definitions.nodeconfig import NodeConfig

_WORKER_CLASS = "default-worker"
# The one MachineHealthCheck of the cluster takes the place of those that the class makes for each group of machines.
_NO_HEALTH_CHECK = {"enabled": False}


def topology(definition: Definition, boot: NodeConfig) -> Obj:
    """Return `spec.topology` of the Cluster."""
    return {
        "classRef": {"name": definition.cluster_class},
        "version": definition.version,
        "controlPlane": {
            "replicas": definition.control_plane.replicas,
            "healthCheck": _NO_HEALTH_CHECK,
            **({"variables": {"overrides": _as_list(own)}} if (own := definition.control_plane.affinities) else {}),
        },
        "workers": {"machineDeployments": [_workers(pool) for pool in definition.workers]},
        "variables": _as_list(_variables(definition, boot)),
    }


# Variables that the classes of 0.11 lack.
_NEW = frozenset(
    ("guestConfig", "nodeAffinity", "workloadAffinity", "registries", "cisProfile", "stig", "fipsRequired")
)


def needs_current_class(cluster: Obj) -> bool:
    """Whether a Cluster sets variables that the shipped ClusterClasses of 0.11 lack."""
    topology = at(cluster, "spec", "topology")
    if topology is None:
        return False
    parts = (topology["controlPlane"], *topology["workers"]["machineDeployments"])
    overrides = [row for part in parts for row in part.get("variables", {}).get("overrides", ())]
    return any(row["name"] in _NEW for row in (*topology["variables"], *overrides))


def _workers(pool: Pool) -> Obj:
    return {
        "class": _WORKER_CLASS,
        "name": pool.name,
        "replicas": pool.replicas,
        "healthCheck": _NO_HEALTH_CHECK,
        **({"failureDomain": pool.failure_domain} if pool.failure_domain else {}),
        "variables": {"overrides": _as_list({"worker": _sizes(pool), **pool.affinities})},
    }


def _variables(definition: Definition, boot: NodeConfig) -> Obj:
    addresses, firmware, tpm = definition.addresses, definition.firmware, definition.tpm
    return {
        "identitySecretName": definition.identity_secret,
        "targetNamespace": definition.target_namespace,
        "cloudConfigDelivery": boot.cloud_config_delivery,
        "loadBalancer": dict(definition.load_balancer),
        "vmNetworks": list(definition.networks),
        "sshUser": definition.ssh_user,
        "sshKeyPair": definition.ssh_key_pair,
        "controlPlane": _sizes(definition.control_plane),
        **({"firmware": dict(firmware)} if firmware else {}),
        **({"tpm": dict(tpm)} if tpm else {}),
        **({"guestConfig": dict(definition.guest_config)} if definition.guest_config else {}),
        **({"failureDomains": list(definition.failure_domains)} if definition.failure_domains else {}),
        **({"registries": dict(definition.registries)} if definition.registries else {}),
        **definition.hardening.variables,
        **addresses,
        **_cni(definition, boot),
        **({"controlPlaneFiles": list(boot.server_files)} if boot.server_files else {}),
        **({"workerFiles": list(boot.agent_files)} if boot.agent_files else {}),
    }


def _cni(definition: Definition, boot: NodeConfig) -> Obj:
    """Return the variable for what the distribution installs by itself: kubeadm nothing, K3s Flannel or nothing."""
    if definition.distribution == "kubeadm":
        return {}
    if definition.distribution == "k3s":
        return {"cni": "flannel" if boot.cni == "none" else "none"}
    return {"cni": boot.cni}


def _sizes(pool: Pool) -> Obj:
    return {"cpuCount": pool.cpu, "memorySize": pool.memory, "volumes": [dict(volume) for volume in pool.volumes]}


def _as_list(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]
