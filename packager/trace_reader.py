"""Reads the objects of management cluster and workload cluster that a trace compares."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace

from caphv.api.object import SECRETS, Key, Obj, key_of, text_at
from caphv.api.resources import FLEET_GROUP
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery, find_resource
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from packager.addons.cluster_objects import fleet_cluster_owner
from packager.addons.settings import AddonSettings
from packager.rendering.bundles import workspace
from packager.trace import LiveState, ObjectKey

_FAULTS = (ApiError, Unreachable, KubeconfigError, LookupError)


async def read(client: ApiClient, settings: AddonSettings, rendered: Sequence[Obj]) -> LiveState:
    """Read Fleet's objects of a cluster, and the live objects for the rendered ones.

    Fields of the result are None for objects that cannot be read.
    """
    state = await _read_fleet(client, settings)
    try:
        objects = await _read_workload(client, settings.cluster, rendered)
    except _FAULTS as error:
        return replace(state, objects=None, unreachable=f"cannot be read: {error}")
    return replace(state, objects=objects)


async def _read_fleet(client: ApiClient, settings: AddonSettings) -> LiveState:
    place = workspace(settings)
    try:
        clusters = await _list(client, "Cluster", place)
        git_repos = await _list(client, "GitRepo", place)
        bundles = await _list(client, "Bundle", place)

        # BundleDeployments are in a namespace that Fleet creates for the cluster.
        deployments: list[Obj] = []
        owned = [obj for obj in clusters if fleet_cluster_owner(obj) == settings.cluster]
        namespace = text_at(owned[0], "status", "namespace") if owned else ""
        if namespace:
            deployments = await _list(client, "BundleDeployment", namespace)
    except _FAULTS as error:
        return LiveState(why=f"Fleet cannot be read: {error}")
    return LiveState(git_repos, _by_name(bundles), _by_name(deployments))


def _by_name(objs: Sequence[Obj]) -> dict[str, Obj]:
    return {key_of(obj).name: obj for obj in objs}


async def _list(client: ApiClient, kind: str, namespace: str) -> list[Obj]:
    resource = await find_resource(client, FLEET_GROUP, kind)
    return list((await client.list(resource, namespace))["items"])


async def _read_workload(
    client: ApiClient, cluster: Key, rendered: Sequence[Obj]
) -> dict[ObjectKey, Obj]:
    secret = await client.get(SECRETS, f"{cluster.name}-kubeconfig", cluster.namespace)
    kubeconfig = base64.b64decode(text_at(secret, "data", "value"))
    workload = parse_kubeconfig(kubeconfig).client(name="workload")

    objects: dict[ObjectKey, Obj] = {}
    try:
        for obj in rendered:
            name = str(obj["metadata"]["name"])
            namespace = text_at(obj, "metadata", "namespace")
            try:
                resource = await Discovery(workload).resource(obj)
                live = await workload.get(resource, name, namespace if resource.namespaced else "")
            except (NotFound, LookupError):
                continue
            objects[obj["kind"], namespace, name] = live
    finally:
        await workload.close()
    return objects
