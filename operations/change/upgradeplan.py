"""Plan an upgrade of a cluster's Kubernetes, check it, and measure its progress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api import remedies
from caphv.api.bootimage import PENDING_IMPORTS, qualified
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, at, dict_at, list_at, text_at
from operations.capacity.machinepools import strategy_of
from operations.capacity.preflight import (
    check_controllers,
    check_health,
    devices_of_machines,
    surge_of,
)
from operations.capacity.requirements import imports_of, looked_up
from operations.change.changes import Change, ChangeError, Patch, Plan, patch_of
from operations.change.scaling import servers_of, workers_of
from operations.read.objects import condition_of
from operations.status.check import Check, Result, ok
from operations.status.model import Cluster
from operations.status.parts import Parts, is_of_rancher

_FORM = re.compile(
    r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(?:\+(rke2r|k3s)([1-9]\d*))?"
)
# The suffix of versions by the kind of control plane. A control plane of another kind takes any
# suffix.
_DISTRIBUTIONS = {
    "RKE2ControlPlane": ("rke2r", "RKE2"),
    "KThreesControlPlane": ("k3s", "K3s"),
    "KubeadmControlPlane": ("", "kubeadm"),
    "TalosControlPlane": ("", "Talos"),
}
# A kubelet may be up to three minor versions older than its API server:
# https://kubernetes.io/releases/version-skew-policy/
_SKEW = 3


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of Kubernetes, in the order of releases."""

    major: int
    minor: int
    patch: int
    final: bool
    """Whether it is a release, not a pre-release."""
    stage: str
    distribution: str
    release: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Parse a version such as `v1.36.3+rke2r1`; return None for an invalid text."""
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        major, minor, patch, stage, distribution, release = match.groups()
        return cls(
            int(major),
            int(minor),
            int(patch),
            stage is None,
            stage or "",
            distribution or "",
            int(release or 0),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of machines that have the target version and work."""

    done: int
    total: int
    complete: bool

    def __str__(self) -> str:
        return f"{self.done} of {self.total} machines"


class _Surge(NamedTuple):
    """The number of machines that a rollout adds at a time, and HarvesterMachines like them."""

    number: int
    machines: list[Obj]


class _Patches(NamedTuple):
    """The patches to make now, and the patches that must wait."""

    due: list[Patch]
    later: Sequence[Patch] = ()


def plan_upgrade(parts: Parts, deployments: Iterable[Obj], cluster: Cluster, target: str) -> Plan:
    """Return the next patches; without a topology, workers follow their control plane.

    Raises `ChangeError` if this cluster cannot have such a version.

    :param parts: the objects of the cluster
    :param deployments: its MachineDeployments
    :param cluster: its model
    :param target: the version
    """
    if is_of_rancher(parts):
        problem = (
            f"Rancher upgrades cluster {parts.key}: change kubernetesVersion of "
            f"clusters.provisioning.cattle.io {parts.key.name}"
        )
        raise ChangeError([problem])

    version = Version.parse(target)
    kind = text_at(parts.control_plane, "kind")
    if version is None:
        problem = f"not a version of Kubernetes; write it like {_example(kind)}"
        raise ChangeError([f"--version {target}: {problem}"])
    suffix, name = _DISTRIBUTIONS.get(kind, (version.distribution, ""))
    if version.distribution != suffix:
        problem = f"cluster {parts.key} runs {name}; write it like {_example(kind)}"
        raise ChangeError([f"--version {target}: {problem}"])

    rollout = _patches(parts, deployments, cluster, target)
    checks = [*check_controllers(parts), *_check_skew(parts, cluster, target, version)]
    if rollout.due:
        checks += [*check_health(cluster), *_check_images(parts, target), *_check_backups(parts)]
    pending = tuple(change for patch in rollout.later for change in patch.changes)
    return Plan(parts.key, tuple(rollout.due), tuple(checks), pending)


def surge(parts: Parts, deployments: Iterable[Obj]) -> int:
    """Return the largest number of machines that a rollout adds at a time."""
    return max(surge.number for surge in _surges(parts, deployments))


def surging_devices(parts: Parts, deployments: Iterable[Obj]) -> list[list[Counter[str]]]:
    """Return the devices of the machines that the rollout of each pool adds at a time."""
    surges = _surges(parts, deployments)
    return [devices_of_machines(surge.machines, surge.number) for surge in surges]


