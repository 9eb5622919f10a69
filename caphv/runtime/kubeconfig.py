"""Kubeconfigs: the trusted one of this process, and those in Secrets, which may be hostile.

A kubeconfig can name programs to run (`exec`, `auth-provider`) and files to read. In a Secret that would let everybody
who may write the Secret run commands in the controller, so only inline credentials are accepted there.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import math
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from yarl import URL

from caphv.runtime.addresses import AddressCheck
from caphv.runtime.client import ApiClient
from caphv.runtime.proxy import environment_proxy
from caphv.runtime.text import Limits, TextError, load_json, load_yaml
from caphv.runtime.transport import Authorization, Connection

_DEFAULT_NAMESPACE = "caphv-system"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60.0
_MAX_BYTES = 1024 * 1024
# A kubeconfig needs neither aliases nor many levels. One of a hundred clusters has 2,000 values.
_LIMITS = Limits(size=_MAX_BYTES, depth=30, nodes=10_000, anchors=False)
_FILES = {"certificate-authority", "client-certificate", "client-key", "tokenFile"}
_PROGRAMS = {"exec", "auth-provider"}
_PASSWORDS = {"username", "password"}
_CONTEXT_TEXTS = ("namespace",)
_CLUSTER_TEXTS = ("server", "certificate-authority-data", "tls-server-name", "proxy-url")
_USER_TEXTS = ("token", "client-certificate-data", "client-key-data")
# The certificates of all public authorities have 220 KiB. OpenSSL reads them on the event loop.
_LONGEST_PEM = 256 * 1024
_SHOWN = 64
_SHAPES = {"kubeconfig": "a kubeconfig file with clusters, users and contexts; found something else, or nothing"}
_IMPERSONATION = {"as", "as-uid", "as-groups", "as-user-extra"}


class KubeconfigError(ValueError):
    """A kubeconfig is invalid; the text names the field and the remedy, never a value that may be secret."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Inline credentials for one API server. The representation shows the server only.

    `any_address` waives the check of the server's address, see `caphv.runtime.addresses`.
    """

    server: str
    namespace: str = ""
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    client_certificate: str = field(default="", repr=False)
    client_key: str = field(default="", repr=False)
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    insecure: bool = False
    proxy_of_environment: bool = False
    any_address: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash over server and credentials: equal for Secrets with the same content, safe to log."""
        parts = [self.server, self.ca, self.token, self.client_certificate, self.client_key]
        parts += [self.tls_server_name, self.proxy_url, str(self.insecure)]
        parts += ["any address"] if self.any_address else []
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def expires(self) -> datetime | None:
        """When token or client certificate expires, whichever is first; None if neither says.

        Tokens of ServiceAccounts and OpenID Connect have a claim `exp`; those of Rancher have none.
        """
        moments = (_token_expires(self.token), _certificate_expires(self.client_certificate))
        return min((moment for moment in moments if moment), default=None)

    def connection(self, check_address: AddressCheck | None = None) -> Connection:
        """The connection of a client with these credentials. Raises `KubeconfigError`."""
        try:
            tls = ssl.create_default_context(cadata=self.ca or None)
            if self.insecure:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            # Hand-made certificates often lack extensions that OpenSSL's strict mode requires.
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.client_certificate:
                self._load_certificate(tls)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise KubeconfigError(f"certificate data of {self.server} cannot be used: {type(error).__name__}") from None
        proxy, name = self.proxy_url or None, self.tls_server_name or None
        check = None if self.any_address else check_address
        return Connection(self.server, tls, _always(self.token), proxy, name, self.proxy_of_environment, check)

    def client(self, check_address: AddressCheck | None = None, **options: Any) -> ApiClient:
        """A client with these credentials; `options` are those of `ApiClient`. Raises `KubeconfigError`.

        A Secret can name any server, so the server is untrusted unless the options say otherwise.
        """
        return ApiClient(self.connection(check_address), **{"untrusted": True, **options})

    def _load_certificate(self, tls: ssl.SSLContext) -> None:
        # OpenSSL reads keys from files only.
        with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700
            certificate, key = Path(folder, "crt"), Path(folder, "key")
            certificate.write_text(self.client_certificate)
            key.write_text(self.client_key)
            tls.load_cert_chain(certificate, key)


