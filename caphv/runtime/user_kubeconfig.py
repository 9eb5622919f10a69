"""Load a user's own kubeconfig, which is trusted.

It may name files and credential plugins, span several files, or use plain HTTP.
`caphv.runtime.kubeconfig` reads kubeconfigs of others and accepts none of this. Its users do not
need the loaders of the `kubernetes` package, so this is a module of its own.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.kube_config import load_kube_config

from caphv.runtime.clientconfig import (
    kubeconfig_files,
    kubeconfig_paths,
    own_namespace,
    uses_service_account,
)
from caphv.runtime.connection import Connection
from caphv.runtime.kubeconfig import KubeconfigError, load
from caphv.runtime.proxy import environment_proxy
from caphv.runtime.text import Limits, load_yaml

# Limits for a user's own file, which may have hundreds of clusters and their certificates.
_LIMITS = Limits(size=32 * 1024 * 1024, nodes=1_000_000, seconds=60.0)
# Characters of a header's name besides letters and digits (RFC 9110), without the percent sign.
_HEADER_NAME = "!#$&'*+-.^_`|~"


async def connection(paths: str, context: str) -> Connection:
    """Return the connection of kubeconfig files. Raises `KubeconfigError`.

    Credentials are refreshed as the files say.

    :param paths: list of files in the format of `KUBECONFIG`
    :param context: name of the context; the current one if empty
    """
    try:
        return await _load(paths, context)
    except KubeconfigError:
        raise
    except Exception as error:
        # The `kubernetes` package raises errors of many types for a malformed file.
        reason = _explain(paths, context) or f"{type(error).__name__}: {error}"
        raise KubeconfigError(reason) from None


async def _load(paths: str, context: str) -> Connection:
    """Return the connection of kubeconfig files. Raises errors of any type."""
    if not any(file.exists() for file in kubeconfig_files(paths)):
        raise KubeconfigError("the file does not exist; set --kubeconfig or KUBECONFIG")

    files = _read(paths)
    # Name the context, because the loader would use the current context of the last file.
    context_name = context or files.current
    configuration = Configuration()
    await load_kube_config(paths, context_name or None, configuration)

    async def authorization() -> str:
        token = await configuration.get_api_key_with_prefix("BearerToken") or ""
        if not token or " " in token:  # the token already has its scheme
            return token
        return f"Bearer {token}"

    tls = RESTClientObject(configuration).ssl_context
    # Python 3.13 sets this flag, but neither kubectl nor `caphv.runtime.kubeconfig` does.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    server = configuration.host.rstrip("/")
    return Connection(
        server=server,
        tls=tls,
        authorization=authorization,
        proxy=configuration.proxy or environment_proxy(server) or None,
        server_name=configuration.tls_server_name,
        headers=tuple(_impersonation(files.user(context_name))),
    )


def _explain(paths: str, context: str) -> str:
    """Return the user's mistake in a kubeconfig that cannot be loaded; empty if unknown."""
    files = kubeconfig_files(paths)
    if len(files) != 1:
        return ""
    try:
        config = load(files[0].read_bytes())
    except KubeconfigError as error:
        return str(error)
    except OSError as error:
        return str(error.strerror)

    name = context or config.get("current-context")
    if not name:
        return (
            "it has no current-context; set one with `kubectl config use-context`, or pass "
            "--context"
        )
    names = list(_entries(config, "context"))
    if name in names:
        return ""
    return f"it has no context {name!r}; its contexts are: {', '.join(names) or 'none'}"


def context_namespace(kubeconfig: str, context: str) -> str:
    """Return the namespace of the context, as kubectl does.

    It is `default` if none is set, or if the kubeconfig cannot be read.
    """
    if uses_service_account(kubeconfig, context):
        return own_namespace("default")
    with contextlib.suppress(OSError, ValueError):
        files = _read(kubeconfig_paths(kubeconfig))
        return str(files.contexts.get(context or files.current, {}).get("namespace") or "default")
    return "default"


@dataclass(slots=True)
class _Files:
    """Several files as kubectl merges them: the first file with a name defines it."""

    current: str = ""
    contexts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    users: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def user(self, context: str) -> Mapping[str, Any]:
        """Return the user of a context."""
        return self.users.get(str(self.contexts.get(context, {}).get("user")), {})


def _read(paths: str) -> _Files:
    """Read the files that exist. Raises `OSError` and `ValueError`."""
    files = _Files()
    for file in kubeconfig_files(paths):
        try:
            config = load_yaml(file.read_text(encoding="utf-8"), _LIMITS)
        except FileNotFoundError:
            continue
        if isinstance(config, dict):
            files.current = files.current or str(config.get("current-context") or "")
            files.contexts = {**_entries(config, "context"), **files.contexts}
            files.users = {**_entries(config, "user"), **files.users}
    return files


def _entries(config: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    entries = config.get(f"{kind}s")
    return {
        str(entry.get("name")): entry.get(kind) or {}
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get(kind) or {}, dict)
    }


def _impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers of impersonation, which the loader ignores. Raises `KubeconfigError`.

    Without them, requests would have the rights of the user, not of the impersonated account.
    """
    name = user.get("as") or ""
    uid = user.get("as-uid") or ""
    groups = user.get("as-groups") or []
    extra = user.get("as-user-extra") or {}
    if not (name or uid or groups or extra):
        return
    if not name:
        raise KubeconfigError("as: required with as-uid, as-groups and as-user-extra")
    if not isinstance(groups, list) or not isinstance(extra, dict):
        raise KubeconfigError("as-groups must be a list, and as-user-extra an object with lists")

    yield "Impersonate-User", _header_text("as", name)
    if uid:
        yield "Impersonate-Uid", _header_text("as-uid", uid)
    for group in groups:
        yield "Impersonate-Group", _header_text("as-groups", group)
    for key, values in extra.items():
        header = f"Impersonate-Extra-{quote(str(key), safe=_HEADER_NAME)}"
        for value in values if isinstance(values, list) else [values]:
            yield header, _header_text("as-user-extra", value)


def _header_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise KubeconfigError(f"{name}: must be text on one line, in quotes")
    return value
