"""Stand-in for a bootstrap provider: creates bootstrap data for each bootstrap object (e.g. RKE2Config) of a Machine.

By contract the data is a Secret of the same name, created once; later changes of the spec have no effect.
"""

from __future__ import annotations

import base64
import json

from caphv.api.names import CONTROL_PLANE_LABEL
from caphv.api.object import (
    CONFIG_MAPS,
    SECRETS,
    Key,
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    labels_of,
    owner_reference,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.capi import cloudconfig, secrets
from sandbox.capi.caches import Caches, cluster_key
from sandbox.capi.distribution import Node
from sandbox.capi.resources import MACHINES, condition, merged_conditions, paused

# Retry interval for a file whose source does not exist yet.
_RETRY_SECONDS = 2.0


class Bootstrap:
    """The controller for the bootstrap objects of one distribution."""

    def __init__(self, client: ApiClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._distribution = caches.distribution
        self.controller = Controller(f"{self._distribution.name}-bootstrap", self._reconcile, concurrency=8)
        caches.configs.add_handler(lambda change: self.controller.enqueue(change.key))
        caches.machines.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))
        caches.clusters.add_handler(lambda change: self._enqueue(change.key))
        caches.secrets.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))

    def _enqueue(self, cluster: Key | None) -> None:
        for config in self._caches.configs.store:
            # Completed objects are not reconciled again when their cluster changes.
            if cluster is not None and cluster_key(config) == cluster and not _done(config):
                self.controller.enqueue(key_of(config))

    async def _reconcile(self, key: Key) -> Result | None:
        config = self._caches.configs.get(*key)
        if config is None or being_deleted(config) or _done(config):
            return None
        owner = owner_reference(config, MACHINES.kind, MACHINES.group)
        machine = self._caches.machines.get(key.namespace, owner["name"]) if owner else None
        cluster = self._caches.clusters.get(key.namespace, machine["spec"]["clusterName"]) if machine else None
        if machine is None or cluster is None or paused(cluster, config):
            return None
        found = secrets.credentials(self._caches.secrets, key_of(cluster))
        waiting = missing_prerequisite(cluster, machine, has_credentials=found is not None)
        if waiting or found is None:
            await self._report(config, waiting)
            return None
        try:
            files = [await self._file(key.namespace, entry) for entry in config.get("spec", {}).get("files") or ()]
        except LookupError as missing:
            await self._report(config, str(missing))
            return Result(requeue_after=_RETRY_SECONDS)
        node = Node(endpoint_of(cluster), config.get("spec") or {}, self._server(machine), found.token)
        guest = cloudconfig.Guest(node, machine["spec"]["version"], found.authority, files)
        await self._write(key_of(cluster), config, cloudconfig.render(self._distribution, guest))
        await self._report(config, "")
        return None

    def _server(self, machine: Obj) -> Obj | None:
        if CONTROL_PLANE_LABEL not in labels_of(machine):
            return None
        found: Obj = json.loads(annotations_of(machine).get(self._distribution.server_annotation) or "{}")
        return found

    async def _write(self, cluster: Key, config: Obj, data: str) -> None:
        content = {"value": data.encode(), "format": b"cloud-config"}
        secret = secrets.cluster_secret(cluster, config["metadata"]["name"], content, config)
        try:
            await self._client.create(SECRETS, secret)
        except AlreadyExists:
            await self._client.replace(SECRETS, secret)

    async def _file(self, namespace: str, entry: Obj) -> Obj:
        """Resolve the content of a file. Raises LookupError."""
        source = entry.get("contentFrom") or {}
        for field, resource in (("secret", SECRETS), ("configMap", CONFIG_MAPS)):
            if field not in source:
                continue
            name, key = source[field]["name"], source[field]["key"]
            try:
                data = (await self._client.get(resource, name, namespace)).get("data") or {}
                content = base64.b64decode(data[key]).decode() if resource is SECRETS else data[key]
            except (NotFound, KeyError):
                raise LookupError(f"{resource.kind} {name} with key {key} for file {entry['path']}") from None
            return {**entry, "content": content}
        return entry

    async def _report(self, config: Obj, waiting: str) -> None:
        name, message = config["metadata"]["name"], f"Waiting for {waiting}" if waiting else ""
        wanted = [_condition(kind, not waiting, message) for kind in ("DataSecretAvailable", "Ready")]
        status: Obj = {"conditions": merged_conditions(config, wanted)}
        if not waiting:
            done: Obj = {"initialization": {"dataSecretCreated": True}}
            status |= {
                "dataSecretName": name,
                **({"ready": True} if self._distribution.contract == "v1beta1" else done),
            }
        before = config.get("status") or {}
        if {field: before.get(field) for field in status} != status:
            answer = await self._client.patch(
                self._distribution.configs,
                name,
                config["metadata"]["namespace"],
                {"status": status},
                subresource="status",
            )
            self._caches.configs.observe(answer)


def missing_prerequisite(cluster: Obj, machine: Obj, *, has_credentials: bool) -> str:
    """What a machine's bootstrap data waits for; empty if nothing."""
    if not is_provisioned(cluster):
        return "the infrastructure of the cluster"
    if not endpoint_of(cluster):
        return "the endpoint of the control plane"
    if CONTROL_PLANE_LABEL not in labels_of(machine) and condition(cluster, "ControlPlaneInitialized") != "True":
        return "the control plane"
    return "" if has_credentials else "the CA and token of the cluster"


def is_provisioned(cluster: Obj) -> bool:
    """Whether the infrastructure of a cluster is provisioned; its failure domains are known from then on."""
    return bool(((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


def endpoint_of(cluster: Obj) -> str:
    """`host:port` of the workload API; empty if unknown."""
    endpoint = cluster["spec"].get("controlPlaneEndpoint") or {}
    return f"{endpoint['host']}:{endpoint['port']}" if endpoint.get("host") and endpoint.get("port") else ""


def _done(config: Obj) -> bool:
    return bool((config.get("status") or {}).get("dataSecretName"))


def _condition(kind: str, good: bool, message: str) -> Obj:
    reason = kind if good else "Waiting"
    return {"type": kind, "status": str(good), "reason": reason, "message": message}
