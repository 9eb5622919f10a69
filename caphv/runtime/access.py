"""From credentials to a client: the process's own (trusted) and those that users write into Secrets (hostile).

A kubeconfig can name programs to run (`exec`, `auth-provider`) and files to read. In the process's own kubeconfig that
is a feature. In a Secret it would let whoever may write the Secret run commands in the controller, so that reader
takes inline credentials only and refuses the rest by name.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import kube_config
from kubernetes.aio.config.incluster_config import load_incluster_config

from caphv.runtime.client import ApiClient

_MAX_BYTES = 1024 * 1024
_FILES = {"certificate-authority", "client-certificate", "client-key", "tokenFile"}
_PROGRAMS = {"exec", "auth-provider"}
_PASSWORDS = {"username", "password"}
_IMPERSONATION = {"as", "as-uid", "as-groups", "as-user-extra"}


class KubeconfigError(ValueError):
    """A kubeconfig cannot be used; the text names the field and the remedy, never a value that may be secret."""


@dataclass(frozen=True, slots=True)
class Access:
    """Inline credentials for one API server. The representation shows the server only."""

    server: str
    namespace: str = ""
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    client_certificate: str = field(default="", repr=False)
    client_key: str = field(default="", repr=False)
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    insecure: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash over server and credentials: equal for two Secrets that say the same, safe to log."""
        parts = [self.server, self.ca, self.token, self.client_certificate, self.client_key]
        parts += [self.tls_server_name, self.proxy_url, str(self.insecure)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def configuration(self) -> Configuration:
        """Connection settings for an `ApiClient`."""
        configuration = Configuration(host=self.server)
        configuration.verify_ssl = not self.insecure
        configuration.ca_cert_data = self.ca or None
        # Certificates that users make by hand often lack extensions that OpenSSL's strict mode wants.
        configuration.disable_strict_ssl_verification = True
        configuration.tls_server_name = self.tls_server_name or None
        configuration.proxy = self.proxy_url or None
        if self.token:
            configuration.api_key["BearerToken"] = f"Bearer {self.token}"
        return configuration

    def client(self, **options: Any) -> ApiClient:
        """A client with these credentials; `options` are those of `ApiClient`. Raises `KubeconfigError`."""
        try:
            with self._certificate_files(self.configuration()) as configuration:
                return ApiClient(configuration, **options)
        except (ssl.SSLError, OSError) as error:
            raise KubeconfigError(f"certificate data of {self.server} cannot be used: {type(error).__name__}") from None

    @contextlib.contextmanager
    def _certificate_files(self, configuration: Configuration) -> Iterator[Configuration]:
        """Lend the client certificate as files: OpenSSL reads keys from files only. They are gone after the block."""
        if not self.client_certificate:
            yield configuration
            return
        with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700
            configuration.cert_file, configuration.key_file = f"{folder}/crt", f"{folder}/key"
            Path(configuration.cert_file).write_text(self.client_certificate)
            Path(configuration.key_file).write_text(self.client_key)
            yield configuration


def parse_kubeconfig(raw: bytes | str, *, allow_insecure: bool = False) -> Access:
    """Read a kubeconfig from an untrusted source. Raises `KubeconfigError` that names all that is wrong with it.

    `current-context` is required (contract: identity Secret). Programs, files, passwords, impersonation, plain HTTP
    and `insecure-skip-tls-verify` (unless allowed) are refused.
    """
    config = _mapping(_load(raw), "kubeconfig")
    context_name = config.get("current-context")
    if not context_name:
        raise KubeconfigError(
            "current-context: required; name the context to use, for example with `kubectl config use-context`"
        )
    context = _mapping(_entry(config, "contexts", context_name).get("context"), f"contexts[{context_name}].context")
    cluster_name, user_name = context.get("cluster"), context.get("user")
    cluster = _mapping(_entry(config, "clusters", cluster_name).get("cluster"), f"clusters[{cluster_name}].cluster")
    user = _mapping(_entry(config, "users", user_name).get("user") or {}, f"users[{user_name}].user")
    problems = [*_cluster_problems(cluster, f"clusters[{cluster_name}].cluster", allow_insecure)]
    problems += _user_problems(user, f"users[{user_name}].user")
    if problems:
        raise KubeconfigError("; ".join(problems))
    try:
        return Access(
            server=str(cluster["server"]).rstrip("/"),
            namespace=str(context.get("namespace") or ""),
            ca=_decode(cluster, "certificate-authority-data"),
            token=str(user.get("token") or "").strip(),
            client_certificate=_decode(user, "client-certificate-data"),
            client_key=_decode(user, "client-key-data"),
            tls_server_name=str(cluster.get("tls-server-name") or ""),
            proxy_url=str(cluster.get("proxy-url") or ""),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
        )
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        field_name = str(error) if isinstance(error, KubeconfigError) else "certificate data"
        raise KubeconfigError(f"{field_name}: is not base64 of PEM text") from None


async def own_configuration(kubeconfig: str = "") -> Configuration:
    """Connection settings of this process: the named kubeconfig, else the Pod's service account, else `KUBECONFIG`.

    Raises `KubeconfigError` when none of them is there or can be read.
    """
    configuration = Configuration()
    try:
        if not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)
        else:
            await kube_config.load_kube_config(kubeconfig or None, client_configuration=configuration)
    except Exception as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise KubeconfigError(f"cannot read the kubeconfig {where}: {type(error).__name__}: {error}") from None
    return configuration


