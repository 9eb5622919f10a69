"""Checks of a Harvester and of the account that leads to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api import names, remedies
from caphv.api.counting import counted
from caphv.api.ippool import referenced_pools
from caphv.api.object import Key, Obj, annotations_of, key_of, labels_of
from caphv.api.supported import support
from caphv.runtime.kubeconfig import Kubeconfig
from overview.details import host_ready
from overview.doctor import guests, pitfalls, references
from overview.doctor.model import Check, Result, ok, skipped
from overview.doctor.references import References
from overview.doctor.rights import AHEAD, Right, describe
from overview.objects import HarvesterObjects, Unseen, condition_of
from overview.pools import PoolReport, Verdict

_SOON = timedelta(days=14)
_WITNESS = "node-role.harvesterhci.io/witness"
_SCARCE = 0.1
_AGENT_PATIENCE = timedelta(minutes=10)
_SHOWN = 5
_TAG = re.compile(r"/harvester:v(\d{1,3})\.(\d{1,3})\.")


@dataclass(slots=True)
class HarvesterFacts:
    """What the checks of one identity need. `objects` is None when Harvester does not answer, `error` says why."""

    identity: Key
    access: Kubeconfig | None = None
    error: str = ""
    rejected: bool = False
    """Whether `error` is that Harvester rejects the credentials."""
    objects: HarvesterObjects | None = None
    denied: list[Right] | None = None
    deployment: Obj | None = None
    storage_classes: list[Obj] = field(default_factory=list)
    machines: list[Obj] = field(default_factory=list)
    clusters: list[Obj] = field(default_factory=list)
    owners: dict[Key, Obj] = field(default_factory=dict)
    """Clusters by namespace and name."""
    all_machines: frozenset[Key] | None = None
    """HarvesterMachines of all namespaces; None where they may not be read. So it is with clusters."""
    all_clusters: frozenset[Key] | None = None
    pools: tuple[PoolReport, ...] = ()
    management_cluster: str = ""


def checks(facts: HarvesterFacts, now: datetime) -> Iterator[Check]:
    """Yield all checks of one identity and the Harvester behind it."""
    secret = f"Secret {facts.identity}"
    if facts.access is None:
        place = {"namespace": facts.identity.namespace, "name": facts.identity.name, "target": _target(facts)}
        remedy = f"Create it with key kubeconfig: {remedies.NEW_IDENTITY(**place)}"
        yield Check("identity", secret, Result.ERROR, facts.error, remedy)
        return
    credentials = _expiry(facts.access, facts.identity, now)
    yield credentials
    subject = f"Harvester {facts.access.server}"
    if facts.objects is None:
        yield _unconnected(facts, subject, expired=credentials.result is Result.ERROR)
        return
    yield ok("connection", subject, f"answers; Kubernetes {facts.objects.version}")
    yield _rights(facts, secret)
    yield _harvester_itself(facts, subject)
    yield from _version(facts, subject)
    yield from _hosts(facts.objects, subject)
    yield from _replicas(facts, subject)
    yield from _pools(facts, subject)
    named = References(facts.clusters, facts.machines, facts.owners, facts.storage_classes)
    yield from references.checks(named, facts.objects, subject)
    yield from _guest_agents(facts.objects, subject, now)
    yield from _orphans(facts, subject)
    yield from guests.checks(facts.objects, facts.clusters, facts.machines, _release(facts))
    yield from pitfalls.checks(facts.objects, facts.storage_classes, facts.machines, subject, now)


def _unconnected(facts: HarvesterFacts, subject: str, *, expired: bool) -> Check:
    """Say why Harvester does not answer, unless that follows from credentials that expired, and whom it concerns."""
    if facts.rejected and expired:
        return skipped("connection", subject, f"it rejects the expired credentials of Secret {facts.identity}")
    remedy = "Check address, firewall and proxy; clusters there keep running, and machines stay as they were last seen"
    if facts.rejected:
        place = {"namespace": facts.identity.namespace, "name": facts.identity.name}
        remedy = f"Replace its token: {remedies.ROTATE_IDENTITY(**place)}"
    names = sorted(str(key_of(obj)) for obj in facts.clusters)
    concerned = f"; HarvesterClusters of Secret {facts.identity}: {_some(names)}" if names else ""
    return Check("connection", subject, Result.ERROR, f"{facts.error}{concerned}", remedy)


def _expiry(access: Kubeconfig, identity: Key, now: datetime) -> Check:
    subject, ends = f"Secret {identity}", access.expires()
    place = {"namespace": identity.namespace, "name": identity.name}
    remedy = f"Download a new kubeconfig, or replace its token: {remedies.ROTATE_IDENTITY(**place)}"
    if ends is None:
        return ok("credentials", subject, "the credentials state no expiry date")
    if ends <= now:
        message = f"the credentials expired at {ends:%Y-%m-%d %H:%M} UTC"
        return Check("credentials", subject, Result.ERROR, message, remedy)
    if ends - now < _SOON:
        message = f"the credentials expire at {ends:%Y-%m-%d %H:%M} UTC, in {counted((ends - now).days, 'day')}"
        return Check("credentials", subject, Result.WARNING, message, remedy)
    return ok("credentials", subject, f"the credentials are valid until {ends:%Y-%m-%d}")


def _rights(facts: HarvesterFacts, subject: str) -> Check:
    if facts.denied is None:
        return skipped("rights", subject, "Harvester did not say which rights the account has")
    denied = set(facts.denied) - AHEAD
    if not denied:
        return ok("rights", subject, "; ".join(["the account has all rights that the provider needs", *_ahead(facts)]))
    missing = "; ".join(describe(denied))
    command = remedies.GRANT_RIGHTS(target=_target(facts), pools="")
    remedy = f"Grant the roles in deploy/harvester/clusterroles.yaml, as this does: {command}"
    return Check("rights", subject, Result.ERROR, f"the account may not {missing}", remedy)


def _ahead(facts: HarvesterFacts) -> Iterator[str]:
    if later := AHEAD.intersection(facts.denied or ()):
        what, command = "; ".join(describe(later)), remedies.GRANT_RIGHTS(target=_target(facts), pools="")
        yield f"Harvester after 1.9 also requires {what}: before an upgrade, run {command}"


def _harvester_itself(facts: HarvesterFacts, subject: str) -> Check:
    if facts.deployment is None:
        return skipped("harvester", subject, "Deployment harvester-system/harvester may not be read")
    available = condition_of(facts.deployment, "Available").get("status")
    if available != "True":
        remedy = f"Check Harvester's own Pods: {remedies.GET_PODS(namespace='harvester-system')}"
        message = "Deployment harvester-system/harvester is not available"
        return Check("harvester", subject, Result.ERROR, message, remedy)
    return ok("harvester", subject, "Deployment harvester-system/harvester is available")


def _version(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Whether the provider is developed and tested against this Harvester."""
    release = _release(facts)
    if release is None:
        return
    version = f"v{release[0]}.{release[1]}"
    if problem := support().components["harvester"].problem(version):
        yield Check("harvester-version", subject, Result.WARNING, problem, "Run a supported release of Harvester")
    else:
        yield ok("harvester-version", subject, f"Harvester {version}")


