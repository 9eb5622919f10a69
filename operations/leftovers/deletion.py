"""Delete leftovers one by one, after another check of each.

Right before each deletion, the object and its owner are read and checked again. Preconditions make
the deletion fail if the object changes in between. Users are deleted before what they use, so an
interrupted run leaves nothing broken, and another run continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from caphv.api import resources
from caphv.api.names import GUESTS_PREFIX
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    Key,
    Obj,
    Resource,
    being_deleted,
    key_of,
    uid_of,
)
from caphv.api.ownership import Owner
from caphv.api.virtualmachine import deletion_list, listed_claims
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, RequestError
from operations.capacity.addresspools import Verdict
from operations.capacity.poolreader import read_pools
from operations.leftovers.clusterusers import target_namespaces
from operations.leftovers.decision import (
    ADDRESS,
    KINDS,
    POOLS,
    VMS,
    HarvesterState,
    LeftoverReport,
    OwnedObject,
    check_object,
    check_pool,
    cluster_of_object,
)
from operations.leftovers.guests import owner_of
from operations.leftovers.release import Deletion, Outcome, release_addresses
from operations.read.harvesterclient import HarvesterClient
from operations.read.management import list_all
from operations.read.owners import OwnerObjects, read_owners

_MAX_ATTEMPTS = 5
_POLL_SECONDS = 1.0


class LeftoverDeleter:
    """Deletes leftovers on one Harvester, and reports each outcome as soon as it is known."""

    def __init__(
        self,
        management: ApiClient,
        harvester: HarvesterClient,
        namespace: str,
        report: Callable[[Deletion], None],
        *,
        seconds: float,
        include_running: bool = False,
    ) -> None:
        """Prepare the deletion.

        :param management: client of the management cluster
        :param harvester: the Harvester
        :param namespace: the namespace of owners if the account may not read all namespaces
        :param report: called with each outcome
        :param seconds: how long to wait for the deletion of the objects of one kind
        :param include_running: whether to delete VMs that are not stopped
        """
        self._management = management
        self._harvester = harvester
        self._namespace = namespace
        self._report = report
        self._seconds = seconds
        self._include_running = include_running
        self._vms: dict[str, list[Obj]] = {}
        self._owners = OwnerObjects("", {}, frozenset())

    async def delete(self, leftovers: LeftoverReport) -> None:
        """Delete the objects of a report that are still leftovers. Never raises `RequestError`."""
        for resource in KINDS:
            if resource is POOLS:
                await self._release_addresses(leftovers)
            await self._delete_kind(
                resource, [obj for obj in leftovers.leaked if obj.kind == resource.kind]
            )

    async def _delete_kind(self, resource: Resource, leftovers: list[OwnedObject]) -> None:
        """Request the deletion of objects of a kind, then wait until they are deleted."""
        if not leftovers:
            return
        try:
            self._owners = await read_owners(self._management, self._namespace)
        except RequestError as error:
            for leftover in leftovers:
                self._report_outcome(leftover, Outcome.FAILED, f"the management cluster: {error}")
            return

        self._vms.clear()
        requested = [
            leftover for leftover in leftovers if await self._delete_object(resource, leftover)
        ]
        await self._wait(resource, requested)

    async def _delete_object(self, resource: Resource, leftover: OwnedObject) -> bool:
        """Request the deletion of an object, and return whether it still exists."""
        try:
            for attempt in range(_MAX_ATTEMPTS):
                try:
                    return await self._check_and_delete(resource, leftover)
                except Conflict:
                    # The object or its binding was modified, so it must be checked again.
                    if attempt == _MAX_ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(_POLL_SECONDS / 4)
        except NotFound:
            self._report_outcome(leftover, Outcome.DELETED, "no longer existed")
        except RequestError as error:
            self._report_outcome(leftover, Outcome.FAILED, str(error))
        return False

    async def _check_and_delete(self, resource: Resource, leftover: OwnedObject) -> bool:
        """Read an object and its owner, and request its deletion if it is still a leftover.

        Return whether the object still exists. Raises `Conflict` if it was modified meanwhile,
        `ApiError`, `Unreachable`.
        """
        client = self._harvester.of(leftover.namespace)
        obj = await client.get(resource, leftover.name, leftover.namespace)
        if uid_of(obj) != leftover.uid:
            self._report_outcome(leftover, Outcome.DELETED, "another object has its name now")
            return False

        owner = owner_of(obj)
        if owner is not None:
            await self._refresh_owner(owner)
        current = await self._check(resource, obj)
        if current.verdict is not Verdict.LEAKED:
            self._report_outcome(leftover, Outcome.KEPT, current.detail)
            return False
        if being_deleted(obj):
            return True

        # The version is that of the object which was checked, or of our own change of it.
        checked = await _keep_disks(client, obj) if resource is VMS else obj
        if resource is SERVICE_ACCOUNTS:
            await self._unbind(key_of(obj))
        answer = await client.delete(
            resource,
            leftover.name,
            leftover.namespace,
            uid=leftover.uid,
            resource_version=str(checked["metadata"]["resourceVersion"]),
        )
        if answer is None:
            self._report_outcome(leftover, Outcome.DELETED)
        return answer is not None

    async def _refresh_owner(self, owner: Owner) -> None:
        """Read an owner again, because an owner that was created meanwhile keeps its objects."""
        key = Key(owner.namespace, owner.name)
        machines = dict(self._owners.machines)
        clusters = dict(self._owners.clusters)
        for resource, objs in (
            (resources.HARVESTER_MACHINES, machines),
            (resources.HARVESTER_CLUSTERS, clusters),
        ):
            if owner.kind != resource.kind:
                continue
            objs.pop(key, None)
            try:
                objs[key] = await self._management.get(resource, key.name, key.namespace)
            except NotFound:
                continue
        self._owners = replace(self._owners, machines=machines, clusters=clusters)

    async def _check(self, resource: Resource, obj: Obj) -> OwnedObject:
        """Return an object with the verdict on it now.

        As long as a VM exists, objects that it and its cluster need stay, even if the VM itself is
        a leftover.
        """
        if resource is POOLS:
            pools = await read_pools(self._harvester, self._owners)
            objects = {POOLS: pools.pools, VMS: pools.owners.vms}
            state = HarvesterState(
                harvester=self._harvester.server,
                owners=self._owners,
                objects=objects,
                pools=pools.reports(),
                vm_namespaces=pools.vm_namespaces,
                include_running=self._include_running,
            )
            return self._unless_used(check_pool(state, obj), state, resource, obj)

        # VMs may use the object, or prove that a recreated owner has adopted it.
        namespaces = target_namespaces(resource, obj) or self._harvester.namespaces
        vms = [vm for name in sorted(namespaces) for vm in await self._vms_of(name)]
        state = HarvesterState(
            harvester=self._harvester.server,
            owners=self._owners,
            objects={VMS: vms},
            include_running=self._include_running,
        )
        return self._unless_used(check_object(state, resource, obj), state, resource, obj)

    def _unless_used(
        self, current: OwnedObject, state: HarvesterState, resource: Resource, obj: Obj
    ) -> OwnedObject:
        """Return a leftover as in use if a VM that still exists needs it."""
        if current.verdict is not Verdict.LEAKED:
            return current
        vms = state.vms_by_used_object.get((resource, key_of(obj)))
        user = (
            f"{VMS.kind} {key_of(vms[0])}"
            if vms
            else cluster_of_object(state, resource, obj, state.of(VMS))
        )
        if not user:
            return current
        return replace(current, verdict=Verdict.IN_USE, detail=f"{user} still exists")

    async def _vms_of(self, namespace: str) -> list[Obj]:
        """Return the VMs of a namespace, read once for the deletion of each kind."""
        if namespace not in self._vms:
            self._vms[namespace] = await list_all(self._harvester.of(namespace), VMS, namespace)
        return self._vms[namespace]

    async def _unbind(self, account: Key) -> None:
        """Remove an account from the ClusterRoleBinding for all guests of its namespace.

        Raises `ApiError`, `Unreachable`.
        """
        client = self._harvester.of(account.namespace)
        try:
            binding = await client.get(CLUSTER_ROLE_BINDINGS, f"{GUESTS_PREFIX}{account.namespace}")
        except NotFound:
            return
        subjects = list(binding.get("subjects") or ())
        others = [subject for subject in subjects if not _is_account(subject, account)]
        if others == subjects:
            return
        metadata = binding["metadata"]
        version = {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
        await client.patch(
            CLUSTER_ROLE_BINDINGS, metadata["name"], "", {**version, "subjects": others}
        )

    async def _wait(self, resource: Resource, requested: Iterable[OwnedObject]) -> None:
        """Wait until objects are deleted, and report those that still exist after the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        remaining = list(requested)
        while remaining:
            obstacles: dict[str, str] = {}
            for leftover in tuple(remaining):
                obstacle = await self._obstacle(resource, leftover)
                if obstacle is None:
                    self._report_outcome(leftover, Outcome.DELETED)
                    remaining.remove(leftover)
                else:
                    obstacles[leftover.subject] = obstacle
            if loop.time() > deadline:
                break
            if remaining:
                await asyncio.sleep(_POLL_SECONDS)
        for leftover in remaining:
            self._report_outcome(leftover, Outcome.DELETING, obstacles[leftover.subject])

    async def _obstacle(self, resource: Resource, leftover: OwnedObject) -> str | None:
        """Return what keeps an object, empty if that is not known; None once it is deleted.

        An object that cannot be read counts as existing.
        """
        client = self._harvester.of(leftover.namespace)
        try:
            obj = await client.get(resource, leftover.name, leftover.namespace)
        except NotFound:
            return None
        except RequestError as error:
            return f"not seen: {error}"

        if uid_of(obj) != leftover.uid:
            return None
        finalizers = ", ".join(obj["metadata"].get("finalizers") or ())
        return f"finalizers {finalizers}" if finalizers else ""

    async def _release_addresses(self, leftovers: LeftoverReport) -> None:
        """Release addresses that leaked or whose holders were deleted, and correct counts."""
        addresses = [obj for obj in leftovers.leaked if obj.kind == ADDRESS]
        pools = {obj.pool for obj in addresses} | {report.name for report in leftovers.pools}
        invalid = {report.name: report.error for report in leftovers.pools if report.error}
        for name in sorted(pools):
            pool = f"{POOLS.kind} {name}"
            if name in invalid:
                self._report(Deletion(self._harvester.server, pool, Outcome.FAILED, invalid[name]))
                continue
            try:
                self._owners = await read_owners(self._management, self._namespace)
                deletions = await release_addresses(
                    self._management,
                    self._harvester,
                    self._owners,
                    name,
                    [obj for obj in addresses if obj.pool == name],
                )
            except RequestError as error:
                self._report(Deletion(self._harvester.server, pool, Outcome.FAILED, str(error)))
                continue
            for deletion in deletions:
                self._report(deletion)

    def _report_outcome(self, leftover: OwnedObject, outcome: Outcome, message: str = "") -> None:
        self._report(Deletion(self._harvester.server, leftover.subject, outcome, message))


async def _keep_disks(client: ApiClient, vm: Obj) -> Obj:
    """Keep Harvester from deleting disks with a VM, and return the changed VM.

    Each disk is checked on its own after the VM was deleted. Raises `ApiError`, `Unreachable`.
    """
    if not listed_claims(vm):
        return vm
    key = key_of(vm)
    version = vm["metadata"]["resourceVersion"]
    patch = {"metadata": {**deletion_list(()), "resourceVersion": version}}
    return await client.patch(VMS, key.name, key.namespace, patch)


def _is_account(subject: Obj, account: Key) -> bool:
    """Whether a subject of a binding is this account."""
    names = (subject.get("kind"), subject.get("namespace"), subject.get("name"))
    return names == ("ServiceAccount", *account)
