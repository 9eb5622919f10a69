"""Report in the status of a HarvesterClusterIdentity how long its token lives."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime

from caphv.api.conditions import Status, rfc3339, set_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import Issued
from caphv.runtime.errors import Forbidden, NotFound
from reconciler.context import Context
from reconciler.harvester.tokenexchange import Token
from reconciler.remote.clusteridentities import NotRead

log = logging.getLogger(__name__)

_CONDITION = ConditionType.TOKEN_RENEWED


@dataclass(frozen=True, slots=True)
class Report:
    """The condition, and the token in use, which is None for that of the user's Secret."""

    status: Status
    reason: str
    message: str
    token: Obj | None = None


def renewed(issued: Issued, token: Token, missing: str) -> Report:
    """Return the report about a token that the provider renews.

    :param missing: what would be needed if the token were lost, empty for nothing
    """
    message = f"token of ServiceAccount {token.account} on {token.credentials.access.server}"
    if not token.is_bound:
        message += (
            "; it is not bound to a Secret on Harvester, because the account may not create Secrets"
            f" in namespace {token.account.namespace}: when this identity is deleted, the token is "
            "not revoked, but ends by itself"
        )
    if missing:
        message += f"; {missing}, so that the token cannot be replaced if Harvester rejects it"
    return Report("True", _CONDITION, message, _token(issued, token))


def not_renewed(issued: Issued, token: Token, problem: str, *, wants_exchange: bool) -> Report:
    """Return the report about a token that is in use and could not be replaced.

    :param wants_exchange: whether only the user's credentials lead to the token that is asked for
    """
    cause = "exchanged for the credentials in the Secret" if wants_exchange else "renewed"
    message = (
        f"the token is in use until {rfc3339(issued.expires_at)}, and could not be {cause}: "
        f"{problem}"
    )
    return Report("False", Reason.TOKEN_NOT_RENEWED, message, _token(issued, token))


def not_exchanged(problem: str) -> Report:
    """Return the report about credentials that were not exchanged, so that they are in use."""
    message = f"clusters use the credentials in the Secret of secretRef: {problem}"
    return Report("False", Reason.TOKEN_NOT_EXCHANGED, message)


async def write(context: Context, identity: Obj, report: Report | None, now: datetime) -> None:
    """Write a report, None to remove it. Raises `ApiError` for a retry."""
    metadata = identity["metadata"]
    present = identity.get("status") or {}
    conditions = present.get("conditions") or []
    if report is None:
        token = None
        intended = [condition for condition in conditions if condition.get("type") != _CONDITION]
    else:
        token = report.token
        intended = set_condition(
            conditions,
            _CONDITION,
            report.status,
            reason=report.reason,
            message=report.message,
            generation=int(metadata.get("generation") or 0),
            now=now,
        )
    if intended == conditions and token == at(present, "token"):
        return

    patch = {
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": intended, "token": token},
    }
    try:
        written = await context.client.patch(
            HARVESTER_CLUSTER_IDENTITIES, metadata["name"], "", patch, subresource="status"
        )
    except NotFound:
        return
    except Forbidden as error:
        log.warning("%s; apply the roles of this release", error)
        return
    with contextlib.suppress(NotRead):
        context.cluster_identities.observe(written)


def _token(issued: Issued, token: Token) -> Obj:
    """Return field `status.token`."""
    return {
        "serviceAccount": str(token.account),
        "expirationTime": rfc3339(issued.expires_at),
        "renewalTime": rfc3339(issued.renew_at),
    }
