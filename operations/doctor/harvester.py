"""Check a Harvester, and the account that is used for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api import names, remedies, resources
from caphv.api.counting import counted, name_some
from caphv.api.hosts import is_ready, is_witness
from caphv.api.identities import is_cluster_identity, secret_name
from caphv.api.ippool import referenced_pools
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    SERVICES,
    Key,
    Obj,
    at,
    dict_at,
    key_of,
    labels_of,
)
from caphv.api.release import release_of
from caphv.api.supported import support
from caphv.api.tokenrenewal import Issued
from caphv.runtime.kubeconfig import Kubeconfig
from operations.capacity.addresspools import PoolReport
from operations.doctor import guests, pitfalls, references, settings, storage
from operations.doctor.forms import number_of
from operations.doctor.references import References
from operations.doctor.rights import (
    AHEAD,
    Right,
    backup_rights,
    describe,
    import_rights,
    optional_flags,
)
from operations.doctor.storage import Storage
from operations.leftovers.decision import ADDRESS, HarvesterState, examine
from operations.read.objects import (
    HarvesterObjects,
    Unseen,
    condition_of,
    target_namespaces,
    time_of,
)
from operations.read.owners import OwnerObjects
from operations.status.check import Check, Result, ok, skipped

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading values of other types raises."""

_SOON = timedelta(days=14)
# Warn of a pool when a smaller share of its addresses is free.
_SCARCE_SHARE = 0.1
_AGENT_PATIENCE = timedelta(minutes=10)


