"""Delete leftovers, object by object, each as it is right before.

Whatever was decided before is decided again from what both sides have now, and preconditions make a
deletion fail if the object changed in between. Objects go in an order in which none that remains
needs another: an interrupted run loses nothing, and another run continues.
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

_ATTEMPTS = 5
_POLL = 1.0


class LeftoverDeleter:
    """Deletes leftovers on one Harvester, and reports each as soon as its outcome is known."""

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
        :param namespace: whose owners are read if those of all namespaces may not be
        :param report: called with each outcome
        :param seconds: how long to wait for objects of a kind to be deleted
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
        """Delete what of a report is left over now. Never raises `RequestError`."""
        for resource in KINDS:
            if resource is POOLS:
                await self._release_addresses(leftovers)
            await self._delete_kind(
                resource, [obj for obj in leftovers.leaked if obj.kind == resource.kind]
            )

    async def _delete_kind(self, resource: Resource, leftovers: list[OwnedObject]) -> None:
        """Request the deletion of objects of a kind, then wait for its end."""
        if not leftovers:
            return
        try:
            self._owners = await read_owners(self._management, self._namespace)
        except RequestError as error:
            for leftover in leftovers:
                self._say(leftover, Outcome.FAILED, f"the management cluster: {error}")
            return

        self._vms.clear()
        requested = [
            leftover for leftover in leftovers if await self._delete_object(resource, leftover)
        ]
        await self._wait(resource, requested)

    async def _delete_object(self, resource: Resource, leftover: OwnedObject) -> bool:
        """Request the deletion of an object. Return whether something still keeps it."""
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    return await self._delete_as_it_is(resource, leftover)
                except Conflict:
                    # Something else wrote the object, or its binding: it is checked again.
                    if attempt == _ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(_POLL / 4)
        except NotFound:
            self._say(leftover, Outcome.DELETED, "did not exist any more")
        except RequestError as error:
            self._say(leftover, Outcome.FAILED, str(error))
        return False

    async def _delete_as_it_is(self, resource: Resource, leftover: OwnedObject) -> bool:
        """Read an object and its owner, and request its deletion if it is still a leftover.

        Return whether something still keeps it. Raises `Conflict` if it was written meanwhile,
        `ApiError`, `Unreachable`.
        """
        client = self._harvester.of(leftover.namespace)
        obj = await client.get(resource, leftover.name, leftover.namespace)
        if uid_of(obj) != leftover.uid:
            self._say(leftover, Outcome.DELETED, "another object has its name now")
            return False

        owner = owner_of(obj)
        if owner is not None:
            await self._refresh(owner)
        current = await self._check(resource, obj)
        if current.verdict is not Verdict.LEAKED:
            self._say(leftover, Outcome.KEPT, current.detail)
            return False
        if being_deleted(obj):
            return True

        if resource is VMS:
            obj = await _keep_disks(client, obj)
        if resource is SERVICE_ACCOUNTS:
            await self._unbind(key_of(obj))
        answer = await client.delete(
            resource,
            leftover.name,
            leftover.namespace,
            uid=leftover.uid,
            resource_version=str(obj["metadata"]["resourceVersion"]),
        )
        if answer is None:
            self._say(leftover, Outcome.DELETED)
        return answer is not None

    async def _refresh(self, owner: Owner) -> None:
        """Read an owner, so that one that exists by now keeps its objects."""
        key = Key(owner.namespace, owner.name)
        machines, clusters = dict(self._owners.machines), dict(self._owners.clusters)
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
        """Return what is known of an object now.

        While a VM exists, what it and its cluster need stays, also if it is a leftover itself.
        """
        if resource is POOLS:
            pools = await read_pools(self._harvester, self._owners)
            objects = {POOLS: pools.pools, VMS: pools.owners.vms}
            state = HarvesterState(
                self._harvester.server,
                self._owners,
                objects,
                pools.reports(),
                pools.vm_namespaces,
                self._include_running,
            )
            return self._unless_used(check_pool(state, obj), state, resource, obj)

        # VMs use disks, Secrets and what clusters have, and may prove that an owner of the same
        # name is the former one.
        namespaces = target_namespaces(resource, obj) or self._harvester.namespaces
        vms = [vm for name in sorted(namespaces) for vm in await self._vms_of(name)]
        state = HarvesterState(
            self._harvester.server,
            self._owners,
            {VMS: vms},
            include_running=self._include_running,
        )
        return self._unless_used(check_object(state, resource, obj), state, resource, obj)

    def _unless_used(
        self, current: OwnedObject, state: HarvesterState, resource: Resource, obj: Obj
    ) -> OwnedObject:
        """Return what is known of an object, in use if a VM that still exists needs it."""
        if current.verdict is not Verdict.LEAKED:
            return current
        users = [f"{VMS.kind} {key_of(vm)}" for vm in state.users.get((resource, key_of(obj)), ())]
        users.append(cluster_of_object(state, resource, obj, state.of(VMS)))
        user = next(filter(None, users), "")
        return (
            replace(current, verdict=Verdict.IN_USE, detail=f"{user} still exists")
            if user
            else current
        )

    async def _vms_of(self, namespace: str) -> list[Obj]:
        """Return the VMs of a namespace, as they were when the deletion of a kind began."""
        if namespace not in self._vms:
            self._vms[namespace] = await list_all(self._harvester.of(namespace), VMS, namespace)
        return self._vms[namespace]

    async def _unbind(self, account: Key) -> None:
        """Remove an account from the binding for all guests of its namespace.

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
        """Wait until objects are deleted, and report those that are not in time."""
        loop = asyncio.get_running_loop()
        end, remaining = loop.time() + self._seconds, list(requested)
        while remaining:
            finalizers: dict[str, str] = {}
            for leftover in tuple(remaining):
                obj = await self._find(resource, leftover)
                if obj is None or uid_of(obj) != leftover.uid:
                    self._say(leftover, Outcome.DELETED)
                    remaining.remove(leftover)
                    continue
                keeping = ", ".join(obj["metadata"].get("finalizers") or ())
                finalizers[leftover.subject] = f"finalizers {keeping}" if keeping else ""
            if loop.time() > end:
                break
            if remaining:
                await asyncio.sleep(_POLL)
        for leftover in remaining:
            self._say(leftover, Outcome.DELETING, finalizers[leftover.subject])

    async def _find(self, resource: Resource, leftover: OwnedObject) -> Obj | None:
        """Return an object as it is now, None once it is deleted, and nothing known as it was."""
        try:
            return await self._harvester.of(leftover.namespace).get(
                resource, leftover.name, leftover.namespace
            )
        except NotFound:
            return None
        except RequestError as error:
            return {"metadata": {"uid": leftover.uid, "finalizers": [f"not seen: {error}"]}}

    async def _release_addresses(self, leftovers: LeftoverReport) -> None:
        """Release addresses that leaked, and those of what was deleted; correct the counts."""
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

    def _say(self, leftover: OwnedObject, outcome: Outcome, message: str = "") -> None:
        self._report(Deletion(self._harvester.server, leftover.subject, outcome, message))


async def _keep_disks(client: ApiClient, vm: Obj) -> Obj:
    """Have Harvester delete no disk with a VM: each is checked and deleted after it.

    Returns the VM as it is then. Raises `ApiError`, `Unreachable`.
    """
    if not listed_claims(vm):
        return vm
    key, version = key_of(vm), vm["metadata"]["resourceVersion"]
    patch = {"metadata": {**deletion_list(()), "resourceVersion": version}}
    return await client.patch(VMS, key.name, key.namespace, patch)


def _is_account(subject: Obj, account: Key) -> bool:
    names = (subject.get("kind"), subject.get("namespace"), subject.get("name"))
    return names == ("ServiceAccount", *account)
