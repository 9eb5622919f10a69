"""Differences between the providers of Kubernetes distributions: kinds, fields and names. Pure.

The control plane kind of RKE2 follows Cluster API contract v1beta2. The control plane kind of K3s
follows contract v1beta1, in which the infrastructure reference and parts of the status have
different names. So does an older kind of RKE2, for a core that knows only that contract. kubeadm
has no stand-ins, because its real providers run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from caphv.api.object import Obj, Resource, at, dict_at, key_of
from sandbox.guest.rancher import K3S as K3S_PROGRAM
from sandbox.guest.rancher import RKE2 as RKE2_PROGRAM
from sandbox.guest.rancher import Program

_BOOTSTRAP = "bootstrap.cluster.x-k8s.io"
_CONTROL_PLANE = "controlplane.cluster.x-k8s.io"
_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"


@dataclass(frozen=True)
class Distribution:
    """One distribution with its two providers.

    The providers use the name `name`, and guests run `program`.

    Three fields are paths in the spec of a control plane. `config` points to the spec of each
    bootstrap object, which is a list of fields for RKE2 and one object for others. `server` points
    to the settings for servers only, and `rollout` to the rollout strategy.

    `authorities` has the suffix of each Secret with a CA, and the name of the CA's files on the
    first server.

    `hook` is the annotation that delays the deletion of a machine until its etcd member is removed,
    and `hook_value` is the value of this annotation. Machines of RKE2 have it from the beginning.
    Machines of K3s have it only when the provider itself deletes them.
    """

    name: str
    program: Program
    contract: str
    configs: Resource
    control_planes: Resource
    finalizer: str
    config: str | Sequence[str]
    server: Sequence[str]
    rollout: Sequence[str]
    authorities: Mapping[str, str]
    hook: str
    hook_value: str

    @property
    def title(self) -> str:
        """Return the name that users know."""
        return self.program.name

    @property
    def is_k3s(self) -> bool:
        """Return whether these are the providers of K3s."""
        return self.program is K3S_PROGRAM

    @property
    def server_annotation(self) -> str:
        """Return the annotation that records the server settings when a Machine is created."""
        return f"{_CONTROL_PLANE}/{self.name}-server-configuration"

    def config_spec(self, control_plane: Obj) -> Obj:
        """Return the spec of each machine's bootstrap object."""
        spec = control_plane["spec"]
        if isinstance(self.config, str):
            return dict(spec.get(self.config) or {})
        return {name: spec[name] for name in self.config if name in spec}

    def server_spec(self, control_plane: Obj) -> Obj:
        """Return the settings in a control plane's spec for servers only."""
        return dict(dict_at(control_plane, "spec", *self.server))

    def template_name(self, control_plane: Obj) -> str:
        """Return the name of the machines' infrastructure template."""
        template = at(control_plane, "spec", "machineTemplate")
        parent = template if self.contract == "v1beta1" else at(template, "spec")
        return str(at(parent, "infrastructureRef", "name"))

    def max_surge(self, control_plane: Obj) -> int:
        """Return the number of extra machines during a rollout: 0 or 1."""
        # 1 is the default of the providers.
        surge = at(control_plane, "spec", *self.rollout, "rollingUpdate", "maxSurge")
        return 1 if surge is None else min(int(surge), 1)

    def control_plane_label(self, control_plane: Obj) -> str:
        """Return the label `control-plane-name` of a machine; CAPK3s leaves it empty."""
        return "" if self.is_k3s else key_of(control_plane).name


RKE2 = Distribution(
    name="rke2",
    program=RKE2_PROGRAM,
    contract="v1beta2",
    configs=Resource(_BOOTSTRAP, "v1beta2", "rke2configs", "RKE2Config"),
    control_planes=Resource(_CONTROL_PLANE, "v1beta2", "rke2controlplanes", "RKE2ControlPlane"),
    finalizer=f"rke2.{_CONTROL_PLANE}",
    config=(
        "agentConfig",
        "files",
        "gzipUserData",
        "postRKE2Commands",
        "preRKE2Commands",
        "privateRegistriesConfig",
    ),
    server=("serverConfig",),
    rollout=("rolloutStrategy",),
    authorities={"ca": "server", "cca": "client", "peer-etcd": "etcd/peer", "etcd": "etcd/server"},
    hook=f"{_HOOK}/rke2-cleanup",
    hook_value="",
)
K3S = Distribution(
    name="kthrees",
    program=K3S_PROGRAM,
    contract="v1beta1",
    configs=Resource(_BOOTSTRAP, "v1beta2", "kthreesconfigs", "KThreesConfig"),
    control_planes=Resource(
        _CONTROL_PLANE, "v1beta2", "kthreescontrolplanes", "KThreesControlPlane"
    ),
    finalizer=f"kthrees.{_CONTROL_PLANE}",
    config="kthreesConfigSpec",
    server=("kthreesConfigSpec", "serverConfig"),
    rollout=(),
    authorities={"ca": "server", "cca": "client", "etcd": "etcd/server"},
    hook=_HOOK,
    hook_value="k3s",
)
ALL = (RKE2, K3S)
_RKE2_OF_V1BETA1 = replace(
    RKE2,
    contract="v1beta1",
    configs=replace(RKE2.configs, version="v1beta1"),
    control_planes=replace(RKE2.control_planes, version="v1beta1"),
)


def distributions_for(core: str) -> tuple[Distribution, ...]:
    """Return the distributions for a core of this API version."""
    return ALL if core == "v1beta2" else (_RKE2_OF_V1BETA1, K3S)
