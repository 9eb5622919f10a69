"""Report writes that Harvester refuses, in the condition of the object to write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NamespaceTerminating
from reconciler.blocked import Blocked
from reconciler.harvester.rights import command_for
from reconciler.triggers import Delay

# The condition of a cluster whose control plane lacks what could not be written.
_CONDITION = ConditionType.LOAD_BALANCER_READY
_RETRY_SECONDS = 60.0
# A namespace that is being deleted is recreated once it no longer exists, but nothing watches it.
_TERMINATING_SECONDS = 2.0
# Names of servers in messages, by the name of the client that was used.
_SERVERS = {
    "harvester": "Harvester",
    "management": "the management cluster",
    "workload": "the workload cluster",
}


@contextlib.contextmanager
def block_on_refusal(write: str) -> Iterator[None]:
    """Raise `Blocked` if Harvester refuses a request in the block.

    Use this for writes on which the control plane depends. The controller reports other refusals
    only for a cluster that is not ready.

    :param write: the request in the message, for example `create Service ns/name`
    """
    try:
        yield
    except NamespaceTerminating as error:
        message = f"waiting to {write}: {error.message}"
        reason = Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS
        raise Blocked(_CONDITION, reason, message, Delay(_TERMINATING_SECONDS)) from None
    except (Forbidden, Invalid) as error:
        message = f"Harvester refuses to {write}: {error.message}"
        reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
        raise Blocked(_CONDITION, reason, message, Delay(_RETRY_SECONDS), warn=True) from None


def by_harvester(error: ApiError) -> bool:
    """Return whether Harvester refused a request, and no other server."""
    return error.server == "harvester"


def explain(error: ApiError, target: str) -> str:
    """Describe which server refused a request and why.

    :param target: the target namespace, for the command that grants a right
    """
    # The command grants only rights on Harvester.
    grants = ""
    if by_harvester(error) and isinstance(error, Forbidden):
        grants = command_for(target)
    return f"by {_SERVERS.get(error.server, 'a server')}: {error.message}{grants}"
