"""The kubeconfig with which cloud provider and CSI driver of a workload cluster connect to Harvester.

There are three ways of delivery, each from a field of the HarvesterCluster:

* `updateCloudProviderConfig` (contract): into the Secret inside a ConfigMap's manifests, which a ClusterResourceSet
  applies; with a token that never expires, because the manifests are applied only once.
* `cloudConfig.delivery: Secret`: into a Secret in the workload cluster that this provider maintains, with a token that
  is renewed after two thirds of its lifetime.
* `cloudConfig.delivery: File`: into a file of each guest at its first boot; this token never expires either.

None of them gates machines: a cloud provider starts when the cluster runs. Unchanged objects cause no requests: the
version of a verified object is remembered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import orjson

from caphv.api import names
from caphv.api.conditions import rfc3339
from caphv.api.names import ConditionType, Reason
from caphv.api.object import CONFIG_MAPS, SECRETS, Key, Obj, annotations_of, being_deleted, labels_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from caphv.runtime.text import off_loop
from reconciler import triggers
from reconciler.cluster import cloudaccount, references, refusals
from reconciler.cluster.identity import secret_of
from reconciler.cluster.manifest import ManifestError, with_credentials
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import SECRET, SECRET_KEYS
from reconciler.harvester.kubeconfig import kubeconfig
from reconciler.status import Blocked
from reconciler.triggers import Delay, Trigger, Watched

TOKEN_SECONDS = 7 * 24 * 3600
"""Lifetime of a bound token: an outage of the provider shorter than a third of it has no effect."""

_PAUSE = 5.0
_RETRY_RENEWAL = 60.0
_ACCOUNT_CHECK = 540.0
_READY = ConditionType.CLOUD_PROVIDER_CONFIG_READY
log = logging.getLogger(__name__)
_Step = Callable[[ClusterScope], Awaitable[float | None]]


async def ensure_cloud_config(scope: ClusterScope) -> None:
    """Deliver the cloud config as the spec says, and requeue for the renewal of a token.

    Failures affect only condition `CloudProviderConfigReady`.
    """
    steps = _steps(scope.obj["spec"])
    if not steps and not scope.draft.has(_READY):
        return
    try:
        if not steps:
            await delete_cloud_config(scope)
            scope.draft.drop(_READY)
            return
        await _check_account(scope)
        for step in steps:
            scope.requeue_within(await step(scope))
    except Blocked as blocked:
        scope.requeue_within(blocked.requeue_after)
        if blocked.unknown and scope.draft.is_true(_READY) and (left := scope.memory.grace.remaining(_READY)):
            scope.requeue_within(left)
            return
        if _report_expiry(scope, blocked.message):
            return
        if blocked.warn and not scope.draft.has_message(_READY, blocked.message):
            scope.warning_event(blocked.reason, blocked.message)
        scope.draft.set_false(_READY, blocked.reason, blocked.message)
    except (Forbidden, Invalid) as error:
        message = f"a request for the cloud config was refused {refusals.explained(error, scope.target_namespace)}"
        if not scope.draft.has_message(_READY, message):
            scope.warning_event(Reason.CLOUD_PROVIDER_CONFIG_FAILED, message)
        scope.draft.set_false(_READY, Reason.CLOUD_PROVIDER_CONFIG_FAILED, message)
        scope.requeue_within(60.0)
    else:
        scope.memory.grace.known(_READY)
        scope.draft.set_true(_READY)


async def renew_cloud_config(scope: ClusterScope, why: str) -> None:
    """Renew the token of guests while another phase cannot continue, for the reason `why`, or the cluster is paused.

    Guests lose their cloud provider when the token expires, whatever the state of their HarvesterCluster, and new ones
    get no file after a restart of this process. This creates nothing that does not exist, and changes no condition
    unless the token is about to expire.
    """
    delivery = (scope.obj["spec"].get("cloudConfig") or {}).get("delivery")
    if being_deleted(scope.obj):
        return
    if delivery == "File":
        await _restore_file(scope)
    elif delivery == "Secret":
        await _renew_secret(scope, why)


async def _restore_file(scope: ClusterScope) -> None:
    """Make the kubeconfig for files of guests again, which a restart has forgotten. Writes nothing to Harvester."""
    if scope.memory.guest_kubeconfig is not None or not scope.draft.is_true(_READY) or not _answers(scope):
        return
    try:
        if credentials := await cloudaccount.existing_credentials(scope):
            _publish(scope, await _kubeconfig(scope, credentials))
    except (Blocked, ApiError, Unreachable) as error:
        log.warning("cannot read the credentials of guests of HarvesterCluster %s: %s", scope.key, error)
        scope.requeue_within(_RETRY_RENEWAL)


async def _renew_secret(scope: ClusterScope, why: str) -> None:
    await scope.context.workloads.ensure(scope.cluster_key)
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None:
        return
    await scope.context.object_watches.ensure(scope.key, client, SECRETS, SECRET)
    if _answers(scope):
        try:
            scope.requeue_within(await _secret(scope, create=False))
            return
        except Blocked as blocked:
            scope.requeue_within(blocked.requeue_after)
            why = blocked.message
        except (ApiError, Unreachable) as error:
            log.warning("cannot renew the credentials of guests of HarvesterCluster %s: %s", scope.key, error)
            scope.requeue_within(_RETRY_RENEWAL)
            why = str(error)
    _report_expiry(scope, why)


def _answers(scope: ClusterScope) -> bool:
    """Whether requests to Harvester are possible now."""
    session = scope.session
    return bool(session and not session.error and scope.context.sessions.of(scope.key))


async def delete_cloud_config(scope: ClusterScope) -> None:
    """Delete account, binding and tokens, which invalidates every kubeconfig that was delivered."""
    if not _steps(scope.obj["spec"]) and not scope.draft.has(_READY):
        return
    # Noticed without a delay, if this fails halfway and the field comes back.
    scope.memory.account_checked_at = None
    await cloudaccount.delete_account(scope)
    await scope.context.object_watches.forget(scope.key)
    scope.context.memory.forget_cluster(scope.key)


def renewal(secret: Obj, inputs: str, now: datetime) -> float | None:
    """Seconds until the token in our Secret (metadata) has to be renewed; None if it has to be written now."""
    notes = annotations_of(secret)
    try:
        left = (datetime.fromisoformat(notes.get(names.RENEW_AT_ANNOTATION, "")) - now).total_seconds()
    except (ValueError, TypeError):
        return None
    return left if left > 0 and notes.get(names.INPUTS_ANNOTATION) == inputs else None


def expiry(secret: Obj) -> tuple[datetime, datetime] | None:
    """When to warn about the token in our Secret (metadata), and when it expires; None if that is not known."""
    notes = annotations_of(secret)
    try:
        renew_at = datetime.fromisoformat(notes.get(names.RENEW_AT_ANNOTATION, "")).astimezone(UTC)
        noted = notes.get(names.EXPIRES_AT_ANNOTATION)
        # Versions before 0.12 did not note it: they renewed after two thirds of the lifetime that they asked for.
        ends = datetime.fromisoformat(noted) if noted else renew_at + timedelta(seconds=TOKEN_SECONDS / 3)
    except (ValueError, TypeError, OverflowError):
        return None
    ends = ends.astimezone(UTC)
    return renew_at + (ends - renew_at) / 2, ends


def _report_expiry(scope: ClusterScope, why: str) -> bool:
    """Warn before the token in the workload cluster expires that could not be renewed; return whether it was due."""
    secret = scope.context.object_watches.known(scope.key, SECRETS, SECRET)
    times = expiry(secret) if secret and _ours(secret) else None
    if times is None:
        return False
    (warn_at, ends), now = times, datetime.now(UTC)
    if now < warn_at:
        scope.requeue_within((warn_at - now).total_seconds())
        return False
    verb = "expire" if now < ends else "expired"
    message = (
        f"credentials of cloud provider and CSI driver in Secret {SECRET} of the workload cluster {verb} at "
        f"{rfc3339(ends)}, and cannot be renewed: {why}"
    )
    if now < ends:
        scope.requeue_within((ends - now).total_seconds())
    if scope.memory.expiry_reported != verb and not scope.draft.has_message(_READY, message):
        log.warning("HarvesterCluster %s: %s", scope.key, message)
        scope.warning_event(Reason.CLOUD_PROVIDER_CONFIG_EXPIRING, message)
    scope.memory.expiry_reported = verb
    scope.draft.set_false(_READY, Reason.CLOUD_PROVIDER_CONFIG_EXPIRING, message)
    return True


def secret_object(uid: str, content: str, inputs: str, renew_at: datetime, expires_at: datetime | None = None) -> Obj:
    """The Secret in the workload cluster; `uid` is that of the HarvesterCluster."""
    encoded = base64.b64encode(content.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET.name,
            "namespace": SECRET.namespace,
            "labels": {names.OWNER_UID_ANNOTATION: uid},
            "annotations": {
                names.CONTENT_ANNOTATION: _digest(content.encode()),
                names.INPUTS_ANNOTATION: inputs,
                names.RENEW_AT_ANNOTATION: rfc3339(renew_at),
                **({names.EXPIRES_AT_ANNOTATION: rfc3339(expires_at)} if expires_at else {}),
            },
        },
        "type": "Opaque",
        "data": dict.fromkeys(SECRET_KEYS, encoded),
    }


def intact(secret: Obj) -> bool:
    """Whether our Secret contains exactly what was written into it."""
    data = secret.get("data") or {}
    try:
        digests = {_digest(base64.b64decode(value or "")) for value in data.values()}
    except binascii.Error:
        return False
    return set(data) == set(SECRET_KEYS) and digests == {annotations_of(secret).get(names.CONTENT_ANNOTATION)}


# Ways of delivery


async def _manifest(scope: ClusterScope) -> float | None:
    config = scope.obj["spec"]["updateCloudProviderConfig"]
    target = Key(config["manifestsConfigMapNamespace"], config["manifestsConfigMapName"])
    decision = await references.check_references(scope, secret_of(scope.obj))
    if any(reference.key == target and reference.kind == CONFIG_MAPS.kind for reference in decision.refused):
        raise _failed(references.refusal(scope, f"ConfigMap {target} of updateCloudProviderConfig"))
    watch = await scope.context.object_watches.ensure(scope.key, scope.context.client, CONFIG_MAPS, target)
    if watch is None:
        raise _in_progress(f"reading ConfigMap {target}", Watched.OBJECT, unknown=True)
    known, inputs = watch.get(*target), _inputs(scope)
    if known is None:
        raise _failed(f"ConfigMap {target} of updateCloudProviderConfig does not exist; create it")
    if scope.memory.verified_cloud_configs.get(_manifest.__name__) == (known["metadata"]["resourceVersion"], inputs):
        return None
    content = await _lasting_kubeconfig(scope)
    try:
        config_map = await scope.context.client.get(CONFIG_MAPS, target.name, target.namespace)
    except NotFound:
        watch.forget(*target)
        raise _failed(f"ConfigMap {target} of updateCloudProviderConfig does not exist; create it") from None
    if not references.may_use(config_map, scope.obj, CONFIG_MAPS.kind):
        watch.observe(config_map)  # it was permitted by an older version
        raise _failed(references.refusal(scope, f"ConfigMap {target} of updateCloudProviderConfig"))
    manifest_key = config["manifestsConfigMapKey"]
    before = (config_map.get("data") or {}).get(manifest_key) or ""
    try:
        secret, key = config["cloudConfigCredentialsSecretName"], config["cloudConfigCredentialsSecretKey"]
        after = await off_loop(len(before), lambda: with_credentials(before, secret, key, content))
    except ManifestError as error:
        raise _failed(f"key {manifest_key} of ConfigMap {target} {error}") from None
    if after != before:
        version = config_map["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "data": {manifest_key: after}}
        config_map = await scope.context.client.patch(CONFIG_MAPS, target.name, target.namespace, patch)
        watch.observe(config_map)
        scope.event("CloudConfigWritten", f"wrote the credentials of the cloud provider to ConfigMap {target}")
    scope.memory.verified_cloud_configs[_manifest.__name__] = (config_map["metadata"]["resourceVersion"], inputs)
    return None


async def _secret(scope: ClusterScope, *, create: bool = True) -> float | None:
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None or not scope.context.workloads.reached(scope.cluster_key):
        raise _in_progress("waiting for the API of the workload cluster", Watched.WORKLOAD, unknown=True)
    watch = await scope.context.object_watches.ensure(scope.key, client, SECRETS, SECRET)
    if watch is None:
        raise _in_progress(f"reading Secret {SECRET} of the workload cluster", Watched.OBJECT, unknown=True)
    known, inputs = watch.get(*SECRET), _inputs(scope)
    if known is None and not create:
        return None
    if known and not _ours(known):
        raise _failed(f"Secret {SECRET} of the workload cluster exists and was not created by this provider; delete it")
    if known and not scope.memory.account_lost:
        try:
            left = await _verified(scope, client, known, inputs)
        except NotFound:
            watch.forget(*SECRET)
            known = None
        else:
            if left:
                return left
    written_at = scope.memory.cloud_config_written_at
    if written_at is not None and time.monotonic() - written_at < _PAUSE:
        # Another client keeps changing it, and each rewrite costs a token.
        raise _in_progress(
            f"Secret {SECRET} of the workload cluster was modified right after it was written", Delay(_PAUSE)
        )
    name = await cloudaccount.ensure_account(scope)
    credentials = await cloudaccount.bound_credentials(scope, name, TOKEN_SECONDS)
    now = datetime.now(UTC)
    life = (credentials.expires or now) - now
    content = await _kubeconfig(scope, credentials)
    wanted = secret_object(uid_of(scope.obj), content, inputs, now + life * 2 / 3, now + life)
    try:
        if known:
            wanted["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
            written = await client.replace(SECRETS, wanted)
        else:
            written = await client.create(SECRETS, wanted)
    except (Unreachable, Unauthorized) as error:
        raise _in_progress(f"the API of the workload cluster does not answer: {error}", Delay(10.0)) from None
    watch.observe(written)
    scope.memory.cloud_config_written_at = time.monotonic()
    scope.memory.verified_cloud_configs[_secret.__name__] = (written["metadata"]["resourceVersion"], inputs)
    scope.memory.account_lost = False
    scope.memory.expiry_reported = ""
    scope.event(
        "CloudConfigWritten", f"wrote Secret {SECRET} of the workload cluster with a token valid for {_days(life)}"
    )
    return max(1.0, (life * 2 / 3).total_seconds())


async def _verified(scope: ClusterScope, client: ApiClient, secret: Obj, inputs: str) -> float | None:
    """Seconds until the token in our Secret has to be renewed; None if it has to be written now."""
    left = renewal(secret, inputs, datetime.now(UTC))
    version = (secret["metadata"]["resourceVersion"], inputs)
    if not left or scope.memory.verified_cloud_configs.get(_secret.__name__) == version:
        return left
    try:
        full = await client.get(SECRETS, SECRET.name, SECRET.namespace)
    except (Unreachable, Unauthorized) as error:
        raise _in_progress(f"the API of the workload cluster does not answer: {error}", Delay(10.0)) from None
    if not intact(full):
        return None
    scope.memory.verified_cloud_configs[_secret.__name__] = version
    return left


async def _check_account(scope: ClusterScope) -> None:
    """Notice within ten minutes that the guests' account was deleted on Harvester, where nothing watches it."""
    memory, now = scope.memory, time.monotonic()
    if memory.account_checked_at is not None and now < memory.account_checked_at + _ACCOUNT_CHECK:
        scope.requeue_within(memory.account_checked_at + _ACCOUNT_CHECK - now)
        return
    lasting = [step for step in _steps(scope.obj["spec"]) if step is not _secret]
    if memory.verified_cloud_configs and not await cloudaccount.exists(scope, token=bool(lasting)):
        log.warning("the account of guests of HarvesterCluster %s was deleted on Harvester; recreating it", scope.key)
        memory.verified_cloud_configs.clear()
        memory.account_lost = True
    memory.account_checked_at = now
    scope.requeue_within(_ACCOUNT_CHECK)


