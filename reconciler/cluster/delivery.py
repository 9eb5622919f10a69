"""Deliver a cloud config into a ConfigMap, into a Secret, or into files of guests.

Each step returns the seconds until it has to run again, None if nothing expires. It raises
`Blocked` while it cannot deliver.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import orjson

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import (
    CONFIG_MAPS,
    SECRETS,
    Key,
    Obj,
    annotations_of,
    at,
    being_deleted,
    key_of,
    text_at,
    uid_of,
)
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, Unauthorized, Unreachable
from caphv.runtime.text import off_loop
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.cluster import cloudaccount, references
from reconciler.cluster.guestsecret import (
    digest,
    intact,
    is_ours,
    renewal,
    secret_object,
)
from reconciler.cluster.manifest import ManifestError, with_credentials
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import SECRET
from reconciler.harvester.kubeconfig import kubeconfig
from reconciler.memory.cluster import VerifiedObject
from reconciler.triggers import Delay, Trigger, Watched

# Seconds between two writes of the Secret in the workload cluster.
_REWRITE_SECONDS = 5.0
# Seconds until the next check of clusters that name the same ConfigMap, whose end no watch reports.
_SHARED_SECONDS = 60.0
_READY = ConditionType.CLOUD_PROVIDER_CONFIG_READY


async def deliver_manifest(scope: ClusterScope) -> float | None:
    """Write the kubeconfig into the manifests of the user's ConfigMap.

    Raises `Blocked` while the ConfigMap is missing, has not been read, or may not be used.
    """
    config = scope.obj["spec"]["updateCloudProviderConfig"]
    target = Key(config["manifestsConfigMapNamespace"], config["manifestsConfigMapName"])
    missing = f"ConfigMap {target} of updateCloudProviderConfig does not exist; create it"
    refused = await references.refused_references(scope)
    if any(reference.key == target and reference.kind == CONFIG_MAPS.kind for reference in refused):
        raise _forbidden_config_map(scope, target)

    watch = await scope.context.object_watches.ensure(
        scope.key, scope.context.client, CONFIG_MAPS, target
    )
    if watch is None:
        raise _progress(f"reading ConfigMap {target}", Watched.OBJECT, cause=Cause.UNKNOWN)

    # Nothing has to be done if this version was verified with the same inputs.
    cached = watch.get(*target)
    inputs = _inputs(scope)
    if cached is None:
        raise _failure(missing)
    _require_own_manifests(scope, cached)
    verified = scope.memory.guest.verified
    if verified.get(deliver_manifest.__name__) == VerifiedObject(
        cached["metadata"]["resourceVersion"], inputs
    ):
        return None

    # The watch has only metadata, so read the content here, and check its permission again.
    content = await _lasting_kubeconfig(scope)
    try:
        config_map = await scope.context.client.get(CONFIG_MAPS, target.name, target.namespace)
    except NotFound:
        watch.forget(*target)
        raise _failure(missing) from None
    if not references.may_use(config_map, scope.obj):
        watch.observe(config_map)  # the cached version permitted the use
        raise _forbidden_config_map(scope, target)

    patch = await _manifest_patch(config, config_map, content)
    if patch:
        config_map = await scope.context.client.patch(
            CONFIG_MAPS, target.name, target.namespace, patch
        )
        watch.observe(config_map)
        scope.event(
            "CloudConfigWritten",
            f"wrote the credentials of the cloud provider to ConfigMap {target}",
        )
    verified[deliver_manifest.__name__] = VerifiedObject(
        config_map["metadata"]["resourceVersion"], inputs
    )
    return None


def _require_own_manifests(scope: ClusterScope, config_map: Obj) -> None:
    """Raise `Blocked` if an older cluster delivers its cloud config to the same place.

    Clusters of one template may name the same ConfigMap. They would replace the credentials of each
    other all the time, and a guest would get those of another one.

    :param config_map: metadata of the ConfigMap, which decide who may use it
    """

    def age(obj: Obj) -> tuple[str, Key]:
        return text_at(obj, "metadata", "creationTimestamp"), key_of(obj)

    place = scope.obj["spec"]["updateCloudProviderConfig"]
    target = key_of(config_map)
    users = [
        obj
        for obj in scope.context.caches.harvester_clusters.store
        if at(obj, "spec", "updateCloudProviderConfig") == place
        and not being_deleted(obj)
        and references.may_use(config_map, obj)
        and (scope.context.cross_namespace_refs or key_of(obj).namespace == target.namespace)
    ]
    oldest = min([scope.obj, *users], key=age)
    if key_of(oldest) != scope.key:
        raise _failure(
            f"ConfigMap {target} of updateCloudProviderConfig has the credentials of "
            f"HarvesterCluster {key_of(oldest)}, which names it, too: give this cluster a "
            "ConfigMap of its own",
            Delay(_SHARED_SECONDS),
        )


async def _manifest_patch(config: Obj, config_map: Obj, content: str) -> Obj | None:
    """Return the patch that puts the kubeconfig into the manifests, None if they have it.

    :param config: `updateCloudProviderConfig` of the HarvesterCluster
    """
    manifest_key = config["manifestsConfigMapKey"]
    secret = config["cloudConfigCredentialsSecretName"]
    key = config["cloudConfigCredentialsSecretKey"]
    present = at(config_map, "data", manifest_key) or ""
    try:
        intended = await off_loop(
            len(present), lambda: with_credentials(present, secret, key, content)
        )
    except ManifestError as error:
        target = Key(config["manifestsConfigMapNamespace"], config["manifestsConfigMapName"])
        raise _failure(f"key {manifest_key} of ConfigMap {target} {error}") from None

    if intended == present:
        return None
    version = config_map["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "data": {manifest_key: intended}}


async def deliver_secret(scope: ClusterScope, *, create: bool = True) -> float | None:
    """Maintain the Secret in the workload cluster. Return the seconds until a token renewal.

    :param create: create a missing Secret; otherwise return None if it is missing
    """
    workloads = scope.context.workloads
    client = workloads.client(scope.cluster_key)
    if client is None or not workloads.has_answered(scope.cluster_key):
        message = "waiting for the API of the workload cluster"
        raise _progress(message, Watched.WORKLOAD, cause=Cause.UNKNOWN)
    watch = await scope.context.object_watches.ensure(scope.key, client, SECRETS, SECRET)
    if watch is None:
        message = f"reading Secret {SECRET} of the workload cluster"
        raise _progress(message, Watched.OBJECT, cause=Cause.UNKNOWN)

    secret = watch.get(*SECRET)
    inputs = _inputs(scope)
    if secret is None and not create:
        return None
    if secret and not is_ours(secret):
        raise _failure(
            f"Secret {SECRET} of the workload cluster exists and was not created by this provider; "
            "delete it"
        )

    # A token of a deleted account is invalid, whatever the annotations of the Secret say.
    if secret and not scope.memory.guest.account_lost:
        try:
            delay = await _renewal_delay(scope, client, secret, inputs)
        except NotFound:
            watch.forget(*SECRET)
            secret = None
        else:
            if delay:
                return delay

    written_at = scope.memory.guest.secret_written_at
    if written_at is not None and time.monotonic() - written_at < _REWRITE_SECONDS:
        # Another client keeps changing the Secret. Wait, because each rewrite costs a token.
        raise _progress(
            f"Secret {SECRET} of the workload cluster was modified right after it was written",
            Delay(_REWRITE_SECONDS),
        )
    return await _write_secret(scope, client, watch, secret, inputs)


async def _renewal_delay(
    scope: ClusterScope, client: ApiClient, secret: Obj, inputs: str
) -> float | None:
    """Return the seconds until the token in our Secret has to be renewed.

    Returns None if the Secret has to be written at once. Raises `NotFound` if it does not exist.

    :param client: client of the workload cluster
    :param secret: metadata of the Secret
    :param inputs: hash of all inputs of the kubeconfig
    """
    delay = renewal(secret, inputs, datetime.now(UTC))
    version = VerifiedObject(secret["metadata"]["resourceVersion"], inputs)
    verified = scope.memory.guest.verified
    if not delay or verified.get(deliver_secret.__name__) == version:
        return delay

    try:
        full = await client.get(SECRETS, SECRET.name, SECRET.namespace)
    except (Unreachable, Unauthorized) as error:
        raise _unreachable_workload(error) from None
    if not intact(full):
        return None
    verified[deliver_secret.__name__] = version
    return delay


async def _write_secret(
    scope: ClusterScope, client: ApiClient, watch: Informer, former: Obj | None, inputs: str
) -> float:
    """Write the Secret with a new token. Return the seconds until the token has to be renewed.

    :param client: client of the workload cluster
    :param watch: the cache of the Secret
    :param former: metadata of the existing Secret, None if there is none
    :param inputs: hash of all inputs of the kubeconfig
    """
    account = await cloudaccount.ensure_account(scope)
    issued_at = datetime.now(UTC)
    credentials, lifetime = await cloudaccount.bound_credentials(scope, account)
    # A third of the lifetime remains for an outage of this provider, or of Harvester.
    renew_after = lifetime * 2 / 3
    content = await build_kubeconfig(scope, credentials)

    uid = uid_of(scope.obj)
    secret = secret_object(uid, content, inputs, issued_at + renew_after, issued_at + lifetime)
    try:
        if former:
            # The version is a precondition, so that only the Secret that was checked is replaced.
            secret["metadata"]["resourceVersion"] = former["metadata"]["resourceVersion"]
            written = await client.replace(SECRETS, secret)
        else:
            written = await client.create(SECRETS, secret)
    except (Unreachable, Unauthorized) as error:
        raise _unreachable_workload(error) from None
    watch.observe(written)

    memory = scope.memory
    memory.guest.secret_written_at = time.monotonic()
    version = VerifiedObject(written["metadata"]["resourceVersion"], inputs)
    memory.guest.verified[deliver_secret.__name__] = version
    memory.guest.account_lost = False
    memory.guest.expiry_reported = ""

    scope.event(
        "CloudConfigWritten",
        f"wrote Secret {SECRET} of the workload cluster with a token valid for {_days(lifetime)}",
    )
    return max(1.0, renew_after.total_seconds())


async def deliver_file(scope: ClusterScope) -> float | None:
    """Provide machines with a kubeconfig that never expires, for a file of their guests."""
    verified = scope.memory.guest.verified
    inputs = _inputs(scope)
    version = VerifiedObject("", inputs)
    if verified.get(deliver_file.__name__) != version:
        publish(scope, await _lasting_kubeconfig(scope))
        verified[deliver_file.__name__] = version
    return None


def publish(scope: ClusterScope, content: str) -> None:
    """Provide machines with the kubeconfig for files of guests, and requeue waiting machines."""
    scope.memory.guest.kubeconfig = content
    scope.context.topics.notify(triggers.cloud_config(scope.key))


def _inputs(scope: ClusterScope) -> str:
    """Return a hash of all inputs of a cloud config. None of them is secret."""
    spec = scope.obj["spec"]
    parts = [
        scope.require_session().fingerprint,
        scope.target_namespace,
        spec.get("server"),
        spec.get("updateCloudProviderConfig"),
        spec.get("cloudConfig"),
        annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION),
    ]
    return digest(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS))


async def _lasting_kubeconfig(scope: ClusterScope) -> str:
    """Return a kubeconfig with a token that never expires."""
    account = await cloudaccount.ensure_account(scope)
    return await build_kubeconfig(scope, await cloudaccount.lasting_credentials(scope, account))


async def build_kubeconfig(scope: ClusterScope, credentials: cloudaccount.Credentials) -> str:
    """Return the kubeconfig with which guests connect to Harvester."""
    return kubeconfig(
        server=await cloudaccount.server(scope),
        ca=credentials.ca,
        token=credentials.token,
        namespace=scope.target_namespace,
    )


def _days(duration: timedelta) -> str:
    """Return a duration in words: in days, or in hours below two days."""
    hours = duration.total_seconds() / 3600
    return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.1f} hours"


# Reasons why a delivery is blocked


def _progress(message: str, source: Trigger, *, cause: Cause = Cause.MISSING) -> Blocked:
    """Return the `Blocked` of a delivery that continues without a user."""
    reason = Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS
    return Blocked(_READY, reason, message, source, cause=cause)


def _unreachable_workload(error: Exception) -> Blocked:
    """Return the `Blocked` of a delivery whose request to the workload API had no answer."""
    message = f"the API of the workload cluster does not answer: {error}"
    return _progress(message, Delay(10.0))


def _failure(message: str, *triggers: Trigger) -> Blocked:
    """Return the `Blocked` of a delivery until a user changes something.

    :param triggers: further triggers that may end it
    """
    reason = Reason.CLOUD_PROVIDER_CONFIG_FAILED
    return Blocked(_READY, reason, message, Watched.OBJECT, Watched.SELF, *triggers, warn=True)


def _forbidden_config_map(scope: ClusterScope, target: Key) -> Blocked:
    """Return the `Blocked` of a ConfigMap that the cluster may not use."""
    reference = f"ConfigMap {target} of updateCloudProviderConfig"
    return _failure(references.refusal(scope, reference))
