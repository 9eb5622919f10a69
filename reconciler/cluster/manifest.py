"""Put the kubeconfig of cloud provider and CSI driver into the manifests of a cluster.

Pure functions. No error of this module quotes a manifest, because manifests hold credentials.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from caphv.api.object import Obj, at
from caphv.runtime.text import TextError, load_yaml

SECRET_NAMESPACE = "kube-system"  # noqa: S105 - a namespace
"""Namespace of the Secret with the kubeconfig in the workload cluster (contract)."""

# The number is limited, because each document starts the parser again.
_MAX_DOCUMENTS = 1000
_DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)


class ManifestError(ValueError):
    """A manifest cannot be extended; the message quotes nothing of it."""


def with_credentials(manifest: str, name: str, key: str, content: str) -> str:
    """Return a manifest with `content` under a key of the v1 Secret `kube-system/<name>`.

    Appends the Secret if the manifest lacks it. Every other document stays the same, byte for byte,
    and the whole manifest does if the Secret already holds the content. Raises `ManifestError` if
    the manifest is not YAML, or the Secret has another form.
    """
    documents = [*_documents(manifest)]
    if len(documents) > _MAX_DOCUMENTS:
        raise ManifestError(f"holds more than {_MAX_DOCUMENTS:,} documents; split it")
    encoded = base64.b64encode(content.encode()).decode()

    for start, end in documents:
        secret = _load(manifest[start:end])
        if not _is_secret(secret, name):
            continue
        for field in ("data", "stringData"):
            if not isinstance(secret.get(field) or {}, dict):
                raise ManifestError(f"holds Secret {name}, whose {field} has no keys; correct it")
        if _value(secret, key) == content:
            return manifest
        secret["data"] = {**(secret.get("data") or {}), key: encoded}
        # The API server prefers `stringData`, which would hide the new content.
        if secret.get("stringData"):
            secret["stringData"].pop(key, None)
        return f"{manifest[:start]}\n{yaml.safe_dump(secret, sort_keys=False)}{manifest[end:]}"

    added = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SECRET_NAMESPACE},
        "type": "Opaque",
        "data": {key: encoded},
    }
    is_complete = not manifest or manifest.endswith("\n")
    present = manifest if is_complete else f"{manifest}\n"
    return f"{present}---\n{yaml.safe_dump(added, sort_keys=False)}"


class _Span(NamedTuple):
    """Where a document starts and ends in a manifest, without its marker."""

    start: int
    end: int


def _documents(manifest: str) -> Iterator[_Span]:
    """Yield the documents between the markers."""
    start = 0
    for marker in _DOCUMENT.finditer(manifest):
        yield _Span(start, marker.start())
        start = marker.end()
    yield _Span(start, len(manifest))


def _load(document: str) -> Any:
    """Return the content of a document. Raises `ManifestError`."""
    try:
        return load_yaml(document)
    except TextError as error:
        raise ManifestError(f"holds a document that {error}; correct it") from None


def _is_secret(document: Any, name: str) -> bool:
    """Return whether a document is the Secret with a name in the namespace of cloud providers."""
    if not isinstance(document, dict):
        return False
    if (document.get("apiVersion"), document.get("kind")) != ("v1", "Secret"):
        return False
    key = at(document, "metadata", "namespace"), at(document, "metadata", "name")
    return key == (SECRET_NAMESPACE, name)


def _value(secret: Obj, key: str) -> str | None:
    """Return the value of a Secret of a manifest under a key, None if it is not text."""
    plain = (secret.get("stringData") or {}).get(key)
    if plain is not None:
        return str(plain)
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "").decode()
    except (binascii.Error, ValueError, TypeError):
        return None
