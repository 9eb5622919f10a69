"""Run all checks of a Harvester, and of the identity by which it is reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from caphv.api import remedies, resources
from caphv.api.counting import counted, name_some
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj, at, key_of
from caphv.api.release import release_of
from caphv.api.supported import support
from operations.doctor import (
    credentials,
    guests,
    hosts,
    pitfalls,
    pools,
    references,
    settings,
    storage,
)
from operations.doctor.harvesterfacts import MALFORMED, HarvesterFacts, describe_malformed
from operations.doctor.references import References
from operations.leftovers.decision import ADDRESS, HarvesterState, examine
from operations.read.objects import HarvesterObjects, Unseen, condition_of, time_of
from operations.status.check import Check, Result, ok, skipped

_AGENT_PATIENCE = timedelta(minutes=10)


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


def _checks(facts: HarvesterFacts, now: datetime) -> Iterator[Check]:
    """Yield all checks of one identity and the Harvester behind it."""
    yield from credentials.checks(facts, now)
    if facts.kubeconfig is None or facts.objects is None:
        return

    # All further checks need the answers of Harvester.
    subject = f"Harvester {facts.kubeconfig.server}"
    yield _check_deployment(facts, subject)
    yield from _check_version(facts, subject)
    classes = storage.used_classes(facts.storage.classes, facts.objects.claims, facts.machines)
    yield from hosts.checks(facts.objects, classes, subject)
    yield from pools.checks(facts, subject)
    named = References(facts.clusters, facts.machines, facts.owners, facts.storage.classes)
    yield from references.checks(named, facts.objects, subject)
    yield from _check_guest_agents(facts.objects, facts.machines, subject, now)
    yield from _check_orphans(facts, facts.objects, subject)
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


def _check_guest_agents(
    objects: HarvesterObjects, machines: Iterable[Obj], subject: str, now: datetime
) -> Iterator[Check]:
    """Check that guest agents answer, because a VM without an agent reports no address."""
    # A VM that is starting may still install the agent.
    silent = []
    instances = pitfalls.instances_of(objects.instances, machines)
    for instance in instances:
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
    elif instances:
        message = f"guest agents answer in {counted(len(instances), 'VM')}"
        yield ok("guest-agent", subject, message)


def _check_orphans(
    facts: HarvesterFacts, objects: HarvesterObjects, subject: str
) -> Iterator[Check]:
    """Find objects that this management cluster created and whose owner no longer exists."""
    owners = facts.recorded_owners
    if owners is None or owners.namespaces is not None:
        # An owner that may not be read is not absent.
        yield skipped("orphans", subject, "objects of all namespaces may not be read")
        return
    if not owners.management_cluster:
        yield skipped("orphans", subject, "namespace kube-system may not be read")
        return

    objects_by_resource = {
        resources.VIRTUAL_MACHINES: objects.vms,
        PERSISTENT_VOLUME_CLAIMS: objects.claims,
        resources.LOAD_BALANCERS: objects.load_balancers,
        SERVICES: objects.services,
        resources.IP_POOLS: objects.pools,
    }
    namespaces = frozenset(
        namespace
        for namespace in objects.namespaces
        if objects.sees(f"{resources.VIRTUAL_MACHINES} of namespace {namespace}")
    )
    # Users have to know that nothing manages a VM, also if it is at work.
    state = HarvesterState(
        harvester=objects.server,
        owners=owners,
        objects=objects_by_resource,
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
        "List them, and adopt those in use or delete those no longer needed: "
        f"{remedies.LIST_LEFTOVERS}"
    )
    yield Check("orphans", subject, Result.WARNING, message=message, remedy=remedy)


def unreadable(unseen: Iterable[Unseen]) -> Iterator[Check]:
    """Yield the checks that a missing right made impossible."""
    for item in unseen:
        yield skipped("access", item.what, item.why)