def _load(raw: bytes | str) -> Any:
    if len(raw) > _MAX_BYTES:
        raise KubeconfigError("kubeconfig: larger than 1 MiB")
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if re.search(r"(?m)^[^#'\"]*[:\-,\[{]\s+[&*][A-Za-z0-9_]", text):
        raise KubeconfigError("kubeconfig: YAML anchors and aliases are not accepted")
    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, RecursionError):
        # The parser's message quotes the text, which holds credentials.
        raise KubeconfigError("kubeconfig: is not valid YAML") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise KubeconfigError(f"{where}: must be a mapping")
    return value


def _entry(config: Mapping[str, Any], section: str, name: Any) -> Mapping[str, Any]:
    entries = config.get(section)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            return entry
    raise KubeconfigError(f"{section}: has no entry named {str(name)[:64]!r}, which the current context uses")


def _cluster_problems(cluster: Mapping[str, Any], where: str, allow_insecure: bool) -> Iterator[str]:
    server = cluster.get("server")
    parts = urlsplit(server) if isinstance(server, str) else None
    if parts is None or parts.scheme != "https" or not parts.hostname or parts.username or parts.query:
        yield f"{where}.server: must be an https:// URL without user, password and query"
    if cluster.get("insecure-skip-tls-verify") and not allow_insecure:
        yield f"{where}.insecure-skip-tls-verify: refused; give certificate-authority-data instead"
    proxy = cluster.get("proxy-url")
    if proxy and (not isinstance(proxy, str) or urlsplit(proxy).scheme not in ("http", "https")):
        yield f"{where}.proxy-url: must be an http:// or https:// URL"
    yield from _inline_only(cluster, where)


def _user_problems(user: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _inline_only(user, where)
    for name in sorted(_PASSWORDS & user.keys()):
        yield f"{where}.{name}: API servers no longer take passwords; use a token or a client certificate"
    for name in sorted(_IMPERSONATION & user.keys()):
        yield f"{where}.{name}: impersonation is not supported; give the identity its own credentials"
    if bool(user.get("client-certificate-data")) != bool(user.get("client-key-data")):
        yield f"{where}: client-certificate-data and client-key-data belong together"
    if not user.get("token") and not user.get("client-certificate-data") and not _PROGRAMS & user.keys():
        yield f"{where}: has no credentials; give token, or client-certificate-data and client-key-data"


def _inline_only(section: Mapping[str, Any], where: str) -> Iterator[str]:
    for name in sorted(_PROGRAMS & section.keys()):
        yield f"{where}.{name}: refused, it would run a program in the controller; use a token or a client certificate"
    for name in sorted(_FILES & section.keys()):
        hint = "token" if name == "tokenFile" else f"{name}-data"
        yield f"{where}.{name}: refused, it names a file; put the content into {hint} (`kubectl config view --flatten`)"


def _decode(section: Mapping[str, Any], name: str) -> str:
    value = section.get(name)
    if not value:
        return ""
    try:
        text = base64.b64decode(str(value), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        raise KubeconfigError(name) from None
    if "-----BEGIN" not in text:
        raise KubeconfigError(name)
    return text
