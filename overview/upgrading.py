"""How to upgrade the Kubernetes of a cluster: what to patch, what prevents it, and how far it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caphv.api import remedies
from caphv.api.object import Obj
from overview.changes import Change, ChangeError, Patch, Plan, patch_of
from overview.diagnosis import Parts
from overview.doctor.model import Check, Result, ok
from overview.model import Cluster
from overview.preflight import general, health, surge_of

_FORM = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(?:\+(rke2r|k3s)([1-9]\d*))?")
# The suffix of versions by the kind of control plane; a control plane of another kind takes any.
_DISTRIBUTIONS = {
    "RKE2ControlPlane": ("rke2r", "RKE2"),
    "KThreesControlPlane": ("k3s", "K3s"),
    "KubeadmControlPlane": ("", "kubeadm"),
    "TalosControlPlane": ("", "Talos"),
}
# A kubelet may be up to three minor versions older than its API server: https://kubernetes.io/releases/version-skew-policy/
_SKEW = 3


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of Kubernetes, in the order of releases."""

    major: int
    minor: int
    patch: int
    final: bool
    """Whether it is no pre-release."""
    stage: str
    distribution: str
    release: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Read a version such as `v1.36.3+rke2r1`; None for what is none."""
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        major, minor, patch, stage, distribution, release = match.groups()
        return cls(
            int(major), int(minor), int(patch), stage is None, stage or "", distribution or "", int(release or 0)
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How many machines have the wanted version and work."""

    done: int
    total: int
    complete: bool

    def __str__(self) -> str:
        return f"{self.done} of {self.total} machines"


def plan_upgrade(parts: Parts, deployments: Iterable[Obj], cluster: Cluster, wanted: str) -> Plan:
    """Return what has to change next; without a topology, workers follow once the control plane has the version.

    Raises `ChangeError` when the version cannot be one of this cluster.
    """
    version, kind = Version.parse(wanted), str((parts.control_plane or {}).get("kind") or "")
    if version is None:
        raise ChangeError([f"--version {wanted}: not a version of Kubernetes; write it like {_example(kind)}"])
    suffix, name = _DISTRIBUTIONS.get(kind, (version.distribution, ""))
    if version.distribution != suffix:
        raise ChangeError([f"--version {wanted}: cluster {parts.key} runs {name}; write it like {_example(kind)}"])
    patches, later = _patches(parts, deployments, cluster, wanted)
    checks = [*general(parts), *_skew(parts, cluster, wanted, version)]
    if patches:
        checks += health(cluster)
    pending = tuple(change for patch in later for change in patch.changes)
    return Plan(parts.key, tuple(patches), tuple(checks), pending)


def surge(parts: Parts, deployments: Iterable[Obj]) -> int:
    """Return the largest number of machines that exist in addition at a time."""
    spec = (parts.control_plane or {}).get("spec") or {}
    strategy = spec.get("rolloutStrategy") or (spec.get("rollout") or {}).get("strategy") or {}
    found = [surge_of(int(spec.get("replicas") or 1), (strategy.get("rollingUpdate") or {}).get("maxSurge"))]
    for deployment in deployments:
        spec = deployment.get("spec") or {}
        strategy = spec.get("strategy") or (spec.get("rollout") or {}).get("strategy") or {}
        value = (strategy.get("rollingUpdate") or {}).get("maxSurge")
        found.append(surge_of(int(spec.get("replicas") or 0), value))
    return max(found)


def progress(parts: Parts, cluster: Cluster, wanted: str) -> Progress:
    """Return how far an upgrade is: done machines have the version, a working Node, and no successor."""
    machines = [machine for machine in cluster.machines if not machine.deleting]
    done = sum(machine.version == wanted and machine.ready for machine in machines)
    replicas = (cluster.control_plane, cluster.workers)
    settled = all(each.complete for each in replicas) and len(machines) == len(cluster.machines)
    reconciled = _condition(parts.cluster, "TopologyReconciled") in ("", "True")
    total = sum(each.desired for each in replicas)
    return Progress(done, max(total, len(machines)), settled and reconciled and done == len(machines) == total)


