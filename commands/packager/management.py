"""Apply and delete objects on the management cluster for `caphv packager sync --apply`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from caphv.api.object import key_of
from caphv.api.remedies import DELETE_CLUSTER
from commands.errors import InputError

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from commands.options.management import ManagementOptions
    from packager.definitions.apply import Applier, ApplyFailure
    from packager.definitions.buildresult import BuildResult
    from packager.git.changeplan import Plan
    from packager.git.snapshot import Snapshot
    from packager.planning.commitplan import Store

T = TypeVar("T")


def on_cluster(options: ManagementOptions, work: Callable[[Applier], Awaitable[T]]) -> T:
    """Do work on the management cluster, and return its result. Raises `InputError`."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from packager.definitions.apply import Applier

    async def work_with_client() -> T:
        client = ApiClient(
            await own_configuration(options.kubeconfig, options.context), name="management"
        )
        try:
            return await work(Applier(client))
        finally:
            await client.close()

    try:
        return asyncio.run(work_with_client())
    except (KubeconfigError, RequestError) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None


async def apply(applier: Applier, built: BuildResult) -> list[ApplyFailure]:
    """Apply objects of clusters, and missing objects that they share; return refusals."""
    # Shared objects come first, because clusters refer to their ClusterClass.
    failures = await applier.apply(await applier.missing(built.groups.values()))
    for key, objects in sorted(built.objects.items()):
        failures += await applier.apply(objects, namespace=key.namespace)
    return failures


def delete(
    options: ManagementOptions, names: Sequence[str], *, dry_run: bool = False
) -> list[ApplyFailure]:
    """Delete existing Clusters, by `<namespace>/<name>`; return refused deletions.

    With `dry_run` nothing is deleted. Raises `InputError` when the management cluster cannot be
    reached.
    """

    async def work(applier: Applier) -> list[ApplyFailure]:
        return [
            failure
            for name in names
            for failure in await applier.delete_cluster(name, dry_run=dry_run)
        ]

    return on_cluster(options, work) if names else []


def after_failure(options: ManagementOptions, store: Store, names: list[str]) -> list[str]:
    """Delete clusters whose removal was pushed although the push failed.

    Perhaps only the answer of the host was lost. Return lines about the clusters.
    """
    from packager.git.errors import GitError

    try:
        lost = _removed_names(store, names)
    except GitError:
        return [
            f"Cluster {name}: whether its removal was pushed is unknown; if the repository no "
            f"longer holds it, delete the Cluster: {_delete_command(name)}"
            for name in names
        ]

    try:
        failures = delete_lost(options, lost)
    except InputError as error:
        return [error.message]

    refused = {
        f"{failure.obj['metadata']['namespace']}/{failure.obj['metadata']['name']}"
        for failure in failures
    }
    asked = [name for name in lost if name not in refused]
    return [
        *([f"asked for the deletion of Clusters {', '.join(asked)}"] if asked else []),
        *map(str, failures),
    ]


def _removed_names(store: Store, names: list[str]) -> list[str]:
    """Return the clusters whose manifests the repository no longer holds."""
    from packager.definitions.files import MANIFESTS

    snapshot = store.sync() if names else None
    return [name for name in names if snapshot and snapshot.entry(f"{MANIFESTS}/{name}") is None]


def delete_lost(options: ManagementOptions, names: list[str]) -> list[ApplyFailure]:
    """Delete Clusters that the repository no longer holds.

    Raises `InputError`, whose message names them.
    """
    remedy = "the repository no longer holds it. Delete the Cluster"
    try:
        failures = delete(options, names)
    except InputError as error:
        remedies = [f"Cluster {name}: {remedy}: {_delete_command(name)}" for name in names]
        raise InputError("; ".join([error.message, *remedies])) from None
    return [
        replace(
            failure, why=f"{failure.why}; {remedy}: {_delete_command(str(key_of(failure.obj)))}"
        )
        for failure in failures
    ]


def _delete_command(cluster: str) -> str:
    """Return the command that deletes a Cluster by hand."""
    namespace, _, name = cluster.partition("/")
    return DELETE_CLUSTER(cluster=name, namespace=namespace)


class Dropped(NamedTuple):
    """What remains of a plan, and the deletions that the management cluster refused."""

    plan: Plan
    refused: list[ApplyFailure]


def drop(options: ManagementOptions, plan: Plan, snapshot: Snapshot) -> Dropped:
    """Delete objects that a plan drops from manifests.

    If a deletion is refused, the manifest of its cluster stays as it is, because a dropped object
    that exists would be forgotten otherwise.
    """
    from packager.planning.commit_summary import summarize

    objects = _dropped_objects(plan, snapshot)
    if not objects:
        return Dropped(plan, [])

    refused = on_cluster(options, lambda applier: _delete(applier, objects))
    folders = tuple(f"{_folder(key)}/" for key in refused)
    write = {path: content for path, content in plan.write.items() if not path.startswith(folders)}
    changed = tuple(folder for folder in plan.changed if f"{folder}/" not in folders)
    # The message of the commit must name only what it changes.
    remaining = summarize(
        replace(plan, write=write, changed=changed, subject="", details={}), snapshot
    )
    return Dropped(remaining, [*chain.from_iterable(refused.values())])


async def _delete(
    applier: Applier, dropped: Mapping[Key, Sequence[Obj]]
) -> dict[Key, list[ApplyFailure]]:
    """Delete the dropped objects of each cluster; return the refusals by cluster."""
    refused = {
        key: await applier.delete(objects, key.namespace) for key, objects in dropped.items()
    }
    return {key: failures for key, failures in refused.items() if failures}


def _dropped_objects(plan: Plan, snapshot: Snapshot) -> dict[Key, list[Obj]]:
    """Return by cluster the objects to delete, which its new manifest lacks.

    An object that another manifest of the plan has is not deleted. A MachineDeployment leaves the
    manifest only after its protection was lifted.
    """
    from caphv.api.object import Key
    from packager.definitions.dropped import disposable, dropped_objects, is_pool
    from packager.definitions.manifest import existing, manifest_path, parse_manifest

    keys = [Key(*folder.split("/")[1:]) for folder in plan.changed]
    new = {
        key: parse_manifest(plan.write[path])
        for key in keys
        if (path := manifest_path(key)) in plan.write
    }
    every = [*chain.from_iterable(new.values())]
    objects_by_key = {}
    for key in new:
        before = existing(snapshot, key)
        candidates = [*disposable(before), *filter(is_pool, before)]
        objects_by_key[key] = dropped_objects(candidates, every, key.namespace)
    return {key: objects for key, objects in objects_by_key.items() if objects}


def _folder(key: Key) -> str:
    from packager.definitions.files import MANIFESTS

    return f"{MANIFESTS}/{key}"
