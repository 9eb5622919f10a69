"""Turn a condition into a problem, with a severity, a begin and a remedy."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from caphv.api.names import Reason
from caphv.api.object import Obj, being_deleted
from operations.read.objects import time_of
from operations.status.model import Problem, Severity
from operations.status.parts import Parts, remedy_subject
from operations.status.remedies import next_step

# An operation that is still in progress after this time counts as a problem.
PATIENCE = timedelta(minutes=15)
# Reasons of a condition that is normal for a time.
PASSING = frozenset(
    {
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        Reason.HARVESTER_CONNECTION_IN_PROGRESS,
        Reason.TARGET_NAMESPACE_CHECKING,
        Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS,
        Reason.FLEET_INTEGRATION_IN_PROGRESS,
        Reason.ADDON_BUNDLES_IN_PROGRESS,
        Reason.VM_PROVISIONING_IN_PROGRESS,
    }
)
# Ends of the reasons of TopologyReconciled while the core upgrades one part of a cluster after the
# other, which takes as long as its machines take. Their own conditions report what is wrong.
ROLLOUT = ("ClusterUpgrading", "UpgradePending", "CreatePending")
# A deletion that a finalizer blocks does not end by itself. The provider names the finalizer only
# once it has waited longer than usual.
HELD_PATIENCE = timedelta(minutes=2)
_FINALIZER = re.compile(r"\bfinalizer \S")
# The provider ends a message about the spec of a machine with the advice that is the next step.
_TEMPLATE_ADVICE = re.compile(
    r"; (?:correct spec\.topology\.variables of Cluster \S+, then delete Machine \S+"
    r"|HarvesterMachineTemplate \S+ is immutable: create a corrected one .*)$"
)
# The names of the provider's admission webhooks contain the kind. Harvester's end otherwise.
_OWN_WEBHOOK = re.compile(r'failed calling webhook "[vm]harvester[a-z0-9.]*\.kb\.io"')
_WARNINGS = frozenset(
    {
        Reason.IDENTITY_EXPIRING,
        Reason.VM_DIFFERS,
        Reason.VM_UPDATING,
        Reason.ADDON_BUNDLES_NOT_APPLIED,
        Reason.FAILURE_DOMAIN_UNAVAILABLE,
        Reason.LIMIT_REACHED,
        Reason.IMAGE_IMPORT_FAILED,
        Reason.BACKUPS_REFUSED,
        Reason.BACKUP_FAILED,
        Reason.EVACUATION_BLOCKED,
    }
)
# A cluster works without add-ons, and some clusters are meant to have none. An evacuation is
# requested, and reports itself what does not end in time. A download may take its time.
NOTES = frozenset({Reason.ADDON_BUNDLES_MISSING, Reason.EVACUATING, Reason.IMAGES_IMPORTING})


def condition_problem(parts: Parts, obj: Obj, kind: str, condition: Obj, now: datetime) -> Problem:
    """Return the problem that a condition reports.

    :param parts: the objects of the cluster
    :param obj: the object with the condition
    :param kind: the kind of the object
    :param condition: the condition
    :param now: the current time
    """
    reason = str(condition.get("reason") or "")
    since = str(condition.get("lastTransitionTime") or "")
    cause = flatten(str(condition.get("message") or ""))
    # A message is optional in metav1.Condition.
    if not cause:
        cause = f"{condition['type']} is {condition['status']}"

    return Problem(
        _severity_of(obj, kind, condition, age_of(since, now)),
        (object_name(obj, kind),),
        reason,
        cause=_TEMPLATE_ADVICE.sub("", cause),
        next_step=next_step(_advised_reason(obj, reason, cause), remedy_subject(parts, obj, kind)),
        since=since,
    )


def names_finalizer(message: str) -> bool:
    """Whether a message says that a finalizer blocks a deletion."""
    return _FINALIZER.search(message) is not None


def _advised_reason(obj: Obj, reason: str, message: str) -> str:
    """Return the reason by which the next step is chosen: some causes show in the message only."""
    # A refusal by the provider's own webhooks says nothing about the object.
    if _OWN_WEBHOOK.search(message):
        return "WebhookUnavailable"
    if being_deleted(obj) and names_finalizer(message):
        return "DeletionHeld"
    return reason


def _severity_of(obj: Obj, kind: str, condition: Obj, age: timedelta) -> Severity:
    """Return the severity of a condition.

    :param obj: the object with the condition
    :param kind: the kind of the object
    :param condition: the condition
    :param age: the time for which the condition has lasted
    """
    reason = condition.get("reason")
    if reason in _WARNINGS:
        return Severity.WARNING
    if reason in NOTES:
        return Severity.NOTE

    if condition.get("type") == "TopologyReconciled" and reason:
        if str(reason).endswith(ROLLOUT):
            return Severity.WAITING
        if str(reason).endswith("UpgradeDeferred"):
            return Severity.NOTE

    # The core and control plane providers do not distinguish a failure from a slow operation.
    may_pass = reason in PASSING or kind not in ("HarvesterCluster", "HarvesterMachine")
    if condition.get("type") == "TopologyReconciled" and "Failed" in str(reason):
        may_pass = False
    if may_pass or being_deleted(obj):
        is_held = being_deleted(obj) and names_finalizer(str(condition.get("message") or ""))
        patience = HELD_PATIENCE if is_held else PATIENCE
        return Severity.WAITING if age <= patience else Severity.ERROR
    return Severity.ERROR


def object_name(obj: Obj, kind: str) -> str:
    """Return the name of an object in problems, such as `Machine/web-0`."""
    return f"{kind}/{obj['metadata']['name']}"


def flatten(message: str) -> str:
    """Return an aggregated message of the core as one line, without bullets."""
    lines = (line.strip().removeprefix("* ") for line in message.splitlines())
    return "; ".join(line.rstrip(":") if line.endswith(":") else line for line in lines if line)


def age_of(since: str, now: datetime) -> timedelta:
    """Return the time since a moment, or zero if the moment is unknown."""
    time = time_of(since)
    return now - time if time else timedelta(0)
