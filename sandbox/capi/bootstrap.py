"""Stand-in for a bootstrap provider: creates the bootstrap data of Machines.

It reconciles the bootstrap objects of a distribution, such as RKE2Config. By contract the data is a
Secret of the same name, created once; later changes of the spec have no effect.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
from collections.abc import Iterable
from dataclasses import replace

from caphv.api.names import CONTROL_PLANE_LABEL
from caphv.api.object import (
    CONFIG_MAPS,
    SECRETS,
    Key,
    Obj,
    at,
    being_deleted,
    key_of,
    labels_of,
    list_at,
    owner_reference,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.capi import bootstrapstatus, secrets, userdata
from sandbox.capi.caches import Caches, cluster_key
from sandbox.capi.nodeconfig import (
    Node,
    Role,
    UnusableConfigError,
    etcd_snapshots,
    registries,
    registry_secrets,
    snapshot_secrets,
)
from sandbox.capi.resources import MACHINES, condition, is_paused

log = logging.getLogger(__name__)

# The retry interval for a file whose source does not exist yet, and for values that a provider
# cannot use.
_RETRY_SECONDS = 2.0
_IGNITION = "ignition"


class Bootstrap:
    """The controller for the bootstrap objects of one distribution."""

    def __init__(self, client: ApiClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._distribution = caches.distribution
        self._contract = caches.distribution.contract
        self.controller = Controller(
            f"{self._distribution.name}-bootstrap", self._reconcile, concurrency=8
        )
        caches.configs.add_handler(lambda change: self.controller.enqueue(change.key))
        caches.machines.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))
        caches.clusters.add_handler(lambda change: self._enqueue(change.key))
        caches.secrets.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))
        caches.control_planes.add_handler(lambda change: self._enqueue(cluster_key(change.obj)))

    def _enqueue(self, cluster: Key | None) -> None:
        if cluster is None:
            return
        for config in self._caches.configs.store:
            # Completed objects are not reconciled again when their cluster changes.
            if cluster_key(config) == cluster and not bootstrapstatus.is_done(config):
                self.controller.enqueue(key_of(config))

    async def _reconcile(self, key: Key) -> Result | None:
        config = self._caches.configs.get(*key)
        if config is None or being_deleted(config) or bootstrapstatus.is_done(config):
            return None
        machine, cluster = self._owners(config)
        if machine is None or cluster is None or is_paused(cluster, config):
            return None

        if at(machine, "spec", "bootstrap", "dataSecretName") and is_provisioned(cluster):
            # The object was moved or restored without its status. The running guest has used its
            # data.
            await self._report(
                config, bootstrapstatus.done_status(config, Role.FIRST, self._contract)
            )
            return None

        control_plane_machines = self._caches.machines_of(key_of(cluster), control_plane=True)
        role = role_of(cluster, machine, control_plane_machines)
        credentials = secrets.credentials(self._caches.secrets, key_of(cluster), self._distribution)
        node = None
        if role is not None and credentials is not None and is_provisioned(cluster):
            node = self._node(role, cluster, machine, config, credentials.token)
        if node is None or credentials is None:
            await self._report(
                config, bootstrapstatus.waiting_status(config, cluster, self._contract)
            )
            return None

        try:
            text = await self._render(key.namespace, node, credentials)
        except (LookupError, UnusableConfigError) as error:
            # Like the real providers, report the reason in no condition.
            log.error("%s %s: %s", self._distribution.configs.kind, key, error)
            await self._report(
                config, bootstrapstatus.failed_status(config, node.role, self._contract)
            )
            return Result(requeue_after=_RETRY_SECONDS)

        # Write the status last, because it tells the core that the Secret exists.
        await self._write_secret(key_of(cluster), config, text)
        await self._record_version(config, node.version)
        await self._report(config, bootstrapstatus.done_status(config, node.role, self._contract))
        return None

    def _owners(self, config: Obj) -> tuple[Obj | None, Obj | None]:
        """Return the Machine and the Cluster of a bootstrap object, each None if unknown."""
        namespace = key_of(config).namespace
        owner = owner_reference(config, MACHINES.kind, MACHINES.group)
        machine = self._caches.machines.get(namespace, owner["name"]) if owner else None
        if machine is None:
            return None, None
        return machine, self._caches.clusters.get(namespace, machine["spec"]["clusterName"])

    def _control_plane(self, cluster: Obj) -> Obj | None:
        namespace = key_of(cluster).namespace
        name = at(cluster, "spec", "controlPlaneRef", "name")
        return self._caches.control_planes.get(namespace, str(name))

    def _node(self, role: Role, cluster: Obj, machine: Obj, config: Obj, token: str) -> Node | None:
        """Return the node of a machine, None while it has no address to join at."""
        endpoint = endpoint_of(cluster)
        if not endpoint:
            return None

        # Nodes of K3s join at the endpoint. Nodes of RKE2 join at a server that is ready.
        control_plane = self._control_plane(cluster)
        joins_at = ""
        if not self._distribution.is_k3s and role is not Role.FIRST:
            addresses = list_at(control_plane, "status", "availableServerIPs")
            if not addresses:
                return None
            joins_at = str(addresses[0])

        spec = config.get("spec") or {}
        return Node(
            role=role,
            version=str(spec.get("version") or machine["spec"]["version"]),
            endpoint=endpoint,
            config=spec,
            server=self._distribution.server_spec(control_plane) if control_plane else {},
            network=cluster["spec"].get("clusterNetwork") or {},
            token=token,
            joins_at=joins_at,
        )

    async def _render(self, namespace: str, node: Node, credentials: secrets.Credentials) -> str:
        """Return the data of a guest. Raises `LookupError`, `UnusableConfigError`."""
        files = [
            await self._resolve_file(namespace, entry) for entry in node.config.get("files") or ()
        ]

        registry_files: list[Obj] = []
        if not self._distribution.is_k3s:
            spec = node.config.get("privateRegistriesConfig") or {}
            data = await self._read_secrets(registry_secrets(spec))
            content, certificates = registries(spec, data)
            registry_files = [*certificates, userdata.registries_file(content)]
        if not self._distribution.is_k3s and node.role is not Role.WORKER:
            data = await self._read_secrets(snapshot_secrets(node.server))
            snapshots, store_files = etcd_snapshots(node.server, data)
            node = replace(node, snapshots=snapshots)
            registry_files += store_files

        # Other servers take the CAs from the first one.
        authority_files: list[Obj] = []
        if node.role is Role.FIRST:
            folder = f"/var/lib/rancher/{self._distribution.title}/server/tls"
            for suffix, name in self._distribution.authorities.items():
                pair = credentials.authorities[suffix].pair
                authority_files += userdata.authority_files(
                    folder, name, pair.certificate, pair.key
                )

        guest = userdata.Guest(node, files, registry_files, authority_files)
        return userdata.render(self._distribution, guest)

    async def _read_secrets(
        self, references: Iterable[tuple[str, str]]
    ) -> dict[str, dict[str, bytes]]:
        """Return the data of the Secrets that exist, by `namespace/name`."""
        data = {}
        for namespace, name in references:
            try:
                secret = await self._client.get(SECRETS, name, namespace)
            except NotFound:
                log.debug("Secret %s/%s does not exist", namespace, name)
            else:
                data[f"{namespace}/{name}"] = secrets.values(secret)
        return data

    async def _write_secret(self, cluster: Key, config: Obj, text: str) -> None:
        spec = config.get("spec") or {}
        data = text.encode()
        content = {}
        if not self._distribution.is_k3s:
            data_format = at(spec, "agentConfig", "format") or "cloud-config"
            content["format"] = data_format.encode()
            if data_format == _IGNITION:
                data = json.dumps({"ignition": {"version": "3.3.0"}}).encode()
        content["value"] = gzip.compress(data) if spec.get("gzipUserData") else data

        secret = secrets.cluster_secret(cluster, config["metadata"]["name"], content, config)
        try:
            await self._client.create(SECRETS, secret)
        except AlreadyExists:
            # An earlier reconcile ended before it reported the Secret.
            await self._client.replace(SECRETS, secret)

    async def _record_version(self, config: Obj, version: str) -> None:
        """Write the version into the spec, as K3s's provider does."""
        if not self._distribution.is_k3s or at(config, "spec", "version"):
            return
        key = key_of(config)
        patch = {"spec": {"version": version}}
        resource = self._distribution.configs
        answer = await self._client.patch(resource, key.name, key.namespace, patch)
        self._caches.configs.observe(answer)

    async def _resolve_file(self, namespace: str, entry: Obj) -> Obj:
        """Return a file with its content, which may come from a Secret or ConfigMap.

        Raises `LookupError` if the source lacks the key.
        """
        source = entry.get("contentFrom") or {}
        for field, resource in (("secret", SECRETS), ("configMap", CONFIG_MAPS)):
            if field not in source:
                continue

            name = source[field]["name"]
            key = source[field]["key"]
            try:
                data = (await self._client.get(resource, name, namespace)).get("data") or {}
                content = base64.b64decode(data[key]).decode() if resource is SECRETS else data[key]
            except (NotFound, KeyError):
                raise LookupError(
                    f"{resource.kind} {name} with key {key} for file {entry['path']}"
                ) from None
            return {**entry, "content": content}
        return entry

    async def _report(self, config: Obj, status: Obj) -> None:
        await self._caches.write_status(self._caches.configs, config, status)


