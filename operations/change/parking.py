"""Plan to park or resume clusters, with the checks before. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from caphv.api import names, parking, remedies
from caphv.api.clusterapi import externally_managed
from caphv.api.counting import counted, name_some
from caphv.api.hosts import is_ready, is_witness, why_closed
from caphv.api.identities import identity_of
from caphv.api.names import (
    PARK_ANNOTATION,
    PARKED_BY_SCHEDULE_ANNOTATION,
    ConditionType,
    Reason,
)
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, text_at
from operations.change.changes import Change, ChangeError, Patch, Plan, patch_of
from operations.change.clusterprogress import ClusterProgress
from operations.read.accounts import Account
from operations.read.objects import HarvesterObjects, ManagementObjects, condition_of
from operations.status.check import Check, Result, ok
from operations.status.parts import Parts


class _Refusal(NamedTuple):
    """Why the provider does not park a cluster, and what a user can do."""

    reason: str
    remedy: str


def plan_park(parts: Parts) -> Plan:
    """Return the plan to park a cluster."""
    checks = (*_park_checks(parts), *_schedule_checks(parts, "true"))
    return Plan(parts.key, _park_patches(parts.cluster, "true"), checks)


def plan_resume(parts: Parts, harvester: HarvesterObjects | None, why: str) -> Plan:
    """Return the plan to resume a cluster.

    :param parts: the objects of the cluster
    :param harvester: the Harvester; None if it could not be read
    :param why: why it could not be read
    """
    cluster = parts.cluster
    if PARK_ANNOTATION not in annotations_of(cluster) and not parking.concerns(cluster):
        return Plan(parts.key, (), ())

    # Within a window, the schedule would park it again without the annotation. Outside of windows,
    # the annotation is removed, so that it follows the schedule.
    in_window = annotations_of(cluster).get(PARKED_BY_SCHEDULE_ANNOTATION) == "true"
    value = "false" if in_window and parking.schedule_of(cluster) is not None else None
    patches = _park_patches(cluster, value)
    checks = (*_resume_checks(parts, harvester, why), *_schedule_checks(parts, value))
    return Plan(parts.key, patches, checks if patches else ())


def progress_of(parts: Parts, *, park: bool) -> ClusterProgress:
    """Return the progress of parking a cluster, or of resuming it."""
    cluster = parts.cluster
    condition = condition_of(parts.harvester_cluster, ConditionType.PARKED)
    message = text_at(condition, "message")
    if not park and not parking.concerns(cluster):
        return ClusterProgress(done=True, blocked=False, text="resumed")
    if condition.get("reason") == Reason.PARK_BLOCKED:
        return ClusterProgress(done=False, blocked=True, text=message)

    waiting = "waiting for the provider"
    if park:
        is_parked = parking.is_wanted(cluster) and condition.get("status") == "True"
        return ClusterProgress(done=is_parked, blocked=False, text=message or waiting)
    # Until the provider resumes the cluster, the condition is about the parking before.
    is_resuming = condition.get("reason") == Reason.RESUMING
    return ClusterProgress(done=False, blocked=False, text=message if is_resuming else waiting)


def clusters_on(objects: ManagementObjects, accounts: Collection[Account], name: str) -> list[Key]:
    """Return the clusters on a Harvester, sorted by namespace and name.

    Raises `ChangeError` if no identity belongs to the Harvester.

    :param objects: objects of the management cluster
    :param accounts: the identities of its HarvesterClusters
    :param name: URL or host of Harvester, or namespace and name of an identity Secret
    """
    harvesters = {
        (account.kubeconfig.server, account.kubeconfig.ca)
        for account in accounts
        if name.rstrip("/").lower() in _names_of(account)
    }
    if not harvesters:
        servers = sorted({account.kubeconfig.server for account in accounts})
        hint = f"; identities exist for {', '.join(servers)}" if servers else ""
        raise ChangeError([f"no cluster has an identity for Harvester {name}{hint}"])

    identities = {
        account.identity
        for account in accounts
        if (account.kubeconfig.server, account.kubeconfig.ca) in harvesters
    }
    return _clusters_with(
        objects, lambda harvester_cluster: identity_of(harvester_cluster) in identities
    )


def unknown_clusters(
    objects: ManagementObjects, accounts: Collection[Account], name: str
) -> list[Key]:
    """Return the clusters that were on a Harvester, and whose identity cannot be read now.

    :param objects: objects of the management cluster
    :param accounts: the identities that can be read
    :param name: URL or host of Harvester, or namespace and name of an identity Secret
    """
    known = {account.identity for account in accounts}
    named = name.rstrip("/").lower()
    servers = {
        account.kubeconfig.server.rstrip("/").lower()
        for account in accounts
        if named in _names_of(account)
    }

    def is_unknown(harvester_cluster: Obj) -> bool:
        # The provider writes the server, as soon as it has reached it.
        server = text_at(harvester_cluster, "spec", "server").rstrip("/").lower()
        is_there = server in servers or named in _names_of_server(server)
        return bool(server) and is_there and identity_of(harvester_cluster) not in known

    return _clusters_with(objects, is_unknown)


def host_checklist(harvester: str, clusters: Sequence[Key], resume: str) -> list[str]:
    """Return the manual steps that shut down the hosts of a Harvester, in order.

    :param harvester: its name, as the user gave it
    :param clusters: the parked clusters
    :param resume: the command that resumes them
    """
    parked = counted(len(clusters), "cluster")
    volumes = remedies.GET_ON_HARVESTER(resource="volumes.longhorn.io")
    return [
        f"{parked} on {harvester} parked; what follows is for Harvester itself.",
        "Generate a support bundle, and note addresses of hosts and the virtual address: they must "
        "be the same afterwards.",
        "Stop the VMs that belong to no cluster, from within or with virtctl stop, until none is "
        f"left: {remedies.GET_ON_HARVESTER(resource='vmi')}",
        "Disable add-ons with volumes of their own (rancher-monitoring, rancher-logging, "
        "vm-import-controller).",
        f"Check that all volumes are detached: {volumes}",
        "If a witness leads etcd, delete its etcd Pod in kube-system, so that another host leads.",
        "Shut down hosts that run no etcd, then those that do, one after another. Note the last.",
        "To start again: the last host first, the others three minutes later, then wait up to 15 "
        f"minutes for hosts and storage: {remedies.GET_PODS(namespace='longhorn-system')}",
        f"Enable the add-ons, then resume the clusters: {resume}",
    ]


def _park_patches(cluster: Obj, value: str | None) -> tuple[Patch, ...]:
    """Return the patch that sets the park annotation; empty if it has this value.

    :param value: the new value; None to remove the annotation
    """
    present = annotations_of(cluster).get(PARK_ANNOTATION)
    if present == value:
        return ()
    change = Change(
        object=f"Cluster {key_of(cluster)}",
        field=f"annotation {PARK_ANNOTATION}",
        before=present or "",
        after=value or "(removed)",
    )
    return (patch_of(cluster, {"metadata": {"annotations": {PARK_ANNOTATION: value}}}, [change]),)


def _park_checks(parts: Parts) -> Iterator[Check]:
    """Yield checks of what prevents or delays parking a cluster."""
    subject = f"Cluster {parts.key}"
    refusals = list(_park_refusals(parts))
    for refusal in refusals:
        message = f"{refusal.reason}, so it is not parked"
        yield Check("park", subject, Result.ERROR, message=message, remedy=refusal.remedy)

    deleted = sorted(key_of(machine).name for machine in parts.machines if being_deleted(machine))
    if deleted:
        message = (
            "Machines are being deleted, which continues after the cluster is resumed: "
            f"{name_some(deleted)}"
        )
        remedy = "Wait until they are deleted"
        yield Check("machines", subject, Result.WARNING, message=message, remedy=remedy)
    if not refusals:
        yield ok("park", subject, f"{counted(len(parts.machines), 'machine')} will be stopped")


def _park_refusals(parts: Parts) -> Iterator[_Refusal]:
    """Yield the reasons for which the provider does not park a cluster."""
    cluster = parts.cluster
    if being_deleted(cluster):
        yield _Refusal("it is being deleted", "Wait for its end")
    if parking.is_moving(cluster):
        yield _Refusal(
            "it is being moved to another management cluster",
            "Complete the move, and park it there",
        )
    if names.ETCD_RESTORE_ANNOTATION in annotations_of(cluster):
        finish = remedies.FINISH_RESTORE(ref=parts.key)
        yield _Refusal("its etcd is being restored", f"Complete the restore: {finish}")

    harvester_cluster = parts.harvester_cluster
    if harvester_cluster is None:
        yield _Refusal(
            "it has no HarvesterCluster that you may read",
            "Check spec.infrastructureRef and your rights",
        )
    if names.PAUSED_ANNOTATION in annotations_of(harvester_cluster or cluster):
        yield _Refusal(
            f"annotation {names.PAUSED_ANNOTATION} keeps the provider from it",
            "Remove the annotation from the HarvesterCluster",
        )
    if harvester_cluster is not None and externally_managed(harvester_cluster):
        yield _Refusal(
            "another controller manages its HarvesterCluster, for which the provider does nothing",
            f"Stop its VMs with that controller, which {names.MANAGED_BY_ANNOTATION} names",
        )


def _schedule_checks(parts: Parts, value: str | None) -> Iterator[Check]:
    """Yield a warning if the annotation overrides the cluster's schedule.

    :param value: the new value of the annotation; None if it is removed
    """
    if parking.schedule_of(parts.cluster) is None or value is None:
        return
    key = parts.key
    command = remedies.REMOVE_ANNOTATION(
        kind="cluster", name=key.name, namespace=key.namespace, annotation=PARK_ANNOTATION
    )
    message = f"annotation {PARK_ANNOTATION} overrides its schedule until you remove it"
    remedy = f"To have it follow the schedule again: {command}"
    yield Check("schedule", f"Cluster {key}", Result.WARNING, message=message, remedy=remedy)


def _resume_checks(parts: Parts, harvester: HarvesterObjects | None, why: str) -> Iterator[Check]:
    """Yield checks of whether Harvester answers and its hosts are ready."""
    subject = f"Cluster {parts.key}"
    if harvester is None:
        message = f"its Harvester cannot be read: {why or 'its identity cannot be used'}"
        remedy = f"Start its hosts, and check the connection: {remedies.DOCTOR(ref=parts.key)}"
        yield Check("harvester", subject, Result.ERROR, message=message, remedy=remedy)
        return

    unready = sorted(filter(None, map(_why_unready, harvester.hosts)))
    if unready:
        message = f"hosts of Harvester are not back: {name_some(unready)}"
        remedy = "Start them, or end their maintenance, and wait until all are Ready"
        yield Check("hosts", subject, Result.ERROR, message=message, remedy=remedy)
    else:
        hosts = counted(len(harvester.hosts), "host is", "hosts are")
        yield ok("hosts", subject, f"Harvester answers, and {hosts} ready")


def _why_unready(host: Obj) -> str:
    """Return a host with the reason why it accepts no VMs; empty if it does."""
    name = key_of(host).name
    if not is_ready(host):
        return f"{name} (not ready)"
    # A witness never accepts VMs, so it only has to be ready.
    reason = "" if is_witness(host) else why_closed(host)
    return f"{name} ({reason})" if reason else ""


def _clusters_with(objects: ManagementObjects, is_chosen: Callable[[Obj], bool]) -> list[Key]:
    """Return the clusters with a chosen HarvesterCluster, sorted by namespace and name."""
    infrastructures = {key_of(obj) for obj in objects.harvester_clusters if is_chosen(obj)}
    return sorted(
        key_of(obj)
        for obj in objects.clusters
        if Key(key_of(obj).namespace, text_at(obj, "spec", "infrastructureRef", "name"))
        in infrastructures
    )


def _names_of(account: Account) -> set[str]:
    """Return the names that a user may give to the Harvester of an identity, in lower case."""
    return {*_names_of_server(account.kubeconfig.server), str(account.identity)}


def _names_of_server(server: str) -> set[str]:
    """Return the names that a user may give to a server, in lower case."""
    address = server.rstrip("/").lower()
    url = urlsplit(address)
    host = url.hostname or ""
    return {address, url.netloc, host, f"[{host}]"}