@dataclass(slots=True)
class HarvesterFacts:
    """The input of the checks of one identity.

    `objects` is None when Harvester does not answer, and `error` says why.
    """

    identity: Key
    kubeconfig: Kubeconfig | None = None
    error: str = ""
    rejected: bool = False
    """Whether `error` means that Harvester rejects the credentials."""
    objects: HarvesterObjects | None = None
    denied: list[Right] | None = None
    deployment: Obj | None = None
    ingress: Obj | None = None
    """Service `kube-system/ingress-expose`, which has the virtual address."""
    unread: list[str] = field(default_factory=list)
    """What checks need and the account may not read: a verb and its object."""
    storage: Storage = field(default_factory=Storage)
    machines: list[Obj] = field(default_factory=list)
    clusters: list[Obj] = field(default_factory=list)
    owners: dict[Key, Obj] = field(default_factory=dict)
    """Clusters by namespace and name."""
    recorded_owners: OwnerObjects | None = None
    """HarvesterMachines and HarvesterClusters; None if they may not be read."""
    pools: tuple[PoolReport, ...] = ()
    secret: Key | None = None
    """The Secret of the identity, None if it is not known."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By namespace why its clusters may not use the identity. They are not in `clusters`."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """By namespace why it is not known whether its clusters may. They are not in `clusters`."""
    not_allowed: Mapping[str, str] = field(default_factory=dict)
    """By namespace why the provider refuses its clusters the Secret. They are in `clusters`."""
    renewed: Issued | None = None
    """Record of a token that the provider renews, None for credentials of a user."""
    renewal_problem: str = ""
    """Why the provider does not renew a token as it should, empty if it does."""


def checks(facts: HarvesterFacts, now: datetime) -> list[Check]:
    """Return all checks of one identity and the Harvester behind it.

    Answers in another form end the checks of this Harvester only.
    """
    results: list[Check] = []
    try:
        results.extend(_checks(facts, now))
    except MALFORMED as error:
        subject = f"Harvester {facts.kubeconfig.server if facts.kubeconfig else 'unknown'}"
        remedy = "Check that the kubeconfig leads to a Harvester of a supported release"
        results.append(
            Check(
                "answers", subject, Result.ERROR, message=describe_malformed(error), remedy=remedy
            )
        )
    return results


def describe_malformed(error: Exception) -> str:
    """Return a message that answers cannot be parsed, without quoting them."""
    return f"its answers have another form than Harvester's ({type(error).__name__})"


def _checks(facts: HarvesterFacts, now: datetime) -> Iterator[Check]:
    """Yield all checks of one identity and the Harvester behind it."""
    secret = f"Secret {secret_name(facts.identity)}"
    yield from _check_permission(facts, secret)
    if facts.kubeconfig is None:
        if facts.error:
            yield _check_identity(facts, secret)
        return

    yield from _check_renewal(facts, now)
    credentials = _check_expiry(facts.kubeconfig, facts.identity, now)
    if facts.renewed is None:
        yield credentials
    subject = f"Harvester {facts.kubeconfig.server}"
    if facts.objects is None:
        yield _check_connection(facts, subject, expired=credentials.result is Result.ERROR)
        return

    # All further checks need the answers of Harvester.
    yield ok("connection", subject, f"answers; Kubernetes {facts.objects.version}")
    yield _check_rights(facts, secret)
    yield _check_deployment(facts, subject)
    yield from _check_version(facts, subject)
    yield from _check_hosts(facts.objects, subject)
    yield from _check_volume_replicas(facts, subject)
    yield from _check_pools(facts, subject)
    named = References(facts.clusters, facts.machines, facts.owners, facts.storage.classes)
    yield from references.checks(named, facts.objects, subject)
    yield from _check_guest_agents(facts.objects, subject, now)
    yield from _check_orphans(facts, subject)
    yield from guests.checks(
        facts.objects, facts.clusters, facts.machines, release_of(facts.deployment)
    )
    yield from pitfalls.checks(facts.objects, facts.storage.classes, facts.machines, subject, now)
    yield from settings.checks(facts.objects, facts.ingress, subject, now)
    yield from storage.checks(
        facts.storage, facts.objects, facts.machines, facts.deployment, subject
    )
    if facts.unread:
        missing = "; ".join(facts.unread)
        yield skipped("access", subject, f"not checked, because the account may not {missing}")


def _check_permission(facts: HarvesterFacts, secret: str) -> Iterator[Check]:
    """Report the namespaces whose clusters do not get the credentials that they name."""
    remedy = "Have its owner do so, or name another Secret in spec.identitySecret"
    for namespace, why in sorted({**facts.refused, **facts.not_allowed}.items()):
        message = f"HarvesterClusters of namespace {namespace} get no credentials: {why}"
        yield Check("identity", secret, Result.ERROR, message=message, remedy=remedy)
    for _, why in sorted(facts.unknown.items()):
        yield skipped("identity", secret, why)


def _check_identity(facts: HarvesterFacts, secret: str) -> Check:
    """Return an error that says why there is no kubeconfig."""
    where = facts.secret or facts.identity
    if is_cluster_identity(where):  # its Secret is not known
        remedy = (
            "Check that its CRD is installed, and that you may get harvesterclusteridentities and "
            "namespaces"
        )
        return Check("identity", secret, Result.ERROR, message=facts.error, remedy=remedy)

    command = remedies.NEW_IDENTITY(
        namespace=where.namespace, name=where.name, target=_target(facts)
    )
    remedy = f"Create it with key kubeconfig: {command}"
    return Check("identity", secret, Result.ERROR, message=facts.error, remedy=remedy)


def _check_connection(facts: HarvesterFacts, subject: str, *, expired: bool) -> Check:
    """Say why Harvester does not answer, and which HarvesterClusters depend on it.

    The check of the credentials already reports a rejection of expired credentials.
    """
    if facts.rejected and expired:
        reason = f"it rejects the expired credentials of Secret {secret_name(facts.identity)}"
        return skipped("connection", subject, reason)

    remedy = (
        "Check address, firewall and proxy; clusters there keep running, and machines stay as they "
        "were last seen"
    )
    if facts.rejected:
        where = facts.secret or facts.identity
        place = {"namespace": where.namespace, "name": where.name}
        remedy = f"Replace its token: {remedies.ROTATE_IDENTITY(**place)}"

    names = sorted(str(key_of(obj)) for obj in facts.clusters)
    message = facts.error
    if names:
        clusters = name_some(names)
        message += f"; HarvesterClusters of Secret {secret_name(facts.identity)}: {clusters}"
    return Check("connection", subject, Result.ERROR, message=message, remedy=remedy)


def _check_renewal(facts: HarvesterFacts, now: datetime) -> Iterator[Check]:
    """Check that the provider renews the token, if it is to do so."""
    subject = f"Secret {secret_name(facts.identity)}"
    remedy = f"See condition {names.ConditionType.TOKEN_RENEWED} of {facts.identity}"
    if facts.renewal_problem:
        yield Check(
            "token-renewal", subject, Result.WARNING, message=facts.renewal_problem, remedy=remedy
        )
    elif facts.renewed is not None:
        ends = f"ends at {facts.renewed.expires_at:%Y-%m-%d %H:%M} UTC"
        if facts.renewed.is_overdue(now):
            message = f"the token {ends} and has not been renewed; check whether the provider runs"
            yield Check("token-renewal", subject, Result.WARNING, message=message, remedy=remedy)
        else:
            renewal = f"{facts.renewed.renew_at:%H:%M} UTC"
            message = f"the token {ends}, and the provider renews it by {renewal}"
            yield ok("token-renewal", subject, message)


def _check_expiry(kubeconfig: Kubeconfig, identity: Key, now: datetime) -> Check:
    """Check that the credentials do not end soon."""
    subject = f"Secret {secret_name(identity)}"
    ends = kubeconfig.expires()
    if ends is None:
        return ok("credentials", subject, "the credentials state no expiry date")
    if ends - now >= _SOON:
        return ok("credentials", subject, f"the credentials are valid until {ends:%Y-%m-%d}")

    place = {"namespace": identity.namespace, "name": identity.name}
    remedy = f"Download a new kubeconfig, or replace its token: {remedies.ROTATE_IDENTITY(**place)}"
    if ends <= now:
        message = f"the credentials expired at {ends:%Y-%m-%d %H:%M} UTC"
        return Check("credentials", subject, Result.ERROR, message=message, remedy=remedy)

    days = counted((ends - now).days, "day")
    message = f"the credentials expire at {ends:%Y-%m-%d %H:%M} UTC, in {days}"
    return Check("credentials", subject, Result.WARNING, message=message, remedy=remedy)


def _check_rights(facts: HarvesterFacts, subject: str) -> Check:
    """Check that the account has the rights of the shipped roles."""
    if facts.denied is None:
        return skipped("rights", subject, "Harvester did not say which rights the account has")

    # Rights that only a later Harvester needs do not matter today.
    denied = set(facts.denied) - AHEAD
    # An account without these can use images that Harvester has.
    imports = denied.intersection(import_rights(facts.clusters))
    # Without these, upgrades make no backups of control plane machines.
    backups = denied.intersection(backup_rights(facts.clusters))
    if denied:
        message = f"the account may not {'; '.join(describe(denied))}"
        more = optional_flags(imports | backups)
        command = remedies.GRANT_RIGHTS(target=_target(facts), more=more)
        remedy = f"Grant the roles in deploy/harvester/clusterroles.yaml, as this does: {command}"
        if denied == imports | backups:
            if imports:
                message += ", so that images of spec.images have to be imported by hand"
            if backups:
                message += ", so that upgrades make no backups (spec.controlPlaneBackups)"
            return Check("rights", subject, Result.WARNING, message=message, remedy=remedy)
        return Check("rights", subject, Result.ERROR, message=message, remedy=remedy)

    message = "the account has all rights that the provider needs"
    if later := AHEAD.intersection(facts.denied):
        missing = "; ".join(describe(later))
        command = remedies.GRANT_RIGHTS(target=_target(facts), more="")
        message += (
            f"; Harvester after 1.9 also requires {missing}: before an upgrade, run {command}"
        )
    return ok("rights", subject, message)


def _check_deployment(facts: HarvesterFacts, subject: str) -> Check:
    """Check that Harvester's own controllers are available."""
    if facts.deployment is None:
        reason = "Deployment harvester-system/harvester may not be read"
        return skipped("harvester", subject, reason)

    if condition_of(facts.deployment, "Available").get("status") != "True":
        message = "Deployment harvester-system/harvester is not available"
        remedy = f"Check Harvester's own Pods: {remedies.GET_PODS(namespace='harvester-system')}"
        return Check("harvester", subject, Result.ERROR, message=message, remedy=remedy)
    return ok("harvester", subject, "Deployment harvester-system/harvester is available")