def _patches(
    parts: Parts, deployments: Iterable[Obj], cluster: Cluster, wanted: str
) -> tuple[list[Patch], list[Patch]]:
    """Patches to make now, and those that have to wait: kubelets must not be newer than their API server."""
    topology = parts.cluster["spec"].get("topology")
    if topology is not None:
        before = str(topology.get("version") or "")
        change = Change(f"Cluster {parts.key}", "spec.topology.version", before, wanted)
        patch = patch_of(parts.cluster, {"spec": {"topology": {"version": wanted}}}, [change])
        return [patch] if before != wanted else [], []
    workers = list(_worker_patches(deployments, wanted))
    control_plane = parts.control_plane
    before = str(((control_plane or {}).get("spec") or {}).get("version") or "")
    if control_plane is not None and before != wanted:
        change = Change(_name(control_plane), "spec.version", before, wanted)
        return [patch_of(control_plane, {"spec": {"version": wanted}}, [change])], workers
    return (workers, []) if control_plane_done(cluster, wanted) else ([], workers)


def _worker_patches(deployments: Iterable[Obj], wanted: str) -> Iterator[Patch]:
    for obj in deployments:
        before = str(((obj["spec"].get("template") or {}).get("spec") or {}).get("version") or "")
        if before != wanted:
            change = Change(_name(obj), "spec.template.spec.version", before, wanted)
            yield patch_of(obj, {"spec": {"template": {"spec": {"version": wanted}}}}, [change])


def control_plane_done(cluster: Cluster, wanted: str) -> bool:
    """Whether all control plane machines have a version and work."""
    machines = [machine for machine in cluster.machines if machine.control_plane]
    return cluster.control_plane.complete and all(
        machine.version == wanted and machine.ready and not machine.deleting for machine in machines
    )


def _skew(parts: Parts, cluster: Cluster, wanted: str, version: Version) -> Iterator[Check]:
    subject, current = f"Cluster {parts.key}", Version.parse(cluster.version)
    machines = [found for text in cluster.versions if (found := Version.parse(text))]
    oldest = min(machines, default=current)
    if current is None or oldest is None:
        return
    if version < current:
        message = f"{wanted} is older than {cluster.version}: etcd and API objects cannot be downgraded"
        yield Check("version", subject, Result.ERROR, message, "Restore a backup instead, or choose a later version")
        return
    if version.minor > current.minor + 1 or version.major != current.major:
        message = f"from {cluster.version} to {wanted} skips a minor version"
        remedy = f"Upgrade to the latest v{current.major}.{current.minor + 1} first"
        yield Check("version", subject, Result.ERROR, message, remedy)
        return
    if version.minor - oldest.minor > _SKEW:
        message = f"machines of {cluster.versions[0]} are more than {_SKEW} minor versions older than {wanted}"
        yield Check(
            "version", subject, Result.ERROR, message, f"Upgrade these machines first: {remedies.TREE(ref=parts.key)}"
        )
        return
    if len(cluster.versions) > 1 and cluster.version != wanted:
        message = f"machines have different versions ({', '.join(cluster.versions)}): an upgrade is under way"
        remedy = f"Wait for it: {remedies.WAIT_FOR_UPGRADE(ref=parts.key, version=cluster.version)}"
        yield Check("version", subject, Result.ERROR, message, remedy)
        return
    yield ok("version", subject, f"{wanted} may follow {cluster.version}")


def _example(kind: str) -> str:
    suffix = {"RKE2ControlPlane": "+rke2r1", "KThreesControlPlane": "+k3s1"}.get(kind, "")
    return f"v1.36.3{suffix}"


def _name(obj: Obj) -> str:
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _condition(obj: Obj, kind: str) -> str:
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((str(each.get("status")) for each in found if each.get("type") == kind), "")