def parse_kubeconfig(raw: bytes | str, *, allow_insecure: bool = False) -> Kubeconfig:
    """Read a kubeconfig from an untrusted source. Raises `KubeconfigError` with all problems.

    `current-context` is required (contract: identity Secret). Programs, files, passwords, impersonation, plain HTTP
    and `insecure-skip-tls-verify` (unless allowed) are refused. Without `proxy-url`, that of the environment is used.
    """
    config = _mapping(_load(raw), "kubeconfig")
    if not config.get("current-context"):
        raise KubeconfigError(
            "current-context: required; name the context to use, for example with `kubectl config use-context`"
        )
    context, in_context = _entry(config, "context", config["current-context"])
    cluster, in_cluster = _entry(config, "cluster", context.get("cluster"))
    user, in_user = _entry(config, "user", context.get("user"))
    problems = [*_not_text(context, in_context, _CONTEXT_TEXTS)]
    problems += [*_not_text(cluster, in_cluster, _CLUSTER_TEXTS), *_not_text(user, in_user, _USER_TEXTS)]
    if not problems:
        problems += [*_cluster_problems(cluster, in_cluster, allow_insecure), *_user_problems(user, in_user)]
    if problems:
        raise KubeconfigError("; ".join(problems))
    return Kubeconfig(
        server=cluster["server"].rstrip("/"),
        namespace=context.get("namespace") or "",
        ca=_decode(cluster, "certificate-authority-data"),
        token=(user.get("token") or "").strip(),
        client_certificate=_decode(user, "client-certificate-data"),
        client_key=_decode(user, "client-key-data"),
        tls_server_name=cluster.get("tls-server-name") or "",
        proxy_url=cluster.get("proxy-url") or environment_proxy(cluster["server"]),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        proxy_of_environment=not cluster.get("proxy-url"),
    )


async def own_configuration(kubeconfig: str = "", context: str = "") -> Connection:
    """The connection of a user's command: the given kubeconfig, else `KUBECONFIG`, else the Pod's ServiceAccount.

    `context` overrides the current context of a kubeconfig. Raises `KubeconfigError` if none exists or is readable.
    """
    return await _configuration(kubeconfig, context, in_cluster=uses_service_account(kubeconfig, context))


async def process_configuration(kubeconfig: str = "") -> Connection:
    """The connection of a controller: the given kubeconfig, else the Pod's ServiceAccount, else `KUBECONFIG`.

    Raises `KubeconfigError` if none exists or is readable.
    """
    return await _configuration(kubeconfig, "", in_cluster=not kubeconfig and _in_pod())


def uses_service_account(kubeconfig: str, context: str) -> bool:
    """Whether a user's command with these flags uses the ServiceAccount of its Pod: it does where no file is named."""
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
        if not context:
            with contextlib.suppress(KubeconfigError, OSError):
                return _inline(where)
        # Imported here: the loaders of the `kubernetes` package take memory that processes in a cluster do not need.
        from caphv.runtime.user_kubeconfig import connection  # noqa: PLC0415

        return await connection(where, context)
    except Exception as error:
        if in_cluster:
            raise KubeconfigError(f"cannot use the Pod's service account: {type(error).__name__}: {error}") from None
        known = str(error) if isinstance(error, KubeconfigError) else _explain(where, context)
        raise KubeconfigError(
            f"cannot read the kubeconfig {where}: {known or f'{type(error).__name__}: {error}'}"
        ) from None


def own_namespace(default: str = _DEFAULT_NAMESPACE) -> str:
    """Return the namespace of the Pod that this process runs in; `default` outside of a cluster."""
    if os.environ.get("POD_NAMESPACE"):
        return os.environ["POD_NAMESPACE"]
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or default
    except OSError:
        return default


def _files(where: str) -> list[Path]:
    """The files that `KUBECONFIG` or a flag names."""
    return [Path(name).expanduser() for name in where.split(os.pathsep) if name]


def _explain(where: str, context: str) -> str:
    """Explain the user's mistake in a kubeconfig that could not be read; empty if unknown."""
    files = _files(where)
    if len(files) != 1:
        return ""
    try:
        config = _mapping(_load(files[0].read_bytes()), "kubeconfig")
    except KubeconfigError as error:
        return str(error)
    except OSError as error:
        return str(error.strerror)
    contexts = config.get("contexts")
    known = [str(entry.get("name")) for entry in contexts or () if isinstance(entry, Mapping)]
    wanted = context or config.get("current-context")
    if not wanted:
        return "it has no current-context; set one with `kubectl config use-context`, or pass --context"
    return "" if wanted in known else f"it has no context {wanted!r}; its contexts are: {', '.join(known) or 'none'}"


def _inline(kubeconfig: str) -> Connection:
    return parse_kubeconfig(Path(kubeconfig).expanduser().read_bytes()).connection()


def _always(token: str) -> Authorization:
    async def authorization() -> str:
        return f"Bearer {token}" if token else ""

    return authorization