async def _file(scope: ClusterScope) -> float | None:
    inputs = _inputs(scope)
    if scope.memory.verified_cloud_configs.get(_file.__name__) != ("", inputs):
        _publish(scope, await _lasting_kubeconfig(scope))
        scope.memory.verified_cloud_configs[_file.__name__] = ("", inputs)
    return None


def _publish(scope: ClusterScope, content: str) -> None:
    """Let machines have the kubeconfig for files of guests."""
    scope.memory.guest_kubeconfig = content
    scope.context.topics.notify(triggers.cloud_config(scope.key))


def _ours(secret: Obj) -> bool:
    return names.OWNER_UID_ANNOTATION in labels_of(secret) or names.CONTENT_ANNOTATION in annotations_of(secret)


def _steps(spec: Obj) -> list[_Step]:
    steps: list[_Step] = [_manifest] if spec.get("updateCloudProviderConfig") else []
    delivery = (spec.get("cloudConfig") or {}).get("delivery")
    return steps + [step for name, step in (("Secret", _secret), ("File", _file)) if name == delivery]


def _inputs(scope: ClusterScope) -> str:
    """Hash of all inputs of a cloud config; none of them is secret."""
    spec = scope.obj["spec"]
    parts = [
        scope.connected().fingerprint,
        scope.target_namespace,
        spec.get("server"),
        spec.get("updateCloudProviderConfig"),
        spec.get("cloudConfig"),
        annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION),
    ]
    return _digest(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS))


async def _lasting_kubeconfig(scope: ClusterScope) -> str:
    name = await cloudaccount.ensure_account(scope)
    return await _kubeconfig(scope, await cloudaccount.lasting_credentials(scope, name))


async def _kubeconfig(scope: ClusterScope, credentials: cloudaccount.Credentials) -> str:
    return kubeconfig(
        server=await cloudaccount.server(scope),
        ca=credentials.ca,
        token=credentials.token,
        namespace=scope.target_namespace,
    )


def _days(life: timedelta) -> str:
    hours = life.total_seconds() / 3600
    return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.1f} hours"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _in_progress(message: str, source: Trigger, *, unknown: bool = False) -> Blocked:
    return Blocked(_READY, Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS, message, source, unknown=unknown)


def _failed(message: str) -> Blocked:
    return Blocked(_READY, Reason.CLOUD_PROVIDER_CONFIG_FAILED, message, Watched.OBJECT, Watched.SELF, warn=True)
