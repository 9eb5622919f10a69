"""Check the credentials of one identity: who may use them, when they end, what they allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from caphv.api import names, remedies
from caphv.api.counting import counted, name_some
from caphv.api.identities import is_cluster_identity, secret_name
from caphv.api.object import key_of
from caphv.runtime.kubeconfig import Kubeconfig
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.rights import (
    AHEAD,
    Right,
    backup_rights,
    describe,
    import_rights,
    optional_flags,
)
from operations.read.objects import target_namespaces
from operations.status.check import Check, Result, ok, skipped

_SOON = timedelta(days=14)


def checks(facts: HarvesterFacts, now: datetime) -> Iterator[Check]:
    """Yield the checks of an identity: its clusters, its token, whether Harvester accepts it."""
    secret = f"Secret {secret_name(facts.identity)}"
    yield from _check_permission(facts, secret)
    if facts.kubeconfig is None:
        if facts.hidden:
            yield skipped("identity", secret, facts.hidden)
        elif facts.error:
            yield _check_identity(facts, secret)
        return

    yield from _check_renewal(facts, now)
    expiry = _check_expiry(facts, facts.kubeconfig, now)
    # The check of the renewal says when a token ends that the provider renews.
    if facts.renewed is None:
        yield expiry

    subject = f"Harvester {facts.kubeconfig.server}"
    if facts.objects is None:
        yield _check_connection(facts, subject, expired=expiry.result is Result.ERROR)
        return
    yield ok("connection", subject, f"answers; Kubernetes {facts.objects.version}")
    yield _check_rights(facts, secret)


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


def _check_expiry(facts: HarvesterFacts, kubeconfig: Kubeconfig, now: datetime) -> Check:
    """Check that the credentials do not end soon."""
    subject = f"Secret {secret_name(facts.identity)}"
    ends = kubeconfig.expires()
    if ends is None:
        return ok("credentials", subject, "the credentials state no expiry date")
    if ends - now >= _SOON:
        return ok("credentials", subject, f"the credentials are valid until {ends:%Y-%m-%d}")

    where = facts.secret or facts.identity
    place = {"namespace": where.namespace, "name": where.name}
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
        command = remedies.GRANT_RIGHTS(
            target=_targets_of(facts, denied), more=optional_flags(denied)
        )
        remedy = (
            f"Grant the roles in deploy/harvester/clusterroles.yaml, as this does: {command}, with "
            "--name and --namespace of the account"
        )
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
            f"; Harvester after 1.9 also requires {missing}: before an upgrade, run {command}, "
            "with --name and --namespace of the account"
        )
    return ok("rights", subject, message)


def _targets_of(facts: HarvesterFacts, denied: Collection[Right]) -> str:
    """Return the target namespaces in which rights are missing, as the command takes them."""
    all_targets = target_namespaces(facts.clusters)
    targets = all_targets.intersection(right.namespace for right in denied)
    # A right in all namespaces is missing for each of them.
    return " --target-namespace ".join(sorted(targets or all_targets)) or "NAMESPACE"


def _target(facts: HarvesterFacts) -> str:
    """Return the target namespace of a cluster that uses the identity."""
    return min(target_namespaces(facts.clusters), default="NAMESPACE")
