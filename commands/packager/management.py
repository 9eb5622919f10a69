"""What `caphv packager sync --apply` does on the management cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from caphv.api.object import key_of
from caphv.api.remedies import DELETE_CLUSTER
from commands.options.clusters import InputError

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from packager.apply import Applier, ApplyFailure
    from packager.definitions.builder import BuildResult
    from packager.git.prune import Plan
    from packager.git.snapshot import Snapshot
    from packager.planner import Store

T = TypeVar("T")


def on_cluster(flags: dict[str, Any], work: Callable[[Applier], Awaitable[T]]) -> T:
    """Return what work on the management cluster returns. Raises InputError when that cannot be reached."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager.apply import Applier

    async def run() -> T:
        client = ApiClient(await own_configuration(flags["kubeconfig"], flags["context"]), name="management")
        try:
            return await work(Applier(client))
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None


async def apply(applier: Applier, built: BuildResult) -> list[ApplyFailure]:
    """Apply the objects of all clusters, and those that they share and lack; return those that were refused."""
    failures = await applier.apply(await applier.missing(built.groups.values()))
    for key, objects in sorted(built.objects.items()):
        failures += await applier.apply(objects, namespace=key.namespace)
    return failures


def delete(flags: dict[str, Any], names: Sequence[str], *, dry_run: bool = False) -> list[ApplyFailure]:
    """Delete Clusters, `<namespace>/<name>`, that exist; return those whose deletion is refused.

    With `dry_run` nothing is deleted. Raises InputError when the management cluster cannot be reached.
    """

    async def work(applier: Applier) -> list[ApplyFailure]:
        return [failure for name in names for failure in await applier.delete_cluster(name, dry_run=dry_run)]

    return on_cluster(flags, work) if names else []


def after_failure(flags: dict[str, Any], store: Store, names: list[str]) -> list[str]:
    """Delete those of some clusters whose removal was pushed all the same; return lines that tell what became of them.

    The branch may have been pushed, and only those of groups be rejected, or only the answer of the host be lost.
    """
    from packager.git.errors import GitError

    try:
        lost = _lost(store, names)
    except GitError:
        return [
            f"Cluster {name}: whether its removal was pushed is unknown; if the repository no longer holds it, delete "
            f"the Cluster: {_delete_command(name)}"
            for name in names
        ]
    try:
        failures = delete_lost(flags, lost)
    except InputError as error:
        return [error.message]
    refused = {f"{one.obj['metadata']['namespace']}/{one.obj['metadata']['name']}" for one in failures}
    asked = [name for name in lost if name not in refused]
    return [*([f"asked for the deletion of Clusters {', '.join(asked)}"] if asked else []), *map(str, failures)]


def _lost(store: Store, names: list[str]) -> list[str]:
    """Return those of some clusters whose manifests the repository no longer holds."""
    from packager.definitions.files import MANIFESTS

    snapshot = store.sync() if names else None
    return [name for name in names if snapshot and snapshot.entry(f"{MANIFESTS}/{name}") is None]


def delete_lost(flags: dict[str, Any], names: list[str]) -> list[ApplyFailure]:
    """Delete Clusters that the repository no longer holds. Raises InputError, which names them."""
    remedy = "the repository no longer holds it. Delete the Cluster"
    try:
        failures = delete(flags, names)
    except InputError as error:
        remedies = [f"Cluster {name}: {remedy}: {_delete_command(name)}" for name in names]
        raise InputError("; ".join([error.message, *remedies])) from None
    return [replace(one, why=f"{one.why}; {remedy}: {_delete_command(str(key_of(one.obj)))}") for one in failures]


def _delete_command(cluster: str) -> str:
    namespace, _, name = cluster.partition("/")
    return DELETE_CLUSTER(cluster=name, namespace=namespace)


def drop(flags: dict[str, Any], plan: Plan, snapshot: Snapshot) -> tuple[Plan, list[ApplyFailure]]:
    """Delete objects that a plan drops from manifests; return those that stay, and the plan without these manifests.

    What has left the repository is forgotten: so a manifest stays as it is while something that it drops is there.
    """
    from packager.commit_summary import summarized

    objects = _dropped(plan, snapshot)
    if not objects:
        return plan, []
    refused = on_cluster(flags, lambda applier: _delete(applier, objects))
    folders = tuple(f"{_folder(key)}/" for key in refused)
    write = {path: content for path, content in plan.write.items() if not path.startswith(folders)}
    changed = tuple(folder for folder in plan.changed if f"{folder}/" not in folders)
    left = summarized(replace(plan, write=write, changed=changed, subject="", details={}), snapshot)
    return left, [*chain.from_iterable(refused.values())]


async def _delete(applier: Applier, dropped: Mapping[Key, Sequence[Obj]]) -> dict[Key, list[ApplyFailure]]:
    found = {key: await applier.delete(objects, key.namespace) for key, objects in dropped.items()}
    return {key: failures for key, failures in found.items() if failures}


def _dropped(plan: Plan, snapshot: Snapshot) -> dict[Key, list[Obj]]:
    """Return by cluster what may be deleted of all that its new manifest lacks, and no other manifest of the plan has.

    A MachineDeployment leaves the manifest only after its protection was lifted.
    """
    from caphv.api.object import Key
    from packager.definitions.builder import existing, manifest_path, parsed
    from packager.definitions.dropped import disposable, dropped, is_pool

    keys = [Key(*folder.split("/")[1:]) for folder in plan.changed]
    new = {key: parsed(plan.write[path]) for key in keys if (path := manifest_path(key)) in plan.write}
    every = [*chain.from_iterable(new.values())]
    found = {}
    for key in new:
        before = existing(snapshot, key)
        candidates = [*disposable(before), *filter(is_pool, before)]
        found[key] = dropped(candidates, every, key.namespace)
    return {key: objects for key, objects in found.items() if objects}


def _folder(key: Key) -> str:
    from packager.definitions.files import MANIFESTS

    return f"{MANIFESTS}/{key}"