def _release(facts: HarvesterFacts) -> tuple[int, int] | None:
    """Release of Harvester, by the image of its Deployment."""
    template = ((facts.deployment or {}).get("spec") or {}).get("template") or {}
    containers: list[Obj] = (template.get("spec") or {}).get("containers") or []
    match = next((match for each in containers if (match := _TAG.search(str(each.get("image") or "")))), None)
    return (int(match[1]), int(match[2])) if match else None


def _target(facts: HarvesterFacts) -> str:
    """Target namespace of a cluster that uses the identity."""
    targets = sorted(str(cluster["spec"]["targetNamespace"]) for cluster in facts.clusters)
    return next(iter(targets), "NAMESPACE")


def _hosts(objects: HarvesterObjects, subject: str) -> Iterator[Check]:
    hosts = [host for host in objects.hosts if labels_of(host).get(_WITNESS) != "true"]
    if not hosts:
        return
    away = sorted(host["metadata"]["name"] for host in hosts if not host_ready(host))
    closed = sorted(host["metadata"]["name"] for host in hosts if (host.get("spec") or {}).get("unschedulable"))
    if away:
        remedy = "Check these hosts on Harvester; VMs on them do not run or cannot be moved"
        yield Check("hosts", subject, Result.ERROR, f"not ready: {', '.join(away)}", remedy)
    if closed:
        remedy = f"End the maintenance in Harvester's UI, or for one of them: {remedies.UNCORDON_HOST(host=closed[0])}"
        yield Check("hosts", subject, Result.WARNING, f"take no VMs: {', '.join(closed)}", remedy)
    if not away and not closed:
        number = counted(len(hosts), "host is ready and takes", "hosts are ready and take")
        yield ok("hosts", subject, f"{number} VMs")
    zones = [labels_of(host).get(names.ZONE_LABEL, "") for host in hosts]
    if any(zones) and not all(zones):
        without = sorted(host["metadata"]["name"] for host in hosts if not labels_of(host).get(names.ZONE_LABEL))
        message = f"no zone label on {', '.join(without)}, so that hosts instead of zones are failure domains"
        remedy = remedies.LABEL_ZONE(host=without[0], label=names.ZONE_LABEL)
        yield Check("zones", subject, Result.WARNING, message, remedy)
    elif any(zones):
        sizes = ", ".join(f"{zone} ({count})" for zone, count in sorted(Counter(zones).items()))
        yield ok("zones", subject, f"failure domains are {sizes}")