def _check_version(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Check whether the provider is developed and tested against this Harvester."""
    release = release_of(facts.deployment)
    if release is None:
        return

    version = f"v{release[0]}.{release[1]}"
    if problem := support().components["harvester"].problem(version):
        remedy = "Run a supported release of Harvester"
        yield Check("harvester-version", subject, Result.WARNING, message=problem, remedy=remedy)
    else:
        yield ok("harvester-version", subject, f"Harvester {version}")


def _target(facts: HarvesterFacts) -> str:
    """Return the target namespace of a cluster that uses the identity."""
    return min(target_namespaces(facts.clusters), default="NAMESPACE")


def _check_hosts(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Check that hosts are ready and take VMs, and that all or none of them have a zone."""
    hosts = [host for host in objects.hosts if not is_witness(host)]
    if not hosts:
        return

    not_ready = sorted(host["metadata"]["name"] for host in hosts if not is_ready(host))
    closed = sorted(host["metadata"]["name"] for host in hosts if at(host, "spec", "unschedulable"))
    if not_ready:
        message = f"not ready: {', '.join(not_ready)}"
        remedy = "Check these hosts on Harvester; VMs on them do not run or cannot be moved"
        yield Check("hosts", subject, Result.ERROR, message=message, remedy=remedy)

    if closed:
        message = f"take no VMs: {', '.join(closed)}"
        command = remedies.UNCORDON_HOST(host=closed[0])
        remedy = f"End the maintenance in Harvester's UI, or for one of them: {command}"
        yield Check("hosts", subject, Result.WARNING, message=message, remedy=remedy)

    if not not_ready and not closed:
        number = counted(len(hosts), "host is ready and takes", "hosts are ready and take")
        yield ok("hosts", subject, f"{number} VMs")
    yield from _check_zones(hosts, subject)


def _check_zones(hosts: list[Obj], subject: str) -> Iterator[Check]:
    """Check that all hosts have a zone, or none, because zones are no failure domains otherwise."""
    zones = [labels_of(host).get(names.ZONE_LABEL, "") for host in hosts]
    if not any(zones):
        return
    if all(zones):
        sizes = ", ".join(f"{zone} ({count})" for zone, count in sorted(Counter(zones).items()))
        yield ok("zones", subject, f"failure domains are {sizes}")
        return

    without = sorted(
        host["metadata"]["name"] for host in hosts if not labels_of(host).get(names.ZONE_LABEL)
    )
    message = (
        f"no zone label on {', '.join(without)}, so that hosts instead of zones are failure domains"
    )
    remedy = remedies.LABEL_ZONE(host=without[0], label=names.ZONE_LABEL)
    yield Check("zones", subject, Result.WARNING, message=message, remedy=remedy)


def _check_volume_replicas(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Warn of StorageClasses that want more replicas than there are hosts.

    Longhorn keeps one replica of a volume on a host, so that such volumes stay degraded.
    """
    ready = sum(map(is_ready, facts.objects.hosts)) if facts.objects else 0
    for storage_class in facts.storage.classes:
        replicas = number_of(at(storage_class, "parameters", "numberOfReplicas"))
        if replicas is None or not ready or replicas <= ready:
            continue

        name = storage_class["metadata"]["name"]
        number = counted(ready, "host is", "hosts are")
        message = (
            f"StorageClass {name} wants {replicas} replicas of each volume, and {number} ready"
        )
        remedy = "Add hosts, or use a StorageClass with fewer replicas"
        yield Check("longhorn-replicas", subject, Result.WARNING, message=message, remedy=remedy)


def _check_pools(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Check the IPPools that clusters use, and all pools with wrong entries or counts."""
    used: set[str] = set()
    for obj in (*facts.clusters, *facts.machines):
        for name in ("vmNetworkConfig", "loadBalancerConfig"):
            config = dict_at(obj, "spec", name)
            used.update(referenced_pools(config))

    # A command finds the Harvester by an identity or a cluster in its namespace.
    namespaces = [key_of(obj).namespace for obj in facts.clusters]
    if not is_cluster_identity(facts.identity):
        namespaces.insert(0, facts.identity.namespace)
    for report in facts.pools:
        in_use = report.name in used
        if in_use or report.wrong:
            namespace = next(iter(namespaces), "NAMESPACE")
            yield _check_pool(report, subject, used=in_use, namespace=namespace)


def _check_pool(report: PoolReport, subject: str, *, used: bool, namespace: str) -> Check:
    """Check one IPPool.

    :param report: the report on the pool
    :param subject: the Harvester
    :param used: whether a cluster uses the pool
    :param namespace: the namespace of the identity, or of a cluster that uses it
    """
    if report.error:
        remedy = "Correct spec.ranges of the IPPool"
        return Check("pools", subject, Result.ERROR, message=report.error, remedy=remedy)

    free = f"IPPool {report.name}: {report.expected} of {report.total} addresses are free"
    if report.wrong:
        message = f"{free}; status.available is {report.available}"
        if report.leaked:
            message = f"{free}; {counted(len(report.leaked), 'has', 'have')} leaked"
        command = remedies.RELEASE_ADDRESSES(pool=report.name, namespace=namespace)
        return Check("pools", subject, Result.WARNING, message=message, remedy=command)

    if used and report.expected <= 0:
        remedy = "Add a range, or another pool to ipPoolRefs"
        return Check("pools", subject, Result.ERROR, message=free, remedy=remedy)
    if used and report.expected < report.total * _SCARCE_SHARE:
        remedy = "Add a range before the next rollout needs it"
        return Check("pools", subject, Result.WARNING, message=free, remedy=remedy)
    return ok("pools", subject, free)


def _check_guest_agents(objects: HarvesterObjects, subject: str, now: datetime) -> Iterator[Check]:
    """Check that guest agents answer, because a VM without an agent reports no address."""
    # A VM that is starting may still install the agent.
    silent = []
    for instance in objects.instances:
        running = at(instance, "status", "phase") == "Running"
        created = time_of(instance["metadata"].get("creationTimestamp"))
        old = created is not None and now - created > _AGENT_PATIENCE
        if running and old and condition_of(instance, "AgentConnected").get("status") != "True":
            silent.append(str(key_of(instance)))

    if silent:
        message = f"no guest agent answers in {name_some(sorted(silent))}"
        remedy = (
            "Check the VM's console; the image needs qemu-guest-agent, or the network to install it"
        )
        yield Check("guest-agent", subject, Result.WARNING, message=message, remedy=remedy)
    elif objects.instances:
        message = f"guest agents answer in {counted(len(objects.instances), 'VM')}"
        yield ok("guest-agent", subject, message)


def _check_orphans(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Find objects that this management cluster created and whose owner no longer exists."""
    owners = facts.recorded_owners
    if facts.objects is None or owners is None or owners.namespaces is not None:
        # An owner that may not be read is not absent.
        yield skipped("orphans", subject, "objects of all namespaces may not be read")
        return
    if not owners.management_cluster:
        yield skipped("orphans", subject, "namespace kube-system may not be read")
        return

    objects = {
        resources.VIRTUAL_MACHINES: facts.objects.vms,
        PERSISTENT_VOLUME_CLAIMS: facts.objects.claims,
        resources.LOAD_BALANCERS: facts.objects.load_balancers,
        SERVICES: facts.objects.services,
        resources.IP_POOLS: facts.objects.pools,
    }
    namespaces = frozenset(
        namespace
        for namespace in facts.objects.namespaces
        if facts.objects.sees(f"{resources.VIRTUAL_MACHINES} of namespace {namespace}")
    )
    # Users have to know that nothing manages a VM, also if it is at work.
    state = HarvesterState(
        harvester=facts.objects.server,
        owners=owners,
        objects=objects,
        pools=facts.pools,
        vm_namespaces=namespaces,
        include_running=True,
    )
    orphans = [obj.subject for obj in examine(state).leaked if obj.kind != ADDRESS]
    if not orphans:
        yield ok("orphans", subject, "nothing is left of owners that no longer exist")
        return

    message = f"their owner no longer exists: {name_some(sorted(orphans))}"
    remedy = (
        "List them, and adopt what is at work or delete what is no longer needed: "
        f"{remedies.LIST_LEFTOVERS}"
    )
    yield Check("orphans", subject, Result.WARNING, message=message, remedy=remedy)


def unreadable(unseen: Iterable[Unseen]) -> Iterator[Check]:
    """Yield the checks that a missing right made impossible."""
    for item in unseen:
        yield skipped("access", item.what, item.why)
