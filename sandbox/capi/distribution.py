"""Differences between the providers of Kubernetes distributions: kinds, fields and names. Pure.

The control plane kind of RKE2 follows Cluster API contract v1beta2. That of K3s follows v1beta1, in which the
infrastructure reference and parts of the status have different names, and so does an older one of RKE2, for a core that
knows only that contract. kubeadm has no stand-ins: its real providers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from caphv.api.object import Obj, Resource

_BOOTSTRAP, _CONTROL_PLANE = "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"
_RKE2_REGISTRATION_PORT = 9345

# Renders the content of a distribution's configuration file in a guest.
Configuration = Callable[["Node"], Obj]


@dataclass(frozen=True)
class Node:
    """The node of a guest. `config` is the spec of its bootstrap object; `server` is None for a worker.

    `endpoint` is `host:port` of the workload API.
    """

    endpoint: str
    config: Obj = field(default_factory=dict, repr=False)
    server: Obj | None = None
    token: str = field(default="", repr=False)

    @property
    def host(self) -> str:
        """The endpoint without its port."""
        return self.endpoint.rpartition(":")[0]


@dataclass(frozen=True)
class Distribution:
    """One distribution with its two providers; `name` is the one the providers use.

    Paths in the spec of a control plane: `config`, the spec of each bootstrap object (for RKE2 a list of fields, for
    others one object); `server`, settings for servers only; `cert_sans` in it, additional names of the API server;
    `rollout`, the rollout strategy. `commands` are the fields of a bootstrap object with commands to run before and
    after the start. `hook` delays the deletion of a machine until its etcd member is removed; `remediated_at` is the
    field with the time of the last remediation. `file` is the distribution's configuration file in a guest,
    `configuration` renders it. Nodes join at `registration_port`, by default the API server's port.
    """

    name: str
    contract: str
    configs: Resource
    control_planes: Resource
    finalizer: str
    hook: str
    config: str | Sequence[str]
    server: Sequence[str]
    rollout: Sequence[str]
    commands: tuple[str, str]
    cert_sans: Sequence[str]
    remediated_at: str
    file: str
    configuration: Configuration
    registration_port: int | None = None

    @property
    def title(self) -> str:
        """The name that users know."""
        return "k3s" if self.name == "kthrees" else self.name

    @property
    def server_annotation(self) -> str:
        """Annotation of a Machine with the server settings it was created with."""
        return f"{_CONTROL_PLANE}/{self.name}-server-configuration"

    def config_spec(self, control_plane: Obj) -> Obj:
        """Spec of each machine's bootstrap object."""
        spec = control_plane["spec"]
        if isinstance(self.config, str):
            return dict(spec.get(self.config) or {})
        return {name: spec[name] for name in self.config if name in spec}

    def server_spec(self, control_plane: Obj) -> Obj:
        """The settings in a control plane's spec for servers only."""
        return dict(_below(control_plane["spec"], self.server) or {})

    def template_name(self, control_plane: Obj) -> str:
        """Name of the machines' infrastructure template."""
        inner = () if self.contract == "v1beta1" else ("spec",)
        return str(_below(control_plane["spec"], ("machineTemplate", *inner, "infrastructureRef", "name")))

    def max_surge(self, control_plane: Obj) -> int:
        """Number of extra machines during a rollout: 0 or 1."""
        wanted = _below(control_plane["spec"], (*self.rollout, "rollingUpdate", "maxSurge"))
        return 1 if wanted is None else min(int(wanted), 1)

    def joins_at(self, node: Node) -> str:
        """URL where a worker joins."""
        return f"https://{node.endpoint if self.registration_port is None else f'{node.host}:{self.registration_port}'}"

    def sans(self, server: Obj) -> list[str]:
        """Additional names of the API server."""
        return list(_below(server, self.cert_sans) or ())

    def has_cni(self, node: Node) -> bool:
        """Whether the guest has a CNI: from its distribution, or else from an add-on that the sandbox assumes."""
        if (node.server or {}).get("cni") == "none":
            return False
        extra = [entry for entry in node.config.get("files") or () if str(entry["path"]).startswith(f"{self.file}.d/")]
        return not any(_no_flannel(entry.get("content") or "") for entry in extra)


