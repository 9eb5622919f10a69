"""Stand-in for a bootstrap provider: creates bootstrap data for each bootstrap object (e.g. RKE2Config) of a Machine.

By contract the data is a Secret of the same name, created once; later changes of the spec have no effect.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
from collections.abc import Mapping

from caphv.api.names import CONTROL_PLANE_LABEL
from caphv.api.object import (
    CONFIG_MAPS,
    SECRETS,
    Key,
    Obj,
    being_deleted,
    key_of,
    labels_of,
    owner_reference,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.capi import bootstrapstatus, secrets, userdata
from sandbox.capi.caches import Caches, cluster_key
from sandbox.capi.nodeconfig import Node, Role, UnusableConfigError, registries, registry_secrets
from sandbox.capi.resources import MACHINES, condition, paused

log = logging.getLogger(__name__)

# Retry interval for a file whose source does not exist yet, and for values that a provider cannot use.
_RETRY_SECONDS = 2.0
_IGNITION = "ignition"


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
        caches.control_planes.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))

    def _enqueue(self, cluster: Key | None) -> None:
        for config in self._caches.configs.store:
            # Completed objects are not reconciled again when their cluster changes.
            if cluster is not None and cluster_key(config) == cluster and not bootstrapstatus.is_done(config):
                self.controller.enqueue(key_of(config))

    async def _reconcile(self, key: Key) -> Result | None:
        config = self._caches.configs.get(*key)
        if config is None or being_deleted(config) or bootstrapstatus.is_done(config):
            return None
        owner = owner_reference(config, MACHINES.kind, MACHINES.group)
        machine = self._caches.machines.get(key.namespace, owner["name"]) if owner else None
        cluster = self._caches.clusters.get(key.namespace, machine["spec"]["clusterName"]) if machine else None
        if machine is None or cluster is None or paused(cluster, config):
            return None

        if (machine["spec"].get("bootstrap") or {}).get("dataSecretName") and is_provisioned(cluster):
            # Moved or restored, without its status: the data is that of a guest that runs.
            await self._report(config, bootstrapstatus.done(config, Role.FIRST, self._distribution.contract))
            return None
        role = role_of(cluster, machine, self._caches.machines_of(key_of(cluster), control_plane=True))
        credentials = secrets.credentials(self._caches.secrets, key_of(cluster), self._distribution)
        node = None
        if role is not None and credentials is not None and is_provisioned(cluster):
            node = self._node(role, cluster, machine, config, credentials.token)
        if node is None or credentials is None:
            await self._report(config, bootstrapstatus.waiting(config, cluster, self._distribution.contract))
            return None

        try:
            text = await self._data(key.namespace, node, credentials)
        except (LookupError, UnusableConfigError) as error:
            # As with the real providers, no condition says so.
            log.error("%s %s: %s", self._distribution.configs.kind, key, error)
            await self._report(config, bootstrapstatus.failed(config, node.role, self._distribution.contract))
            return Result(requeue_after=_RETRY_SECONDS)

        await self._write(key_of(cluster), config, text)
        await self._record_version(config, node.version)
        await self._report(config, bootstrapstatus.done(config, node.role, self._distribution.contract))
        return None

    def _control_plane(self, cluster: Obj) -> Obj:
        reference = cluster["spec"].get("controlPlaneRef") or {}
        return self._caches.control_planes.get(cluster["metadata"]["namespace"], str(reference.get("name"))) or {}

    def _node(self, role: Role, cluster: Obj, machine: Obj, config: Obj, token: str) -> Node | None:
        """Return the node of a machine; None while it has no address to join at."""
        endpoint = endpoint_of(cluster)
        if not endpoint:
            return None
        control_plane, joins_at = self._control_plane(cluster), ""
        if not self._distribution.is_k3s and role is not Role.FIRST:
            addresses = (control_plane.get("status") or {}).get("availableServerIPs") or ()
            if not addresses:
                return None
            joins_at = str(addresses[0])
        spec = config.get("spec") or {}
        return Node(
            role,
            str(spec.get("version") or machine["spec"]["version"]),
            endpoint,
            spec,
            self._distribution.server_spec(control_plane) if control_plane else {},
            cluster["spec"].get("clusterNetwork") or {},
            token,
            joins_at,
        )

    async def _data(self, namespace: str, node: Node, credentials: secrets.Credentials) -> str:
        """The data of a guest. Raises LookupError, UnusableConfigError."""
        files = [await self._file(namespace, entry) for entry in node.config.get("files") or ()]
        folder = f"/var/lib/rancher/{self._distribution.title}/server/tls"
        authorities = [
            file
            for suffix, name in self._distribution.authorities.items()
            for pair in [credentials.authorities[suffix].pair]
            for file in userdata.authority_files(folder, name, pair.certificate, pair.key)
        ]
        own: list[Obj] = []
        if not self._distribution.is_k3s:
            spec = node.config.get("privateRegistriesConfig") or {}
            content, certificates = registries(spec, await self._registry_secrets(spec))
            own = [*certificates, userdata.registries_file(content)]
        guest = userdata.Guest(node, files, own, authorities if node.role is Role.FIRST else ())
        return userdata.render(self._distribution, guest)

    async def _registry_secrets(self, spec: Mapping[str, Obj]) -> dict[str, dict[str, bytes]]:
        found = {}
        for namespace, name in registry_secrets(spec):
            try:
                found[f"{namespace}/{name}"] = secrets.values(await self._client.get(SECRETS, name, namespace))
            except NotFound:
                log.debug("Secret %s/%s does not exist", namespace, name)
        return found

    async def _write(self, cluster: Key, config: Obj, text: str) -> None:
        spec, data = config.get("spec") or {}, text.encode()
        content = {}
        if not self._distribution.is_k3s:
            form = (spec.get("agentConfig") or {}).get("format") or "cloud-config"
            content["format"] = form.encode()
            if form == _IGNITION:
                data = json.dumps({"ignition": {"version": "3.3.0"}}).encode()
        content["value"] = gzip.compress(data) if spec.get("gzipUserData") else data
        secret = secrets.cluster_secret(cluster, config["metadata"]["name"], content, config)
        try:
            await self._client.create(SECRETS, secret)
        except AlreadyExists:
            await self._client.replace(SECRETS, secret)

    async def _record_version(self, config: Obj, version: str) -> None:
        """K3s's provider writes the version that it used into the spec."""
        if not self._distribution.is_k3s or (config.get("spec") or {}).get("version"):
            return
        key, patch = key_of(config), {"spec": {"version": version}}
        self._caches.configs.observe(
            await self._client.patch(self._distribution.configs, key.name, key.namespace, patch)
        )

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

    async def _report(self, config: Obj, status: Obj) -> None:
        before = config.get("status") or {}
        if {field: before.get(field) for field in status} != status:
            answer = await self._client.patch(
                self._distribution.configs,
                config["metadata"]["name"],
                config["metadata"]["namespace"],
                {"status": status},
                subresource="status",
            )
            self._caches.configs.observe(answer)


def role_of(cluster: Obj, machine: Obj, control_plane_machines: list[Obj]) -> Role | None:
    """What a machine will be; None while it waits for the first server.

    Before the control plane is initialized, only the oldest of its machines gets data.
    """
    is_server = CONTROL_PLANE_LABEL in labels_of(machine)
    if condition(cluster, "ControlPlaneInitialized") == "True":
        return Role.SERVER if is_server else Role.WORKER
    oldest = min(
        control_plane_machines,
        key=lambda obj: (str(obj["metadata"].get("creationTimestamp") or ""), key_of(obj).name),
        default=None,
    )
    return Role.FIRST if is_server and oldest is not None and key_of(oldest) == key_of(machine) else None


def is_provisioned(cluster: Obj) -> bool:
    """Whether the infrastructure of a cluster is provisioned; its failure domains are known from then on."""
    return bool(((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"))


def endpoint_of(cluster: Obj) -> str:
    """`host:port` of the workload API; empty if unknown."""
    endpoint = cluster["spec"].get("controlPlaneEndpoint") or {}
    return f"{endpoint['host']}:{endpoint['port']}" if endpoint.get("host") and endpoint.get("port") else ""
