"""Reads what a trace needs of the management cluster and of the workload cluster, once."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from caphv.api.object import SECRETS, Key, Obj, key_of
from caphv.api.resources import FLEET_GROUP
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery, find_resource
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from packager.addons.merge import at
from packager.addons.settings import AddonSettings
from packager.cluster_objects import fleet_cluster_owner
from packager.rendering.bundles import workspace
from packager.trace import LiveState, ObjectKey

_FAULTS = (ApiError, Unreachable, KubeconfigError, LookupError)


async def read(client: ApiClient, settings: AddonSettings, wanted: Sequence[Obj]) -> LiveState:
    """Read Fleet's objects of a cluster, and the live objects for `wanted`. What cannot be read is None."""
    state = await _fleet(client, settings)
    try:
        objects = await _workload(client, settings.cluster, wanted)
    except _FAULTS as error:
        return LiveState(state.git_repos, state.bundles, state.deployments, state.why, None, f"cannot be read: {error}")
    return LiveState(state.git_repos, state.bundles, state.deployments, state.why, objects)


async def _fleet(client: ApiClient, settings: AddonSettings) -> LiveState:
    place = workspace(settings)
    try:
        clusters = await _list(client, "Cluster", place)
        git_repos, bundles = await _list(client, "GitRepo", place), await _list(client, "Bundle", place)
        own = next((obj for obj in clusters if fleet_cluster_owner(obj) == settings.cluster), None)
        namespace = str(at(own, "status", "namespace") or "") if own else ""
        deployments = await _list(client, "BundleDeployment", namespace) if namespace else []
    except _FAULTS as error:
        return LiveState(why=f"Fleet cannot be read: {error}")
    return LiveState(git_repos, _by_name(bundles), _by_name(deployments))


def _by_name(objs: Sequence[Obj]) -> dict[str, Obj]:
    return {key_of(obj).name: obj for obj in objs}


async def _list(client: ApiClient, kind: str, namespace: str) -> list[Obj]:
    resource = await find_resource(client, FLEET_GROUP, kind)
    return list((await client.list(resource, namespace))["items"])


async def _workload(client: ApiClient, cluster: Key, wanted: Sequence[Obj]) -> dict[ObjectKey, Obj]:
    secret = await client.get(SECRETS, f"{cluster.name}-kubeconfig", cluster.namespace)
    workload = parse_kubeconfig(base64.b64decode(str(at(secret, "data", "value") or ""))).client(name="workload")
    found: dict[ObjectKey, Obj] = {}
    try:
        for obj in wanted:
            namespace, name = str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])
            try:
                resource = await Discovery(workload).resource(obj)
                live = await workload.get(resource, name, namespace if resource.namespaced else "")
            except (NotFound, LookupError):
                continue
            found[obj["kind"], namespace, name] = live
    finally:
        await workload.close()
    return found