def _rke2(node: Node) -> Obj:
    agent, server = node.config.get("agentConfig") or {}, node.server or {}
    disabled = server.get("disableComponents") or {}
    return {
        "server": f"https://{node.host}:{_RKE2_REGISTRATION_PORT}",
        "token": node.token,
        "kubelet-arg": (agent.get("kubelet") or {}).get("extraArgs"),
        "node-label": agent.get("nodeLabels"),
        "node-taint": agent.get("nodeTaints"),
        "cni": server.get("cni"),
        "cloud-provider-name": server.get("cloudProviderName"),
        "disable-cloud-controller": "cloudController" in (disabled.get("kubernetesComponents") or ()),
        "disable": disabled.get("pluginComponents"),
        "tls-san": [node.host, *(server.get("tlsSan") or ())] if node.server is not None else None,
        "profile": agent.get("cisProfile"),
        "pod-security-admission-config-file": agent.get("podSecurityAdmissionConfigFile"),
        "system-default-registry": agent.get("systemDefaultRegistry"),
        "kube-apiserver-arg": (server.get("kubeAPIServer") or {}).get("extraArgs"),
    }


def _k3s(node: Node) -> Obj:
    agent, server = node.config.get("agentConfig") or {}, node.server or {}
    return {
        "server": f"https://{node.endpoint}",
        "token": node.token,
        "kubelet-arg": agent.get("kubeletArgs"),
        "node-label": agent.get("nodeLabels"),
        "node-taint": agent.get("nodeTaints"),
        "disable-cloud-controller": server.get("disableCloudController"),
        "disable": server.get("disableComponents"),
        "tls-san": [node.host, *(server.get("tlsSan") or ())] if node.server is not None else None,
    }


RKE2 = Distribution(
    name="rke2",
    contract="v1beta2",
    configs=Resource(_BOOTSTRAP, "v1beta2", "rke2configs", "RKE2Config"),
    control_planes=Resource(_CONTROL_PLANE, "v1beta2", "rke2controlplanes", "RKE2ControlPlane"),
    finalizer=f"rke2.{_CONTROL_PLANE}",
    hook=f"{_HOOK}/rke2-cleanup",
    config=("agentConfig", "files", "postRKE2Commands", "preRKE2Commands", "privateRegistriesConfig"),
    server=("serverConfig",),
    rollout=("rolloutStrategy",),
    commands=("preRKE2Commands", "postRKE2Commands"),
    cert_sans=("tlsSan",),
    remediated_at="timestamp",
    file="/etc/rancher/rke2/config.yaml",
    configuration=_rke2,
    registration_port=_RKE2_REGISTRATION_PORT,
)
K3S = Distribution(
    name="kthrees",
    contract="v1beta1",
    configs=Resource(_BOOTSTRAP, "v1beta2", "kthreesconfigs", "KThreesConfig"),
    control_planes=Resource(_CONTROL_PLANE, "v1beta2", "kthreescontrolplanes", "KThreesControlPlane"),
    finalizer=f"kthrees.{_CONTROL_PLANE}",
    hook=f"{_HOOK}/kthrees-cleanup",
    config="kthreesConfigSpec",
    server=("kthreesConfigSpec", "serverConfig"),
    rollout=(),
    commands=("preK3sCommands", "postK3sCommands"),
    cert_sans=("tlsSan",),
    remediated_at="timestamp",
    file="/etc/rancher/k3s/config.yaml",
    configuration=_k3s,
)
ALL = (RKE2, K3S)
_RKE2_OF_V1BETA1 = replace(
    RKE2,
    contract="v1beta1",
    configs=replace(RKE2.configs, version="v1beta1"),
    control_planes=replace(RKE2.control_planes, version="v1beta1"),
)


def in_version(core: str) -> tuple[Distribution, ...]:
    """The distributions for a core of this API version."""
    return ALL if core == "v1beta2" else (_RKE2_OF_V1BETA1, K3S)


def _below(node: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(node, Mapping):
            return None
        node = node.get(name)
    return node


def _no_flannel(content: str) -> bool:
    found = yaml.safe_load(content)
    return isinstance(found, dict) and found.get("flannel-backend") == "none"