def _surges(parts: Parts, deployments: Iterable[Obj]) -> Iterator[_Surge]:
    """Yield the surge of the control plane, and of each MachineDeployment."""
    spec = dict_at(parts.control_plane, "spec")
    value = at(strategy_of(spec), "rollingUpdate", "maxSurge")
    yield _Surge(surge_of(int(spec.get("replicas") or 1), value), servers_of(parts))

    for deployment in deployments:
        spec = deployment.get("spec") or {}
        value = at(strategy_of(spec), "rollingUpdate", "maxSurge")
        number = surge_of(int(spec.get("replicas") or 0), value)
        yield _Surge(number, workers_of(parts, deployment))


def progress(parts: Parts, cluster: Cluster, target: str) -> Progress:
    """Return the progress of an upgrade.

    A machine is done when it has the version, a working Node, and no successor.
    """
    machines = [machine for machine in cluster.machines if not machine.deleting]
    done = sum(machine.version == target and machine.ready for machine in machines)

    # A hosted control plane has replicas, but no Machines.
    has_servers = any(machine.control_plane for machine in cluster.machines)
    is_hosted = parts.sees_machines and not has_servers
    total = cluster.workers.desired + (0 if is_hosted else cluster.control_plane.desired)

    # A rollout is not complete before its old machines are deleted.
    replicas = (cluster.control_plane, cluster.workers)
    settled = all(part.complete for part in replicas) and len(machines) == len(cluster.machines)
    topology = condition_of(parts.cluster, "TopologyReconciled").get("status")
    reconciled = topology in (None, "True")
    complete = settled and reconciled and done == len(machines) == total
    return Progress(done, max(total, len(machines)), complete)


def _patches(parts: Parts, deployments: Iterable[Obj], cluster: Cluster, target: str) -> _Patches:
    """Return the patches of an upgrade.

    Workers wait, because kubelets must not be newer than their API server.

    :param parts: the objects of the cluster
    :param deployments: its MachineDeployments
    :param cluster: its model
    :param target: the version
    """
    topology = at(parts.cluster, "spec", "topology")
    if topology:
        before = text_at(topology, "version")
        change = Change(f"Cluster {parts.key}", "spec.topology.version", before, target)
        patch = patch_of(parts.cluster, {"spec": {"topology": {"version": target}}}, [change])
        return _Patches([patch] if before != target else [])

    # Without a topology, only this command keeps the order.
    workers = list(_worker_patches(deployments, target))
    control_plane = parts.control_plane
    before = text_at(control_plane, "spec", "version")
    if control_plane is not None and before != target:
        change = Change(_name(control_plane), "spec.version", before, target)
        patch = patch_of(control_plane, {"spec": {"version": target}}, [change])
        return _Patches([patch], workers)
    if is_control_plane_upgraded(cluster, target):
        return _Patches(workers)
    return _Patches([], workers)


def _worker_patches(deployments: Iterable[Obj], target: str) -> Iterator[Patch]:
    for obj in deployments:
        before = text_at(obj, "spec", "template", "spec", "version")
        if before != target:
            change = Change(_name(obj), "spec.template.spec.version", before, target)
            yield patch_of(obj, {"spec": {"template": {"spec": {"version": target}}}}, [change])


def is_control_plane_upgraded(cluster: Cluster, target: str) -> bool:
    """Whether all control plane machines have a version and work."""
    machines = [machine for machine in cluster.machines if machine.control_plane]
    return cluster.control_plane.complete and all(
        machine.version == target and machine.ready and not machine.deleting for machine in machines
    )


def _check_images(parts: Parts, target: str) -> Iterator[Check]:
    """Check that declared images for the version are imported: a rollout would stop without them.

    Images that no HarvesterCluster declares are not known here; `caphv plan` asks Harvester.
    """
    needed = _declared_images(parts, target)
    if not needed:
        return

    subject = f"Cluster {parts.key}"
    named = ", ".join(sorted(needed))
    condition = condition_of(parts.harvester_cluster, ConditionType.IMAGES_READY)
    status = condition.get("status")
    message = text_at(condition, "message")
    generation = at(parts.harvester_cluster, "metadata", "generation") or 0
    is_current = (condition.get("observedGeneration") or 0) >= generation
    if status == "True" and is_current:
        yield ok("images", subject, f"imported: {named}")
    elif status != "False" or not is_current:
        remedy = "Wait until condition ImagesReady tells, or new machines may have to wait"
        message = f"it is not known yet whether Harvester has imported {named}"
        yield Check("images", subject, Result.WARNING, message=message, remedy=remedy)
    elif concerned := [image for image in needed if _has_failed(image, condition)]:
        remedy = "Correct it first: new machines would get no VM"
        detail = f"{', '.join(sorted(concerned))} cannot be imported: {message}"
        yield Check("images", subject, Result.ERROR, message=detail, remedy=remedy)
    elif " more" in message or any(_part_about(image, message) for image in needed):
        # The message names the images that are not imported, and leaves out some of many. So an
        # image that it does not name may not be imported either.
        remedy = "Wait for it, or new machines will"
        yield Check("images", subject, Result.WARNING, message=message, remedy=remedy)
    else:
        yield ok("images", subject, f"imported: {named}")