def role_of(cluster: Obj, machine: Obj, control_plane_machines: list[Obj]) -> Role | None:
    """Return the role of a machine, None while it waits for the first server.

    Before the control plane is initialized, only the oldest of its machines gets data.
    """
    is_server = CONTROL_PLANE_LABEL in labels_of(machine)
    if condition(cluster, "ControlPlaneInitialized") == "True":
        return Role.SERVER if is_server else Role.WORKER
    if not is_server or not control_plane_machines:
        return None

    # The name decides between machines of the same second, so that the choice never changes.
    oldest = min(
        control_plane_machines,
        key=lambda obj: (str(obj["metadata"].get("creationTimestamp") or ""), key_of(obj).name),
    )
    return Role.FIRST if key_of(oldest) == key_of(machine) else None


def is_provisioned(cluster: Obj) -> bool:
    """Return whether the infrastructure of a cluster is provisioned.

    From then on, the failure domains of the cluster are known.
    """
    return bool(at(cluster, "status", "initialization", "infrastructureProvisioned"))


def endpoint_of(cluster: Obj) -> str:
    """Return `host:port` of the workload API, empty if unknown."""
    endpoint = cluster["spec"].get("controlPlaneEndpoint") or {}
    if not endpoint.get("host") or not endpoint.get("port"):
        return ""
    return f"{endpoint['host']}:{endpoint['port']}"
