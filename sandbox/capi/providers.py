"""Real bootstrap and control plane providers, as processes.

They are the providers of kubeadm, of the same release as the core.
"""

from __future__ import annotations

from sandbox import manifests
from sandbox.capi import core
from sandbox.capi.crds import KUBEADM
from sandbox.capi.manager import Manager, Ports, read_config, usual_options
from sandbox.processes.binaries import binary, cluster_api_manifests
from sandbox.processes.clusterapi import KUBEADM as KUBEADM_RECIPES
from sandbox.state import SandboxSettings

_CONTRACTS = {
    "cluster.x-k8s.io/v1beta1": "v1beta1",
    "cluster.x-k8s.io/v1beta2": "v1beta2",
    manifests.MOVE_LABEL: "",
}
_ROLES = {
    "kubeadm-bootstrap": "bootstrap-kubeadm",
    "kubeadm-control-plane": "control-plane-kubeadm",
}
# The names of the providers' processes.
NAMES = tuple(_ROLES)


def kubeadm_programs() -> list[str]:
    """Return the names of the programs for the core that runs.

    The list is empty for a core whose API version kubeadm's class does not have.
    """
    names = [core.program().replace("cluster-api-core", role) for role in _ROLES]
    return [name for name in names if name in KUBEADM_RECIPES]


def real_distributions(settings: SandboxSettings) -> list[str]:
    """Return the distributions whose real providers a sandbox runs."""
    by_user = KUBEADM in settings.own_providers.split(",")
    return [KUBEADM] if settings.kubeadm and kubeadm_programs() and not by_user else []


def programs(settings: SandboxSettings) -> list[str]:
    """Return the names of the programs of real providers that a sandbox runs."""
    return kubeadm_programs() if KUBEADM in real_distributions(settings) else []


def managers(settings: SandboxSettings) -> list[Manager]:
    """Return the real providers that a sandbox runs, ready to be started."""
    return _kubeadm() if KUBEADM in real_distributions(settings) else []


def _kubeadm() -> list[Manager]:
    """Return kubeadm's providers, with CRDs and webhooks from the core's Go module."""
    return [
        Manager(
            name=role,
            namespace=f"capi-{role}-system",
            program=binary(program),
            objects=read_config(cluster_api_manifests(program=program)),
            options=_options,
            prefix=f"capi-{role}-",
            labels={**_CONTRACTS, "cluster.x-k8s.io/provider": label},
        )
        for (role, label), program in zip(_ROLES.items(), kubeadm_programs(), strict=True)
    ]


def _options(ports: Ports) -> list[str]:
    # Without this feature gate, the webhooks refuse templates of ClusterClasses.
    return [*usual_options(ports), core.feature_gates()]
