"""Find the API server and the credentials of this process: a kubeconfig or a ServiceAccount."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from pathlib import Path

from caphv.runtime.connection import Connection
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig

_DEFAULT_NAMESPACE = "caphv-system"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Seconds after which the file of the token is read again.
_TOKEN_SECONDS = 60.0


async def own_configuration(kubeconfig: str, context: str = "") -> Connection:
    """Return the connection of a user's command.

    It comes from the given kubeconfig, else from `KUBECONFIG`, else from the Pod's ServiceAccount,
    else from `~/.kube/config`. `context` overrides the current context of a kubeconfig. Raises
    `KubeconfigError` if there is none, or if it cannot be used.
    """
    if uses_service_account(kubeconfig, context):
        return _in_cluster()
    return await _from_kubeconfig(kubeconfig, context)


async def process_configuration(kubeconfig: str) -> Connection:
    """Return the connection of a controller.

    It comes from the given kubeconfig, else from the Pod's ServiceAccount, else from `KUBECONFIG`
    or `~/.kube/config`. Raises `KubeconfigError` if there is none, or if it cannot be used.
    """
    if not kubeconfig and _in_pod():
        return _in_cluster()
    return await _from_kubeconfig(kubeconfig, context="")


def uses_service_account(kubeconfig: str, context: str) -> bool:
    """Return whether a user's command with these flags uses the ServiceAccount of its Pod.

    It does if neither a flag nor `KUBECONFIG` names an existing file.
    """
    if kubeconfig or context or not _in_pod():
        return False
    return not any(
        os.path.exists(file) for file in kubeconfig_files(os.environ.get("KUBECONFIG", ""))
    )


def kubeconfig_paths(kubeconfig: str) -> str:
    """Return the given path list, else that of `KUBECONFIG`, else kubectl's default."""
    return kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"


def kubeconfig_files(paths: str) -> list[Path]:
    """Return the files of a path list in the format of `KUBECONFIG`."""
    return [Path(name).expanduser() for name in paths.split(os.pathsep) if name]


def _in_pod() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def own_namespace(default: str = _DEFAULT_NAMESPACE) -> str:
    """Return the namespace of the Pod of this process, or `default` outside of a cluster."""
    if os.environ.get("POD_NAMESPACE"):
        return os.environ["POD_NAMESPACE"]
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or default
    except OSError:
        return default


async def _from_kubeconfig(kubeconfig: str, context: str) -> Connection:
    """Return the connection of a kubeconfig file. Raises `KubeconfigError`."""
    paths = kubeconfig_paths(kubeconfig)
    # Most kubeconfigs are one file with inline credentials.
    if not context:
        with contextlib.suppress(KubeconfigError, OSError):
            return _inline_connection(paths)

    # Import this only here, because the loaders of the `kubernetes` package take memory that
    # processes in a cluster do not need.
    from caphv.runtime.user_kubeconfig import connection  # noqa: PLC0415

    try:
        return await connection(paths, context)
    except KubeconfigError as error:
        raise KubeconfigError(f"cannot read the kubeconfig {paths}: {error}") from None


def _inline_connection(file: str) -> Connection:
    return parse_kubeconfig(Path(file).expanduser().read_bytes()).connection()


def _in_cluster() -> Connection:
    """Return the connection of the Pod's ServiceAccount. Raises `KubeconfigError`."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        credentials = Kubeconfig(server=server, ca=(_SERVICE_ACCOUNT / "ca.crt").read_text())
        connection = credentials.connection()
    except (OSError, ValueError) as error:
        raise KubeconfigError(
            f"cannot use the Pod's service account: {type(error).__name__}: {error}"
        ) from None

    token = _ServiceAccountToken(_SERVICE_ACCOUNT / "token")
    return dataclasses.replace(connection, authorization=token.authorization)


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
