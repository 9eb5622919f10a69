"""Stand-in for Talos's bootstrap provider: creates machine configurations.

Unlike the providers of RKE2 and K3s, it does not wait for the control plane: all machines of a
cluster get their data once its infrastructure is provisioned.
"""

from __future__ import annotations

import logging

import yaml

from caphv.api.names import CONTROL_PLANE_LABEL
from caphv.api.object import (
    SECRETS,
    Key,
    Obj,
    at,
    being_deleted,
    key_of,
    labels_of,
    owner_reference,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists
from sandbox.capi import secrets
from sandbox.capi.bootstrap import endpoint_of, is_provisioned
from sandbox.capi.caches import ProviderCaches, cluster_key
from sandbox.capi.nodeconfig import UnusableConfigError
from sandbox.capi.resources import (
    MACHINES,
    false_condition,
    is_paused,
    true_condition,
    with_transition_times,
)
from sandbox.capi.talos.kinds import CONFIGS, bundle_name, client_config_name
from sandbox.capi.talos.machineconfig import authority, client_config, machine_config, new_bundle

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0


class TalosBootstrap:
    """The controller for TalosConfigs."""

    def __init__(self, client: ApiClient, caches: ProviderCaches) -> None:
        self._client = client
        self._caches = caches
        self.controller = Controller("talos-bootstrap", self._reconcile, concurrency=8)
        caches.configs.add_handler(lambda change: self.controller.enqueue(change.key))
        for informer in (caches.machines, caches.clusters):
            # A Cluster has no label with its own name, but its key is the key of the cluster.
            informer.add_handler(
                lambda change: self._enqueue(cluster_key(change.obj) or change.key)
            )

    def _enqueue(self, cluster: Key) -> None:
        for config in self._caches.configs.store:
            machine = self._machine_of(config)
            if machine is not None and cluster_key(machine) == cluster and not _is_ready(config):
                self.controller.enqueue(key_of(config))

    def _machine_of(self, config: Obj) -> Obj | None:
        owner = owner_reference(config, MACHINES.kind, MACHINES.group)
        if owner is None:
            return None
        return self._caches.machines.get(key_of(config).namespace, owner["name"])

    async def _reconcile(self, key: Key) -> Result | None:
        config = self._caches.configs.get(*key)
        machine = self._machine_of(config) if config else None
        if config is None or machine is None or being_deleted(config) or _is_ready(config):
            return None
        cluster = self._caches.clusters.get(key.namespace, machine["spec"]["clusterName"])
        if cluster is None or is_paused(cluster, config):
            return None

        if not is_provisioned(cluster) or not endpoint_of(cluster):
            await self._report(config, _waiting_status(config))
            return None
        name = at(machine, "spec", "bootstrap", "dataSecretName")
        if name:
            # The object was moved or restored without its status.
            await self._report(config, _ready_status(config, name))
            return None

        try:
            name = await self._ensure_data(config, cluster, machine)
        except UnusableConfigError as error:
            log.error("%s %s: %s", CONFIGS.kind, key, error)
            await self._report(config, _failed_status(config, str(error)))
            return Result(requeue_after=_RETRY_SECONDS)

        # Write the status last, because it tells the core that the Secret exists.
        await self._report(config, _ready_status(config, name))
        return None

    async def _ensure_data(self, config: Obj, cluster: Obj, machine: Obj) -> str:
        """Create the missing Secrets and return the name of that with the machine configuration.

        Raises `UnusableConfigError`.
        """
        key = key_of(cluster)
        content = {"bundle": yaml.safe_dump(new_bundle(key.name)).encode()}
        stored = await self._ensure_secret(bundle_name(key), content, cluster, cluster)
        bundle = yaml.safe_load(stored["bundle"])

        pair = authority(bundle, "k8s").pair
        content = {"tls.crt": pair.certificate, "tls.key": pair.key}
        await self._ensure_secret(f"{key.name}-ca", content, cluster, cluster)
        if CONTROL_PLANE_LABEL in labels_of(machine):
            content = {"talosconfig": yaml.safe_dump(client_config(key.name, bundle)).encode()}
            await self._ensure_secret(client_config_name(key), content, cluster, cluster)

        text = machine_config(config["spec"], cluster, machine, bundle)
        name = f"{key_of(machine).name}-bootstrap-data"
        await self._ensure_secret(name, {"value": text.encode()}, cluster, config)
        return name

    async def _ensure_secret(
        self, name: str, content: dict[str, bytes], cluster: Obj, owner: Obj
    ) -> dict[str, bytes]:
        """Create a Secret of a cluster, unless it exists, and return its content."""
        key = key_of(cluster)
        secret = self._caches.secrets.get(key.namespace, name)
        if secret is None:
            new = {**secrets.cluster_secret(key, name, content, owner), "type": "Opaque"}
            try:
                secret = await self._client.create(SECRETS, new)
            except AlreadyExists:
                # Another machine's reconcile was faster.
                secret = await self._client.get(SECRETS, name, key.namespace)
            self._caches.secrets.observe(secret)
        return secrets.values(secret)

    async def _report(self, config: Obj, status: Obj) -> None:
        await self._caches.write_status(self._caches.configs, config, status)


def _is_ready(config: Obj) -> bool:
    return bool(at(config, "status", "ready"))


def _waiting_status(config: Obj) -> Obj:
    return _status(config, "WaitingForClusterInfrastructure", "Info", "")


def _failed_status(config: Obj, message: str) -> Obj:
    return _status(config, "DataSecretGenerationFailed", "Error", message)


def _status(config: Obj, reason: str, severity: str, message: str) -> Obj:
    conditions = [
        false_condition(kind, severity, reason, message)
        for kind in ("Ready", "DataSecretAvailable")
    ]
    return {"conditions": with_transition_times(config, conditions)}


def _ready_status(config: Obj, name: str) -> Obj:
    kinds = ("Ready", "ClientConfigAvailable", "DataSecretAvailable")
    return {
        "ready": True,
        "dataSecretName": name,
        "observedGeneration": config["metadata"].get("generation", 1),
        "conditions": with_transition_times(config, map(true_condition, kinds)),
    }
