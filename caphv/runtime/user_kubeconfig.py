"""A user's own kubeconfig, which may name files and credential plugins, span several files, or use plain HTTP.

Not part of `caphv.runtime.kubeconfig`, whose readers never need the loaders of the package.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caphv.runtime.kubeconfig import KubeconfigError, own_namespace, uses_service_account
from caphv.runtime.kubernetespackage import Configuration, RESTClientObject, kube_config
from caphv.runtime.proxy import environment_proxy
from caphv.runtime.text import Limits, load_yaml
from caphv.runtime.transport import Connection

# A file of one's own, with hundreds of clusters and their certificates.
_LIMITS = Limits(size=32 * 1024 * 1024, nodes=1_000_000, seconds=60.0)
# Those of a header's name that are not letters or digits (RFC 9110), without the percent sign.
_HEADER_NAME = "!#$&'*+-.^_`|~"


async def connection(where: str, context: str = "") -> Connection:
    """Load the files that `where` names, as `KUBECONFIG` does; `context` overrides their current context.

    Credentials are refreshed as the kubeconfig says. Raises `KubeconfigError` and whatever the `kubernetes` package
    raises.
    """
    files = _read(where)
    wanted = context or files.current
    configuration = Configuration()
    # Named here, because the loader would take the current context of the last file.
    await kube_config().load_kube_config(where, wanted or None, configuration)

    async def authorization() -> str:
        token = await configuration.get_api_key_with_prefix("BearerToken") or ""
        return token if " " in token or not token else f"Bearer {token}"

    tls = RESTClientObject(configuration).ssl_context
    # As for a kubeconfig with inline credentials, and as kubectl: Python 3.13 sets it.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    server = configuration.host.rstrip("/")
    proxy = configuration.proxy or environment_proxy(server) or None
    headers = tuple(_impersonation(files.user(wanted)))
    return Connection(server, tls, authorization, proxy, configuration.tls_server_name, headers=headers)


def context_namespace(kubeconfig: str, context: str) -> str:
    """Return the namespace of the context, as kubectl takes it; `default` where none is set, or it cannot be read."""
    if uses_service_account(kubeconfig, context):
        return own_namespace("default")
    with contextlib.suppress(OSError, ValueError):
        files = _read(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
        return str(files.contexts.get(context or files.current, {}).get("namespace") or "default")
    return "default"


@dataclass(slots=True)
class _Files:
    """What several files say, as kubectl merges them: the first that has a name decides."""

    current: str = ""
    contexts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    users: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def user(self, context: str) -> Mapping[str, Any]:
        """The user of a context."""
        return self.users.get(str(self.contexts.get(context, {}).get("user")), {})


def _read(where: str) -> _Files:
    """Read the files that exist. Raises `OSError`, `ValueError`."""
    found = _Files()
    for name in filter(None, where.split(os.pathsep)):
        try:
            config = load_yaml(Path(name).expanduser().read_text(encoding="utf-8"), _LIMITS)
        except FileNotFoundError:
            continue
        if isinstance(config, dict):
            found.current = found.current or str(config.get("current-context") or "")
            found.contexts = {**_entries(config, "context"), **found.contexts}
            found.users = {**_entries(config, "user"), **found.users}
    return found


def _entries(config: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    entries = config.get(f"{kind}s")
    return {
        str(entry.get("name")): entry.get(kind) or {}
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get(kind) or {}, dict)
    }


def _impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Headers for whom a user acts, which the loader ignores. Without them, a context would have the user's rights."""
    name, uid = user.get("as") or "", user.get("as-uid") or ""
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    if not (name or uid or groups or extra):
        return
    if not name:
        raise KubeconfigError("as: required with as-uid, as-groups and as-user-extra")
    if not isinstance(groups, list) or not isinstance(extra, dict):
        raise KubeconfigError("as-groups must be a list, and as-user-extra an object with lists")
    yield "Impersonate-User", _text("as", name)
    if uid:
        yield "Impersonate-Uid", _text("as-uid", uid)
    for group in groups:
        yield "Impersonate-Group", _text("as-groups", group)
    for key, values in extra.items():
        for value in values if isinstance(values, list) else [values]:
            yield f"Impersonate-Extra-{quote(str(key), safe=_HEADER_NAME)}", _text("as-user-extra", value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise KubeconfigError(f"{where}: must be text on one line, in quotes")
    return value
