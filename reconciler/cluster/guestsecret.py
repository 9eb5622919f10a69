"""The Secret in a workload cluster that holds the credentials of its guests. Pure functions.

Annotations of the Secret record hashes of its content and inputs, and when its token has to be
renewed. So a reconcile needs only the metadata to find out whether there is work to do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from caphv.api import names
from caphv.api.conditions import rfc3339
from caphv.api.object import Obj, annotations_of, labels_of
from reconciler.harvester.guestaccount import SECRET, SECRET_KEYS

TOKEN_SECONDS = 7 * 24 * 3600
"""Lifetime of a bound token. An outage of less than a third of it has no effect on guests."""


# A token is renewed after two thirds of its lifetime. A later time is of a clock that was ahead.
_LATEST_SECONDS = TOKEN_SECONDS * 3 / 4


def secret_object(
    uid: str, content: str, inputs: str, renew_at: datetime, expires_at: datetime | None = None
) -> Obj:
    """Return the Secret in the workload cluster.

    :param uid: uid of the HarvesterCluster
    :param content: the kubeconfig
    :param inputs: hash of all inputs of the kubeconfig
    :param renew_at: when the token has to be renewed
    :param expires_at: when the token expires, if Harvester reports that
    """
    encoded = base64.b64encode(content.encode()).decode()
    annotations = {
        names.CONTENT_ANNOTATION: digest(content.encode()),
        names.INPUTS_ANNOTATION: inputs,
        names.RENEW_AT_ANNOTATION: rfc3339(renew_at),
    }
    if expires_at:
        annotations[names.EXPIRES_AT_ANNOTATION] = rfc3339(expires_at)

    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET.name,
            "namespace": SECRET.namespace,
            "labels": {names.OWNER_UID_ANNOTATION: uid},
            "annotations": annotations,
        },
        "type": "Opaque",
        "data": dict.fromkeys(SECRET_KEYS, encoded),
    }


def is_ours(secret: Obj) -> bool:
    """Return whether this provider has written the Secret (metadata)."""
    if names.OWNER_UID_ANNOTATION in labels_of(secret):
        return True
    return names.CONTENT_ANNOTATION in annotations_of(secret)


def intact(secret: Obj) -> bool:
    """Return whether our Secret still has exactly the content that the provider wrote."""
    data = secret.get("data") or {}
    try:
        digests = {digest(base64.b64decode(value or "")) for value in data.values()}
    except binascii.Error:
        return False
    written = annotations_of(secret).get(names.CONTENT_ANNOTATION)
    return set(data) == set(SECRET_KEYS) and digests == {written}


def renewal(secret: Obj, inputs: str, at: datetime) -> float | None:
    """Return the seconds until the token in our Secret (metadata) has to be renewed.

    Returns None if the Secret has to be written at once.
    """
    notes = annotations_of(secret)
    try:
        renew_at = datetime.fromisoformat(notes.get(names.RENEW_AT_ANNOTATION, ""))
        delay = (renew_at - at).total_seconds()
    except (ValueError, TypeError):
        return None
    is_usable = 0 < delay <= _LATEST_SECONDS and notes.get(names.INPUTS_ANNOTATION) == inputs
    return delay if is_usable else None


class TokenExpiry(NamedTuple):
    """When to warn about a token, and when it expires."""

    warn_at: datetime
    expires_at: datetime


def expiry(secret: Obj) -> TokenExpiry | None:
    """Return when the token in our Secret (metadata) expires.

    Returns None if that is not known.
    """
    notes = annotations_of(secret)
    try:
        renew_at = datetime.fromisoformat(notes.get(names.RENEW_AT_ANNOTATION, "")).astimezone(UTC)
        if reported := notes.get(names.EXPIRES_AT_ANNOTATION):
            expires_at = datetime.fromisoformat(reported).astimezone(UTC)
        else:
            # The renewal is due after two thirds of the lifetime.
            expires_at = renew_at + timedelta(seconds=TOKEN_SECONDS / 3)
    except (ValueError, TypeError, OverflowError):
        return None

    # The warning is due halfway between the time of the renewal and the end.
    return TokenExpiry(renew_at + (expires_at - renew_at) / 2, expires_at)


def digest(data: bytes) -> str:
    """Return the hash by which annotations of the Secret refer to its content and inputs."""
    return hashlib.sha256(data).hexdigest()[:32]