def _declared_images(parts: Parts, target: str) -> set[str]:
    """Return the images that machines need at a version and the HarvesterCluster declares."""
    spec = dict_at(parts.harvester_cluster, "spec")
    namespace = text_at(spec, "targetNamespace")
    needed = {
        qualified(image.text, namespace)
        for machine in parts.harvester_machines.values()
        for volume in list_at(machine, "spec", "volumes")
        for image in looked_up((), volume.get("imageLookup"), target)
    }
    return needed & imports_of(spec)


def _check_backups(parts: Parts) -> Iterator[Check]:
    """Check that Harvester would back up the machines of the control plane, if it is to do so."""
    if not at(parts.harvester_cluster, "spec", "controlPlaneBackups"):
        return

    subject = f"Cluster {parts.key}"
    condition = condition_of(parts.harvester_cluster, ConditionType.CONTROL_PLANE_BACKUPS_READY)
    message = text_at(condition, "message")
    if condition.get("reason") == Reason.BACKUPS_REFUSED:
        remedy = "Do what it says first, or the machines that are replaced have no backups"
        yield Check("backups", subject, Result.WARNING, message=message, remedy=remedy)
    elif condition:
        yield ok("backups", subject, "Harvester backs up control plane machines before deletion")
    else:
        remedy = "Wait until condition ControlPlaneBackupsReady tells"
        message = "it is not known yet whether Harvester would back up control plane machines"
        yield Check("backups", subject, Result.WARNING, message=message, remedy=remedy)


def _part_about(image: str, message: str) -> str:
    """Return the part of the condition's message that starts with an image; empty without it."""
    return f"; {message}".partition(f"; {image}: ")[2]


def _has_failed(image: str, condition: Obj) -> bool:
    """Return whether the condition says that the import of an image has failed."""
    part = _part_about(image, text_at(condition, "message"))
    is_failure = condition.get("reason") == Reason.IMAGE_IMPORT_FAILED
    return is_failure and bool(part) and not part.startswith(PENDING_IMPORTS)


def _check_skew(parts: Parts, cluster: Cluster, target: str, version: Version) -> Iterator[Check]:
    """Check that the version may follow the versions of the cluster and its machines.

    :param parts: the objects of the cluster
    :param cluster: its model
    :param target: the version as text
    :param version: the version
    """
    current = Version.parse(cluster.version)
    if current is None:
        return
    outdated = [
        text
        for text in cluster.versions
        if (parsed := Version.parse(text)) and version.minor - parsed.minor > _SKEW
    ]

    if version < current:
        message = (
            f"{target} is older than {cluster.version}: etcd and API objects cannot be downgraded"
        )
        remedy = "Restore a backup instead, or choose a later version"
    elif version.minor > current.minor + 1 or version.major != current.major:
        message = f"from {cluster.version} to {target} skips a minor version"
        remedy = f"Upgrade to the latest v{current.major}.{current.minor + 1} first"
    elif outdated:
        message = (
            f"machines of {', '.join(outdated)} are more than {_SKEW} minor versions older than "
            f"{target}"
        )
        remedy = f"Upgrade these machines first: {remedies.TREE(ref=parts.key)}"
    elif len(cluster.versions) > 1 and cluster.version != target:
        message = (
            f"machines have different versions ({', '.join(cluster.versions)}): an upgrade is "
            "under way"
        )
        remedy = f"Wait for it: {remedies.WAIT_FOR_UPGRADE(ref=parts.key, version=cluster.version)}"
    else:
        yield ok("version", f"Cluster {parts.key}", f"{target} may follow {cluster.version}")
        return
    yield Check("version", f"Cluster {parts.key}", Result.ERROR, message=message, remedy=remedy)


def _example(kind: str) -> str:
    suffix = {"RKE2ControlPlane": "+rke2r1", "KThreesControlPlane": "+k3s1"}.get(kind, "")
    return f"v1.36.3{suffix}"


def _name(obj: Obj) -> str:
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
