"""Plan a move of clusters to another management cluster, and make its steps in order.

`operations.backup.movedobjects` chooses the objects of each step, and says why the order is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from caphv.api import remedies
from caphv.api.counting import counted, name_some
from caphv.api.object import Key
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError, ServerFault, TooManyRequests, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from operations.backup import adoption, dryrun, movedobjects, preflight, reading, writing
from operations.backup.adoption import VirtualMachines
from operations.backup.files import Backup
from operations.backup.writing import Restore
from operations.read.management import NoClusterApiError
from operations.status.check import Check
from operations.status.query import Query

# The provider confirms a pause with its next reconcile, which may be late if it is busy.
_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 1.0

_Value = TypeVar("_Value")


class MoveError(Exception):
    """A move stopped after its first change, for the reasons in `problems`.

    The clusters are then paused on the source. Only if the pause itself failed, it is unknown
    whether they are: `maybe_paused`.
    """

    def __init__(self, *problems: str, maybe_paused: bool = False) -> None:
        self.problems = problems
        self.maybe_paused = maybe_paused
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True)
class Sides:
    """Clients for the management clusters between which clusters move."""

    source: ApiClient
    target: ApiClient


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The objects to move, the target before the move, the checks, and the VMs before the move."""

    backup: Backup
    target: Restore
    checks: list[Check]
    vms: VirtualMachines


async def read_source(client: ApiClient, query: Query) -> Backup:
    """Return the clusters as they were before a pause. Raises `ApiError`, `Unreachable`."""
    return movedobjects.backup_of_move(await reading.read_backup(client, query), query.keys)


async def find_clusters(
    client: ApiClient, backup: Backup, target: Restore, keys: Iterable[Key]
) -> set[Key]:
    """Return the clusters of the source, and named clusters that exist on the target only.

    An interrupted move has already deleted the latter on the source.

    :param client: client of the target
    :param backup: the clusters of the source
    :param target: the current state of the target
    :param keys: the clusters that a user named
    """
    existing = backup.cluster_keys()
    clusters = target.kinds.get(movedobjects.CLUSTER)
    absent = [key for key in keys if key not in existing]
    if absent and clusters:
        existing |= await movedobjects.find_moved(client, clusters, absent)
    return existing