def _replicas(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Longhorn cannot keep more replicas of a volume than there are hosts: volumes stay degraded."""
    objects = facts.objects
    ready = sum(map(host_ready, objects.hosts)) if objects else 0
    for storage_class in facts.storage_classes:
        wanted = str((storage_class.get("parameters") or {}).get("numberOfReplicas") or "")
        if wanted.isdigit() and ready and int(wanted) > ready:
            name = storage_class["metadata"]["name"]
            number = counted(ready, "host is", "hosts are")
            message = f"StorageClass {name} wants {wanted} replicas of each volume, and {number} ready"
            remedy = "Add hosts, or use a StorageClass with fewer replicas"
            yield Check("longhorn-replicas", subject, Result.WARNING, message, remedy)


def _pools(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    specs = [obj.get("spec") or {} for obj in (*facts.clusters, *facts.machines)]
    configs = [spec.get(name) or {} for spec in specs for name in ("vmNetworkConfig", "loadBalancerConfig")]
    used = {name for config in configs for name in referenced_pools(config)}
    for report in facts.pools:
        if report.name not in used and not report.wrong:
            continue
        yield _pool(report, subject, used=report.name in used, namespace=facts.identity.namespace)


def _pool(report: PoolReport, subject: str, *, used: bool, namespace: str) -> Check:
    free = f"IPPool {report.name}: {report.expected} of {report.total} addresses are free"
    leaked = [entry for entry in report.entries if entry.verdict is Verdict.LEAKED]
    if report.error:
        return Check("pools", subject, Result.ERROR, report.error, "Correct spec.ranges of the IPPool")
    if leaked or report.stray_marks or report.available != report.expected:
        command = remedies.RELEASE_ADDRESSES(pool=report.name, namespace=namespace)
        number = counted(len(leaked), "has", "have")
        message = f"{free}; {number} leaked" if leaked else f"{free}; status.available is {report.available}"
        return Check("pools", subject, Result.WARNING, message, command)
    if used and report.expected <= 0:
        return Check("pools", subject, Result.ERROR, free, "Add a range, or another pool to ipPoolRefs")
    if used and report.expected < report.total * _SCARCE:
        return Check("pools", subject, Result.WARNING, free, "Add a range before the next rollout needs it")
    return ok("pools", subject, free)


def _guest_agents(objects: HarvesterObjects, subject: str, now: datetime) -> Iterator[Check]:
    """Without its guest agent a VM reports no address, and its machine never becomes ready."""
    silent = []
    for instance in objects.instances:
        running = (instance.get("status") or {}).get("phase") == "Running"
        created = str(instance["metadata"].get("creationTimestamp") or "")
        old = bool(created) and now - datetime.fromisoformat(created) > _AGENT_PATIENCE
        if running and old and condition_of(instance, "AgentConnected").get("status") != "True":
            silent.append(str(key_of(instance)))
    if silent:
        remedy = "Check the VM's console; the image needs qemu-guest-agent, or the network to install it"
        yield Check("guest-agent", subject, Result.WARNING, f"no guest agent answers in {_some(silent)}", remedy)
    elif objects.instances:
        yield ok("guest-agent", subject, f"guest agents answer in {counted(len(objects.instances), 'VM')}")


def _orphans(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Objects that this management cluster made, and whose owner no longer exists."""
    objects = facts.objects
    if objects is None or facts.all_machines is None or facts.all_clusters is None or not facts.management_cluster:
        yield skipped("orphans", subject, "objects of all namespaces, or namespace kube-system, may not be read")
        return
    owners = {"HarvesterMachine": facts.all_machines, "HarvesterCluster": facts.all_clusters}
    left = []
    kinds = (("VirtualMachine", objects.vms), ("PersistentVolumeClaim", objects.claims))
    for kind, objs in (*kinds, ("LoadBalancer", objects.load_balancers), ("Service", objects.services)):
        for obj in objs:
            annotations = annotations_of(obj)
            owner_kind, _, owner = annotations.get(names.OWNER_ANNOTATION, "").partition("/")
            ours = annotations.get(names.OWNER_CLUSTER_ANNOTATION) == facts.management_cluster
            if ours and owner_kind in owners and Key(*owner.split("/", 1)) not in owners[owner_kind]:
                left.append(f"{kind} {key_of(obj)}")
    if left:
        command = remedies.RELEASE_ADDRESSES(pool="POOL", namespace=facts.identity.namespace)
        remedy = f"If they are no longer needed, delete them on Harvester. Then release their addresses: {command}"
        yield Check("orphans", subject, Result.WARNING, f"their owner no longer exists: {_some(left)}", remedy)
    else:
        yield ok("orphans", subject, "every object of this management cluster has its owner")


def _some(objects: list[str]) -> str:
    more = f" and {len(objects) - _SHOWN} more" if len(objects) > _SHOWN else ""
    return f"{', '.join(sorted(objects)[:_SHOWN])}{more}"


def unreadable(found: Iterable[Unseen]) -> Iterator[Check]:
    """Checks that a missing right made impossible."""
    for each in found:
        yield skipped("access", each.what, each.why)
