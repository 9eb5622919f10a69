"""Find the API server and the credentials of this process in a kubeconfig or ServiceAccount."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from caphv.runtime.connection import Connection
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, load, parse_kubeconfig

_DEFAULT_NAMESPACE = "caphv-system"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60.0


async def own_configuration(kubeconfig: str = "", context: str = "") -> Connection:
    """Return the connection of a user's command.

    It comes from the given kubeconfig, else from `KUBECONFIG`, else from the Pod's ServiceAccount.
    `context` overrides the current context of a kubeconfig. Raises `KubeconfigError` if none exists
    or is readable.
    """
    return await _configuration(
        kubeconfig, context, in_cluster=uses_service_account(kubeconfig, context)
    )


async def process_configuration(kubeconfig: str = "") -> Connection:
    """Return the connection of a controller.

    It comes from the given kubeconfig, else from the Pod's ServiceAccount, else from `KUBECONFIG`.
    Raises `KubeconfigError` if none exists or is readable.
    """
    return await _configuration(kubeconfig, "", in_cluster=not kubeconfig and _in_pod())


def uses_service_account(kubeconfig: str, context: str) -> bool:
    """Return whether a user's command with these flags uses the ServiceAccount of its Pod.

    It does if neither a flag nor `KUBECONFIG` names a file.
    """
    if kubeconfig or context or not _in_pod():
        return False
    return not any(os.path.exists(file) for file in _files(os.environ.get("KUBECONFIG", "")))


def _in_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


async def _configuration(kubeconfig: str, context: str, *, in_cluster: bool) -> Connection:
    where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        if in_cluster:
            return _in_cluster()
        if not any(file.exists() for file in _files(where)):
            raise KubeconfigError("the file does not exist; set --kubeconfig or KUBECONFIG")

        # Most kubeconfigs are one file with inline credentials.
        if not context:
            with contextlib.suppress(KubeconfigError, OSError):
                return _inline_connection(where)

        # Import this only here, because the loaders of the `kubernetes` package take memory that
        # processes in a cluster do not need.
        from caphv.runtime.user_kubeconfig import connection  # noqa: PLC0415

        return await connection(where, context)
    except Exception as error:
        if in_cluster:
            raise KubeconfigError(
                f"cannot use the Pod's service account: {type(error).__name__}: {error}"
            ) from None
        reason = str(error) if isinstance(error, KubeconfigError) else _explain(where, context)
        raise KubeconfigError(
            f"cannot read the kubeconfig {where}: {reason or f'{type(error).__name__}: {error}'}"
        ) from None


def own_namespace(default: str = _DEFAULT_NAMESPACE) -> str:
    """Return the namespace of the Pod of this process, or `default` outside of a cluster."""
    if os.environ.get("POD_NAMESPACE"):
        return os.environ["POD_NAMESPACE"]
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or default
    except OSError:
        return default


def _files(where: str) -> list[Path]:
    """Return the files that `KUBECONFIG` or a flag names."""
    return [Path(name).expanduser() for name in where.split(os.pathsep) if name]


def _explain(where: str, context: str) -> str:
    """Explain the user's mistake in a kubeconfig that could not be read; empty if unknown."""
    files = _files(where)
    if len(files) != 1:
        return ""
    try:
        config = load(files[0].read_bytes())
    except KubeconfigError as error:
        return str(error)
    except OSError as error:
        return str(error.strerror)

    entries = config.get("contexts") or ()
    names = [str(entry.get("name")) for entry in entries if isinstance(entry, Mapping)]
    name = context or config.get("current-context")
    if not name:
        return (
            "it has no current-context; set one with `kubectl config use-context`, or pass "
            "--context"
        )
    if name in names:
        return ""
    return f"it has no context {name!r}; its contexts are: {', '.join(names) or 'none'}"


def _inline_connection(kubeconfig: str) -> Connection:
    return parse_kubeconfig(Path(kubeconfig).expanduser().read_bytes()).connection()


def _in_cluster() -> Connection:
    """Return the connection of the Pod's ServiceAccount."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    access = Kubeconfig(server=server, ca=(_SERVICE_ACCOUNT / "ca.crt").read_text())
    token = _ServiceAccountToken(_SERVICE_ACCOUNT / "token")
    return dataclasses.replace(access.connection(), authorization=token.authorization)


class _ServiceAccountToken:
    """The token of a Pod, whose file the kubelet renews long before the token expires."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = -math.inf
        self._token = ""

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at > _TOKEN_SECONDS:
            self._token = self._file.read_text().strip()
            self._read_at = time.monotonic()
        return f"Bearer {self._token}"