async def plan_move(sides: Sides, backup: Backup, target: Restore) -> MovePlan:
    """Run all checks. Nothing is changed: objects are created on the target in dry runs."""
    vms = await adoption.read_vms(sides.source, backup)
    checks = preflight.checks(backup, target, vms)

    # A dry run is useless if the move is refused anyway, or if the target has all objects.
    if not preflight.blocking_errors(checks, force=True) and not movedobjects.is_resumed(target):
        result = await dryrun.try_creation(sides.target, target)
        checks += preflight.creation_checks(target, result)
    return MovePlan(backup, target, checks, vms)


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move between two management clusters.

    `force` overrides checks and a pause that is not confirmed, `timeout` limits the wait for the
    adoption in seconds, and `report` is called with a text after each step.
    """

    sides: Sides
    plan: MovePlan
    query: Query
    force: bool
    timeout: float
    report: Callable[[str], None]

    async def run(self) -> None:
        """Move the clusters; a repeated move continues where it ended. Raises `MoveError`."""
        try:
            restore = await self.pause_clusters()
            await self.create_on_target(restore)
            await self.wait_for_adoption(restore)

            # The target is read again, because only objects that exist there may be deleted on the
            # source.
            await self.delete_on_source(await writing.prepare(self.sides.target, restore.backup))
        except (RequestError, KubeconfigError, NoClusterApiError) as error:
            raise MoveError(f"a request failed: {error}") from None

    async def pause_clusters(self) -> Restore:
        """Pause the clusters on the source, and wait until the provider there confirms it.

        Return the paused clusters, compared with the target and checked again. Raises `MoveError`
        if the pause is not confirmed in time, without `force`, or a check fails.
        """
        source = self.sides.source
        target = self.plan.target
        try:
            clusters = target.kinds[movedobjects.CLUSTER]
            await movedobjects.pause(source, clusters, self.plan.backup, target.uid)
        except RequestError as error:
            problem = f"not all clusters could be paused: {error}"
            raise MoveError(problem, maybe_paused=True) from None
        self.report("paused on the source")

        backup = await _poll_until(
            lambda: read_source(source, self.query),
            lambda backup: not _unconfirmed_pauses(backup),
            _PAUSE_SECONDS,
        )
        if (unconfirmed := _unconfirmed_pauses(backup)) and not self.force:
            raise MoveError(
                "the provider of the source does not confirm the pause of "
                f"{name_some(unconfirmed)}: does it run?"
            )

        # Before the pause, controllers and users could change both sides.
        restore = await writing.prepare(self.sides.target, backup)
        checks = preflight.checks(backup, restore, self.plan.vms)
        if failed := preflight.blocking_errors(checks, force=self.force):
            raise MoveError(*(f"{check.message}. {check.remedy}" for check in failed))
        return restore

    async def create_on_target(self, restore: Restore) -> None:
        """Create all objects on the target, read them back, and end the pause there.

        After an interrupted move that had ended the pause, nothing is created again.
        """
        client = self.sides.target
        if not movedobjects.is_resumed(restore):
            failed = await writing.create(client, restore)
            failed = failed or await writing.verify(client, restore)
            if failed:
                raise MoveError(*failed)
            number = counted(len(restore.backup.objects), "object")
            self.report(f"created {number} on the target, and read them back")

        # From here on the provider of the target adopts the VMs.
        if failed := await writing.unpause(client, restore):
            raise MoveError(*failed)

    async def wait_for_adoption(self, restore: Restore) -> None:
        """Wait until Harvester says that all VMs belong to the target.

        Raises `MoveError` if that takes too long, or a VM was replaced or restarted.
        """
        before = self.plan.vms
        vms = await _poll_until(
            lambda: adoption.read_vms(self.sides.target, restore.backup),
            lambda vms: not vms.unadopted_vms(before, restore.uid),
            self.timeout,
        )
        if unadopted := vms.unadopted_vms(before, restore.uid):
            raise MoveError(
                f"the target has not adopted the VMs of {', '.join(unadopted)}: check the "
                "provider of the target with caphv status on the target"
            )

        # Nothing is deleted on the source if a VM is no longer the VM that was moved.
        if changed := vms.changed_vms(before):
            raise MoveError(f"the VMs of {', '.join(changed)} were replaced or restarted meanwhile")
        number = counted(len(vms.states), "VM")
        self.report(f"the target has adopted {number}; none was restarted")

    async def delete_on_source(self, target: Restore) -> None:
        """Delete the objects on the source. Raises `MoveError` if one is absent on the target."""
        if absent := movedobjects.uncopied_objects(target):
            names = ", ".join(map(str, absent))
            raise MoveError(
                f"does not exist on the target: {names}. If it was deleted there, also delete it "
                "here, its finalizers first"
            )

        chosen = movedobjects.objects_to_delete(target.backup)
        failed = await movedobjects.delete_source(
            self.sides.source, target.kinds, target.steps(), chosen
        )
        if failed:
            problems = "; ".join(failed)
            raise MoveError(f"adopted by the target, and not deleted on the source: {problems}")
        self.report(
            f"deleted on the source. Follow the clusters on the target: {remedies.FOLLOW_ALL}"
        )


def _unconfirmed_pauses(backup: Backup) -> list[str]:
    """Return the objects whose pause the provider of the source has not confirmed."""
    return movedobjects.unpaused_objects(movedobjects.harvester_objects(backup))


async def _poll_until(
    read: Callable[[], Awaitable[_Value]], is_final: Callable[[_Value], bool], seconds: float
) -> _Value:
    """Read a value until it is final or the time is over, and return the last value.

    A server that does not answer is asked again. If the last request failed, its failure is raised;
    if no request was answered, `Unreachable`.
    """
    value: _Value | None = None
    failure: RequestError | None = None

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                try:
                    value = await read()
                    failure = None
                    if is_final(value):
                        return value
                except (Unreachable, ServerFault, TooManyRequests) as error:
                    failure = error
                await asyncio.sleep(_POLL_SECONDS)

    if failure or value is None:
        raise failure or Unreachable(f"no answer within {seconds:g} seconds")
    return value
