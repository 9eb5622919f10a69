"""The webhook configurations: which requests API servers send here, and what to do when one is missing or outdated.

One webhook a kind and version, with `matchPolicy: Exact`: every served version has its own, so nothing slips through,
while `Equivalent` would match both for every request and ask twice. Deletions are in no rule, and objects that are
being deleted are left out by a condition, so that finalizers can go even while no webhook server runs.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from copy import deepcopy
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

ADMISSION_GROUP = "admissionregistration.k8s.io"
RESOURCES: dict[Webhook, Resource] = {
    "validate": VALIDATING_WEBHOOK_CONFIGURATIONS,
    "mutate": MUTATING_WEBHOOK_CONFIGURATIONS,
}
NAMES: dict[Webhook, str] = {
    "validate": "caphv-validating-webhook-configuration",
    "mutate": "caphv-mutating-webhook-configuration",
}
SERVICE = "caphv-webhook-service"
# cert-manager writes the CA into configurations with this annotation: no one else may.
INJECT_ANNOTATION = "cert-manager.io/inject-ca-from"
_LABELS = {"cluster.x-k8s.io/provider": "infrastructure-harvester"}
_TIMEOUT_SECONDS = 5
_OLDER_AUTHORITIES = 2


def client_config(service: str = "", url: str = "") -> Obj:
    """Return where API servers find the webhooks: a Service as `namespace/name`, or `https://host[:port]`.

    Raises `ValueError`; the message says what is wanted.
    """
    if url:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not of the form https://host[:port]")
        return {"url": url.rstrip("/")}
    found = re.fullmatch(r"([a-z0-9-]+)/([a-z0-9-]+)", service)
    if not found:
        raise ValueError(f"{service!r} is not of the form namespace/name")
    return {"service": {"namespace": found[1], "name": found[2]}}


def configurations(target: Obj, *, annotations: Mapping[str, str] | None = None) -> list[Obj]:
    """Return the validating and the mutating webhook configuration.

    `target` is as of `client_config`; with `caBundle` (base64 of PEM) in it, all webhooks get that.
    """
    return [_configuration(webhook, target, annotations or {}) for webhook in WEBHOOKS]


def renewed(found: Obj, wanted: Obj, authority: bytes, *, first: bool) -> Obj | None:
    """Return what the configuration on the server has to become, None when it is fine.

    `first`: when a process sees it for the first time and a webhook is missing or leads elsewhere, the webhooks become
    the wanted ones. Later it is left alone, or two releases would fight during an update; other settings, such as a
    longer timeout, are the operator's. `authority` (PEM, may be empty) is added to the CAs where cert-manager does
    not do that; it replaces none at once, because other replicas may have the certificate from before.
    """
    new = deepcopy(found)
    known = _bundle(found)
    if first and not _targets(wanted).items() <= _targets(found).items():
        new["webhooks"] = deepcopy(wanted["webhooks"])
    if INJECT_ANNOTATION not in annotations_of(found):
        known = _with_authority(known, authority)
    _set_bundle(new, known)
    return None if new == found else new


def restored(last: Obj | None, wanted: Obj, authority: bytes) -> Obj:
    """Return the configuration to make when there is none: as it was last seen, else as wanted, CA included."""
    source = deepcopy(last or wanted)
    metadata = {
        name: source["metadata"][name] for name in ("name", "labels", "annotations") if name in source["metadata"]
    }
    new = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": metadata}
    new["webhooks"] = source.get("webhooks") or deepcopy(wanted["webhooks"])
    known = _bundle(new)
    if not known or INJECT_ANNOTATION not in annotations_of(new):
        known = _with_authority(known, authority)
    _set_bundle(new, known)
    return new


def _configuration(webhook: Webhook, target: Obj, annotations: Mapping[str, str]) -> Obj:
    resource = RESOURCES[webhook]
    metadata: Obj = {"name": NAMES[webhook], "labels": dict(_LABELS)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    webhooks = [_webhook(webhook, target, version, kind) for version in VERSIONS for kind in KINDS]
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "webhooks": webhooks}


def _webhook(webhook: Webhook, target: Obj, version: str, kind: str) -> Obj:
    infix = "" if version == VERSIONS[0] else f".{version}"
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [KINDS[kind].plural],
        "scope": "Namespaced",
    }
    entry = {
        "name": f"{webhook[0]}{kind.lower()}{infix}.kb.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": _at(target, path_of(webhook, version, kind)),
        "failurePolicy": "Fail",
        "matchPolicy": "Exact",
        "matchConditions": [{"name": "is-not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"}],
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT_SECONDS,
    }
    return entry | ({"reinvocationPolicy": "Never"} if webhook == "mutate" else {})


def _at(target: Obj, path: str) -> Obj:
    config = deepcopy(target)
    if "url" in config:
        config["url"] += path
    else:
        config["service"]["path"] = path
    return config


def _targets(configuration: Obj) -> dict[str, tuple[str, ...]]:
    """Where each webhook leads, in a form that the defaults of the API server do not change."""
    found = {}
    for webhook in configuration.get("webhooks") or ():
        config = webhook["clientConfig"]
        service = config.get("service") or {}
        found[webhook["name"]] = (
            config.get("url", ""),
            *(str(service.get(name, "")) for name in ("namespace", "name", "path")),
            str(service.get("port", 443)),
        )
    return found


def _bundle(configuration: Obj) -> str:
    bundles = (webhook["clientConfig"].get("caBundle") for webhook in configuration.get("webhooks") or ())
    return next((bundle for bundle in bundles if bundle), "")


def _set_bundle(configuration: Obj, bundle: str) -> None:
    if bundle:
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle


def _with_authority(bundle: str, authority: bytes) -> str:
    try:
        known = certificates_in(base64.b64decode(bundle))
    except binascii.Error:
        known = []
    wanted = certificates_in(authority)
    if set(wanted) <= set(known):
        return bundle
    older = [certificate for certificate in known if certificate not in wanted][:_OLDER_AUTHORITIES]
    return base64.b64encode(b"".join(certificate + b"\n" for certificate in [*wanted, *older])).decode()
