"""Writes that Harvester refuses, reported by the condition of what they are for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import ApiError, Forbidden, Invalid
from reconciler.harvester.identityaccount import command_for
from reconciler.status import Blocked
from reconciler.triggers import Delay

_RETRY_SECONDS = 60.0
# Of the clients that a reconcile uses, by name.
_SERVERS = {"harvester": "Harvester", "management": "the management cluster", "workload": "the workload cluster"}


@contextlib.contextmanager
def reported(condition: ConditionType, write: str) -> Iterator[None]:
    """Raise `Blocked` for a refusal in the block; `write` is for the message, like `create Service ns/name`.

    The controller reports other refusals only of clusters that are not ready yet: it cannot know that the control plane
    depends on the write.
    """
    try:
        yield
    except (Forbidden, Invalid) as error:
        message = f"Harvester refuses to {write}: {error.message}"
        reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
        raise Blocked(condition, reason, message, Delay(_RETRY_SECONDS), warn=True) from None


def by_harvester(error: ApiError) -> bool:
    """Whether Harvester refused a request, and no other server."""
    return error.server == "harvester"


def explained(error: ApiError, target: str) -> str:
    """Say who refused a request and why; for a right missing on Harvester, with the command that grants it."""
    grants = command_for(target) if by_harvester(error) and isinstance(error, Forbidden) else ""
    return f"by {_SERVERS.get(error.server, 'a server')}: {error.message}{grants}"
