"""Ask a management cluster, by dry runs, which objects of a backup it would refuse to create."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, NotFound, TooManyRequests
from operations.backup.order import Action, Step, created_form
from operations.backup.writing import Restore

_REQUESTS_AT_ONCE = 16
# The API server answers with this text when a webhook declares side effects.
_NOT_SUPPORTED = "does not support dry run"


@dataclass(frozen=True, slots=True)
class DryRun:
    """Why objects are `refused`, and the new `namespaces` whose objects could not be tried."""

    refused: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


async def try_creation(client: ApiClient, restore: Restore) -> DryRun:
    """Send each object that is to be created as a dry run, which needs the right to create it.

    Objects are sent without owners that do not exist yet. What cannot be tried counts as accepted:
    objects of namespaces that do not exist yet, or of a webhook without support for dry runs.
    Raises `Unreachable`.
    """
    pending = [step for step in restore.steps() if step.action is Action.CREATE]
    new = {step.identity.name for step in pending if step.identity.kind == "Namespace"}
    uids = {step.identity: step.uid for step in restore.steps() if step.uid}
    limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def find_refusal(step: Step) -> str:
        """Return why a dry run refuses to create an object; empty if it does not."""
        resource = restore.kinds[step.identity.group, step.identity.kind]
        obj = created_form(step.obj, uids, restore.source)
        async with limit:
            try:
                await client.create(resource, obj, dry_run=True)
            # None of these says that a creation would be refused later.
            except (AlreadyExists, NotFound, TooManyRequests):
                return ""
            except ApiError as error:
                return "" if _NOT_SUPPORTED in str(error) else f"{step.identity}: {error}"
        return ""

    steps = [step for step in pending if step.identity.namespace not in new]
    refused = await asyncio.gather(*map(find_refusal, steps))
    untried = {step.identity.namespace for step in pending} & new
    return DryRun(tuple(filter(None, refused)), tuple(sorted(untried)))
