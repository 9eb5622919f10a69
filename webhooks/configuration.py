"""Create and repair the webhook configurations, by which API servers send requests here.

Each kind and version has a webhook with `matchPolicy: Exact`. No request is missed, because every
served version has one. `Equivalent` would match the webhooks of both versions and call both.

Deletions are in no rule, and a condition excludes objects that are being deleted, so that
finalizers can be removed even while no webhook server runs.

Without a server, the validating webhooks refuse writes, and the mutating ones are skipped. A user
who deletes the validating configuration, the only one of the Go provider, can write again. Skipping
is safe: the CRDs refuse a placeholder in place of an endpoint that is in use.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple
from urllib.parse import urlsplit

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Obj,
    Resource,
    annotations_of,
)
from caphv.runtime.certwatcher import certificates_in
from webhooks.admission import KINDS
from webhooks.handler import WEBHOOKS, Webhook, path_of

RESOURCES: dict[Webhook, Resource] = {
    "validate": VALIDATING_WEBHOOK_CONFIGURATIONS,
    "mutate": MUTATING_WEBHOOK_CONFIGURATIONS,
}
NAMES: dict[Webhook, str] = {
    "validate": "caphv-validating-webhook-configuration",
    "mutate": "caphv-mutating-webhook-configuration",
}
SERVICE = "caphv-webhook-service"
# Only cert-manager may write the CA into configurations with this annotation.
INJECT_ANNOTATION = "cert-manager.io/inject-ca-from"
_LABELS = {"cluster.x-k8s.io/provider": "infrastructure-harvester"}
# Seconds that an API server waits for an answer before it fails the write.
_TIMEOUT_SECONDS = 5
# Number of older CAs to keep, because replicas that have not loaded a new certificate use them.
_MAX_OLDER_AUTHORITIES = 2


def client_config(service: str = "", url: str = "") -> Obj:
    """Return the client config of a Service (`namespace/name`) or of a URL (`https://host[:port]`).

    Raises `ValueError` with a message about the valid form.
    """
    if url:
        parts = urlsplit(url)
        has_more = parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme != "https" or not parts.hostname or has_more:
            raise ValueError(f"{url!r} is not of the form https://host[:port]")
        return {"url": url.rstrip("/")}

    match = re.fullmatch(r"([a-z0-9-]+)/([a-z0-9-]+)", service)
    if not match:
        raise ValueError(f"{service!r} is not of the form namespace/name")
    return {"service": {"namespace": match[1], "name": match[2]}}


def configurations(target: Obj, *, annotations: Mapping[str, str] | None = None) -> list[Obj]:
    """Return the validating and the mutating webhook configuration.

    `target` is the result of `client_config`. All webhooks get its `caBundle` (base64 of PEM), if
    it has one.
    """
    return [_configuration(webhook, target, annotations or {}) for webhook in WEBHOOKS]


def repair(current: Obj, intended: Obj, authority: bytes, *, first: bool) -> Obj | None:
    """Return the repaired configuration, None if it needs no repair.

    Keeps other settings of the operator, such as a longer timeout.

    :param current: the configuration on the server
    :param intended: the configuration of this release
    :param authority: CAs (PEM) to add unless cert-manager sets them; may be empty. Present CAs are
        kept at first, because other replicas may still serve with an older certificate
    :param first: whether this process checks the configuration for the first time. Only then does
        it replace webhooks that are missing or point elsewhere; otherwise two releases would
        overwrite each other during an update
    """
    repaired = deepcopy(current)
    bundle = _bundle(current)
    present = _targets(current)
    is_complete = all(present.get(name) == target for name, target in _targets(intended).items())
    if first and not is_complete:
        repaired["webhooks"] = deepcopy(intended["webhooks"])
    if INJECT_ANNOTATION not in annotations_of(current):
        bundle = _add_authority(bundle, authority)

    _set_bundle(repaired, bundle)
    return None if repaired == current else repaired


def recreate(last: Obj | None, intended: Obj, authority: bytes) -> Obj:
    """Return the configuration to create when it is missing, with the CA.

    This is the last known configuration, or the intended one without that.
    """
    source = deepcopy(last or intended)
    metadata = {}
    # Other fields, such as uid and resourceVersion, belong to the deleted object.
    for field in ("name", "labels", "annotations"):
        if field in source["metadata"]:
            metadata[field] = source["metadata"][field]
    configuration: Obj = {
        "apiVersion": intended["apiVersion"],
        "kind": intended["kind"],
        "metadata": metadata,
        "webhooks": source.get("webhooks") or deepcopy(intended["webhooks"]),
    }

    bundle = _bundle(configuration)
    if not bundle or INJECT_ANNOTATION not in annotations_of(configuration):
        bundle = _add_authority(bundle, authority)
    _set_bundle(configuration, bundle)
    return configuration


def _configuration(webhook: Webhook, target: Obj, annotations: Mapping[str, str]) -> Obj:
    """Return one webhook configuration, with a webhook for each kind and version."""
    metadata: Obj = {"name": NAMES[webhook], "labels": dict(_LABELS)}
    if annotations:
        metadata["annotations"] = dict(annotations)

    resource = RESOURCES[webhook]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "webhooks": [
            _webhook(webhook, target, version, kind) for version in VERSIONS for kind in KINDS
        ],
    }


def _webhook(webhook: Webhook, target: Obj, version: str, kind: str) -> Obj:
    """Return the webhook for objects of a kind in an API version.

    :param webhook: `validate` or `mutate`
    :param target: the result of `client_config`
    :param version: API version
    :param kind: a key of `KINDS`
    """
    # Each webhook in a configuration needs a unique name.
    infix = "" if version == VERSIONS[0] else f".{version}"
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [KINDS[kind].plural],
        "scope": "Namespaced",
    }
    condition = {
        "name": "is-not-being-deleted",
        "expression": "!has(object.metadata.deletionTimestamp)",
    }

    entry: Obj = {
        "name": f"{webhook[0]}{kind.lower()}{infix}.kb.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": _with_path(target, path_of(webhook, version, kind)),
        "failurePolicy": "Fail" if webhook == "validate" else "Ignore",
        "matchPolicy": "Exact",
        "matchConditions": [condition],
        "rules": [rule],
        # API servers refuse a dry run whose webhooks may have side effects.
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT_SECONDS,
    }
    if webhook == "mutate":
        entry["reinvocationPolicy"] = "Never"
    return entry


def _with_path(target: Obj, path: str) -> Obj:
    """Return the client config of the webhook at a path."""
    config = deepcopy(target)
    if "url" in config:
        config["url"] += path
    else:
        config["service"]["path"] = path
    return config


class _Target(NamedTuple):
    """Where a webhook sends reviews, in a form that defaults of the API server do not change."""

    url: str
    namespace: str
    service: str
    path: str
    port: str


def _targets(configuration: Obj) -> dict[str, _Target]:
    """Return the target of each webhook by its name."""
    targets: dict[str, _Target] = {}
    for webhook in configuration.get("webhooks") or ():
        config = webhook["clientConfig"]
        service = config.get("service") or {}
        targets[webhook["name"]] = _Target(
            url=config.get("url", ""),
            namespace=str(service.get("namespace", "")),
            service=str(service.get("name", "")),
            path=str(service.get("path", "")),
            # The API server fills in this port by default.
            port=str(service.get("port", 443)),
        )
    return targets


def _bundle(configuration: Obj) -> str:
    """Return the CAs of the first webhook that has any, empty for none."""
    for webhook in configuration.get("webhooks") or ():
        if bundle := webhook["clientConfig"].get("caBundle"):
            return str(bundle)
    return ""


def _set_bundle(configuration: Obj, bundle: str) -> None:
    """Set the CAs of all webhooks, unless there are none."""
    if bundle:
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle


def _add_authority(bundle: str, authority: bytes) -> str:
    """Return a bundle with the CAs of `authority` first, and the newest of its older CAs."""
    try:
        present = certificates_in(base64.b64decode(bundle))
    except binascii.Error:
        # Another client wrote an invalid bundle, of which nothing can be kept.
        present = []
    added = certificates_in(authority)
    if set(added) <= set(present):
        return bundle

    older = [certificate for certificate in present if certificate not in added]
    certificates = [*added, *older[:_MAX_OLDER_AUTHORITIES]]
    pem = b"".join(certificate + b"\n" for certificate in certificates)
    return base64.b64encode(pem).decode()
