"""Deliver the kubeconfig with which guests of a workload cluster connect to Harvester.

The cloud provider and the CSI driver use it. Fields of the HarvesterCluster select one of three
ways of delivery:

* `updateCloudProviderConfig` (contract) writes it into a Secret inside a ConfigMap's manifests,
  which a ClusterResourceSet applies. The token never expires, because the manifests are applied
  only once.
* `cloudConfig.delivery: Secret` writes it into a Secret in the workload cluster, which this
  provider maintains. The token is renewed after two thirds of its lifetime.
* `cloudConfig.delivery: File` writes it into a file of each guest at its first boot. The token
  never expires either.

No delivery gates machines, because a cloud provider starts only when the cluster runs. Unchanged
objects cause no requests, because memory keeps the version of a verified object.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from caphv.api.conditions import rfc3339
from caphv.api.names import ConditionType, Reason
from caphv.api.object import (
    SECRETS,
    Obj,
    at,
    being_deleted,
)
from caphv.runtime.errors import ApiError, Forbidden, Invalid, RequestError, Unreachable
from reconciler.blocked import Blocked
from reconciler.cluster import cloudaccount, refusals
from reconciler.cluster.delivery import (
    build_kubeconfig,
    deliver_file,
    deliver_manifest,
    deliver_secret,
    publish,
)
from reconciler.cluster.guestsecret import expiry, is_ours
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import SECRET
from reconciler.memory.cluster import GuestMemory

_RETRY_RENEWAL = 60.0
_ACCOUNT_CHECK = 540.0
_READY = ConditionType.CLOUD_PROVIDER_CONFIG_READY
log = logging.getLogger(__name__)
_Step = Callable[[ClusterScope], Awaitable[float | None]]


async def ensure_cloud_config(scope: ClusterScope) -> None:
    """Deliver the cloud config as the spec requests, and requeue for the renewal of a token.

    Failures affect only condition `CloudProviderConfigReady`.
    """
    steps = _steps(scope.obj["spec"])
    if not steps and not scope.draft.has(_READY):
        return

    try:
        if steps:
            await _deliver(scope, steps)
        else:
            await delete_cloud_config(scope)
            scope.draft.drop(_READY)

    except Blocked as blocked:
        _report_delay(scope, blocked)
    except (Forbidden, Invalid) as error:
        message = (
            "a request for the cloud config was refused "
            f"{refusals.explain(error, scope.target_namespace)}"
        )
        if not scope.draft.has_message(_READY, message):
            scope.warning_event(Reason.CLOUD_PROVIDER_CONFIG_FAILED, message)
        scope.draft.set_false(_READY, Reason.CLOUD_PROVIDER_CONFIG_FAILED, message)
        scope.requeue_within(60.0)


async def _deliver(scope: ClusterScope, steps: list[_Step]) -> None:
    """Run the steps of a delivery. Each returns the seconds until it has to run again.

    Raises the first problem after the last step: a ConfigMap that cannot be written must not keep
    a token from its renewal.
    """
    await _check_account(scope)
    problems: list[Blocked | ApiError] = []
    for step in steps:
        try:
            scope.requeue_within(await step(scope))
        except Blocked as blocked:
            scope.requeue_within(blocked.requeue_after)
            problems.append(blocked)
        except (Forbidden, Invalid) as error:
            problems.append(error)
    if problems:
        raise problems[0]

    scope.memory.additional_grace.mark_known(_READY)
    scope.draft.set_true(_READY)


def _report_delay(scope: ClusterScope, blocked: Blocked) -> None:
    """Report in the condition why the delivery waits, unless a token is about to expire."""
    scope.requeue_within(blocked.requeue_after)

    if blocked.is_unknown and scope.draft.is_true(_READY):
        # The condition stays True while this process starts.
        remaining = scope.memory.additional_grace.remaining(_READY)
        if remaining:
            scope.requeue_within(remaining)
            return

    if _report_expiry(scope, blocked.message):
        return
    if blocked.warn and not scope.draft.has_message(_READY, blocked.message):
        scope.warning_event(blocked.reason, blocked.message)
    scope.draft.set_false(_READY, blocked.reason, blocked.message)


async def renew_cloud_config(scope: ClusterScope, why: str) -> None:
    """Renew the token of guests while the phases of their cluster do not run.

    Creates no objects, and changes the condition only if the token is about to expire.

    :param why: why the phases do not run (for example, one of them fails), for the condition
    """
    if being_deleted(scope.obj):
        return

    # Whatever the state of the HarvesterCluster is, guests lose their cloud provider when the token
    # expires, and new guests would get no file after a restart of this process.
    delivery = at(scope.obj, "spec", "cloudConfig", "delivery")
    if delivery == "File":
        await _restore_file(scope)
    elif delivery == "Secret":
        await _renew_secret(scope, why)


async def _restore_file(scope: ClusterScope) -> None:
    """Read the kubeconfig for files of guests again, which this process lost when it restarted.

    Writes nothing to Harvester.
    """
    if scope.memory.guest.kubeconfig is not None or not scope.draft.is_true(_READY):
        return
    if not _answers(scope):
        return
    try:
        if credentials := await cloudaccount.existing_credentials(scope):
            publish(scope, await build_kubeconfig(scope, credentials))
    except (Blocked, ApiError, Unreachable) as error:
        log.warning(
            "cannot read the credentials of guests of HarvesterCluster %s: %s", scope.key, error
        )
        scope.requeue_within(_RETRY_RENEWAL)


async def _renew_secret(scope: ClusterScope, why: str) -> None:
    """Renew the token in the Secret of the workload cluster, or warn before it expires.

    :param why: why the phases of the cluster do not run
    """
    await scope.context.workloads.ensure(scope.cluster_key)
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None:
        return
    await scope.context.object_watches.ensure(scope.key, client, SECRETS, SECRET)

    problem = why
    if _answers(scope):
        try:
            scope.requeue_within(await deliver_secret(scope, create=False))
            return
        except Blocked as blocked:
            scope.requeue_within(blocked.requeue_after)
            problem = blocked.message
        except RequestError as error:
            log.warning(
                "cannot renew the credentials of guests of HarvesterCluster %s: %s",
                scope.key,
                error,
            )
            scope.requeue_within(_RETRY_RENEWAL)
            problem = str(error)
    _report_expiry(scope, problem)


def _answers(scope: ClusterScope) -> bool:
    """Return whether requests to Harvester are possible now."""
    session = scope.session
    return bool(session and not session.error and scope.context.sessions.of(scope.key))


async def delete_cloud_config(scope: ClusterScope) -> None:
    """Delete account, binding and tokens, which invalidates every delivered kubeconfig."""
    if not _steps(scope.obj["spec"]) and not scope.draft.has(_READY):
        return
    # If the deletion fails and a user sets the field again, the account has to be checked at once.
    scope.memory.guest.account_checked_at = None
    if kept := await cloudaccount.delete_account(scope):
        accounts = " and ".join(f"{scope.target_namespace}/{name}" for name in kept)
        scope.warning_event(
            "CloudConfigAccountKept",
            f"kept ServiceAccount {accounts} on Harvester with its ClusterRoleBinding and token: "
            "their record names a HarvesterCluster of this name with another uid, as before a move",
        )
    await scope.context.object_watches.forget(scope.key)
    # Other phases still need what they remember, also if a later step of the deletion fails.
    scope.memory.guest = GuestMemory()


def _report_expiry(scope: ClusterScope, why: str) -> bool:
    """Warn before a token that could not be renewed expires. Return whether the warning is due."""
    secret = scope.context.object_watches.known(scope.key, SECRETS, SECRET)
    times = expiry(secret) if secret and is_ours(secret) else None
    if times is None:
        return False

    warn_at, expires_at = times
    current_time = datetime.now(UTC)
    if current_time < warn_at:
        scope.requeue_within((warn_at - current_time).total_seconds())
        return False

    verb = "expired"
    if current_time < expires_at:
        verb = "expire"
        scope.requeue_within((expires_at - current_time).total_seconds())
    message = (
        f"credentials of cloud provider and CSI driver in Secret {SECRET} of the workload cluster "
        f"{verb} at {rfc3339(expires_at)}, and cannot be renewed: {why}"
    )
    # Memory prevents a second Event, because the status of a paused cluster is not written.
    if scope.memory.guest.expiry_reported != verb and not scope.draft.has_message(_READY, message):
        log.warning("HarvesterCluster %s: %s", scope.key, message)
        scope.warning_event(Reason.CLOUD_PROVIDER_CONFIG_EXPIRING, message)
    scope.memory.guest.expiry_reported = verb
    scope.draft.set_false(_READY, Reason.CLOUD_PROVIDER_CONFIG_EXPIRING, message)
    return True


def _steps(spec: Obj) -> list[_Step]:
    """Return the deliveries that the spec requests."""
    steps: list[_Step] = []
    if spec.get("updateCloudProviderConfig"):
        steps.append(deliver_manifest)
    delivery = at(spec, "cloudConfig", "delivery")
    if delivery == "Secret":
        steps.append(deliver_secret)
    elif delivery == "File":
        steps.append(deliver_file)
    return steps


async def _check_account(scope: ClusterScope) -> None:
    """Check every ten minutes that the account of the guests exists, because nothing watches it.

    The first check adopts the account of a cluster that was moved. Otherwise a Secret in the
    workload cluster would do so only days later, when its token is renewed.
    """
    memory = scope.memory
    current_time = time.monotonic()
    if memory.guest.account_checked_at is not None:
        next_check = memory.guest.account_checked_at + _ACCOUNT_CHECK
        if current_time < next_check:
            scope.requeue_within(next_check - current_time)
            return

    # A Secret in the workload cluster has a bound token, for which no object exists on Harvester.
    steps = _steps(scope.obj["spec"])
    has_lasting_token = any(step is not deliver_secret for step in steps)
    was_delivered = bool(memory.guest.verified)
    is_lost = False
    if was_delivered or deliver_secret in steps:
        is_lost = not await cloudaccount.exists(scope, token=has_lasting_token)
    if was_delivered and is_lost:
        log.warning(
            "the account of guests of HarvesterCluster %s was deleted on Harvester; recreating it",
            scope.key,
        )
        memory.guest.verified.clear()
        memory.guest.account_lost = True
    memory.guest.account_checked_at = current_time
    scope.requeue_within(_ACCOUNT_CHECK)