def _in_cluster() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    access = Kubeconfig(server=server, ca=(_SERVICE_ACCOUNT / "ca.crt").read_text())
    token = _ServiceAccountToken(_SERVICE_ACCOUNT / "token")
    return dataclasses.replace(access.connection(), authorization=token.authorization)


class _ServiceAccountToken:
    """The kubelet renews the file long before the token expires."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = -math.inf
        self._token = ""

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at > _TOKEN_SECONDS:
            self._token, self._read_at = self._file.read_text().strip(), time.monotonic()
        return f"Bearer {self._token}"


def token_claims(token: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, empty for another token. Only its server can verify them."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = load_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def _token_expires(token: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(token_claims(token)["exp"]), UTC)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None


def _certificate_expires(pem: str) -> datetime | None:
    # Imported here: every command would take 20 ms longer to start, and few ask for the end of a certificate.
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except (ValueError, x509.InvalidVersion):
        return None


def _load(raw: bytes | str) -> Any:
    if len(raw) > _MAX_BYTES:
        raise KubeconfigError("kubeconfig: larger than 1 MiB")
    try:
        return load_yaml(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw, _LIMITS)
    except TextError as error:
        raise KubeconfigError(f"kubeconfig: {error}") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise KubeconfigError(f"{where}: must be {_SHAPES.get(where, 'an object with fields')}")
    return value


def _entry(config: Mapping[str, Any], kind: str, name: Any) -> tuple[Mapping[str, Any], str]:
    """Find a named entry; return it and its path for messages."""
    if not isinstance(name, str):
        raise KubeconfigError(f"{kind}s: the current context must name one of them as text")
    entries = config.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            where = f"{kind}s[{ascii(name[:_SHOWN])[1:-1]}].{kind}"
            return _mapping(entry.get(kind), where), where
    raise KubeconfigError(f"{kind}s: has no entry named {name[:_SHOWN]!a}, which the current context uses")


def _not_text(section: Mapping[str, Any], where: str, fields: Iterable[str]) -> Iterator[str]:
    for name in fields:
        value = section.get(name) or ""
        lines_allowed = name.endswith("-data")  # wrapped base64
        if not isinstance(value, str) or not (lines_allowed or (value.isascii() and value.strip().isprintable())):
            yield f"{where}.{name}: must be plain text on one line, in quotes"


def _is_url(value: str | None, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value or "")
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0 and bool(URL(value or "").host)
    except ValueError:  # malformed brackets or port
        return False


def _cluster_problems(cluster: Mapping[str, Any], where: str, allow_insecure: bool) -> Iterator[str]:
    server = cluster.get("server")
    if not _is_url(server, ("https",)) or set(str(server)) & set("@?#"):
        yield f"{where}.server: must be an https:// URL without user, password, query and fragment"
    if cluster.get("insecure-skip-tls-verify") and not allow_insecure:
        yield f"{where}.insecure-skip-tls-verify: refused; give certificate-authority-data instead"
    if cluster.get("proxy-url") and not _is_url(cluster["proxy-url"], ("http", "https")):
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
    if (
        not (user.get("token") or "").strip()
        and not user.get("client-certificate-data")
        and not _PROGRAMS & user.keys()
    ):
        yield f"{where}: has no credentials; give token, or client-certificate-data and client-key-data"


def _inline_only(section: Mapping[str, Any], where: str) -> Iterator[str]:
    for name in sorted(_PROGRAMS & section.keys()):
        yield f"{where}.{name}: refused, it would run a program in the controller; use a token or a client certificate"
    for name in sorted(_FILES & section.keys()):
        hint = "token" if name == "tokenFile" else f"{name}-data"
        yield f"{where}.{name}: refused, it names a file; put the content into {hint} (`kubectl config view --flatten`)"


def _decode(section: Mapping[str, Any], name: str) -> str:
    try:
        # like kubectl, accept wrapped base64
        text = base64.b64decode("".join((section.get(name) or "").split()), validate=True).decode("ascii")
    except ValueError:
        text = "?"
    if len(text) > _LONGEST_PEM:
        raise KubeconfigError(f"{name}: has more than {_LONGEST_PEM // 1024} KiB; give the CA of this server alone")
    if text and "-----BEGIN" not in text:
        raise KubeconfigError(f"{name}: is not base64 of PEM text")
    if "ENCRYPTED" in text:
        # OpenSSL would ask for the pass phrase on the terminal and block the process.
        raise KubeconfigError(f"{name}: is encrypted; give the key without a pass phrase")
    return text
