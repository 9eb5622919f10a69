"""Read kubeconfigs with inline credentials, for example from Secrets, which may be hostile.

A kubeconfig can name programs to run (`exec`, `auth-provider`) and files to read. In a Secret, they
would let everybody who may write the Secret run commands in the controller. Therefore only inline
credentials are accepted there.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from yarl import URL

from caphv.runtime.addresses import AddressCheck
from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Authorization, Connection
from caphv.runtime.proxy import environment_proxy
from caphv.runtime.text import Limits, TextError, load_json, load_yaml

_MAX_BYTES = 1024 * 1024
# A kubeconfig needs neither aliases nor many levels. With a hundred clusters, it has 2,000 values.
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
_SHAPES = {
    "kubeconfig": (
        "a kubeconfig file with clusters, users and contexts; found something else, or nothing"
    )
}
_IMPERSONATION = {"as", "as-uid", "as-groups", "as-user-extra"}


class KubeconfigError(ValueError):
    """A kubeconfig is invalid.

    The text names the field and the remedy, never a value that may be secret.
    """


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Inline credentials for one API server. The representation shows only the server."""

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

    @property
    def fingerprint(self) -> str:
        """A hash of server and credentials, which is safe to log.

        It is equal for Secrets with the same content.
        """
        parts = [self.server, self.ca, self.token, self.client_certificate, self.client_key]
        parts += [self.tls_server_name, self.proxy_url, str(self.insecure)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def expires(self) -> datetime | None:
        """Return when the token or client certificate expires first, None if unknown.

        Tokens of ServiceAccounts and OpenID Connect have a claim `exp`, but tokens of Rancher do
        not.
        """
        moments = (_token_expiry(self.token), _certificate_expiry(self.client_certificate))
        return min((moment for moment in moments if moment), default=None)

    def connection(self, check_address: AddressCheck | None = None) -> Connection:
        """Return the connection of a client with these credentials. Raises `KubeconfigError`."""
        try:
            tls = ssl.create_default_context(cadata=self.ca or None)
            if self.insecure:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
            # Hand-made certificates often lack extensions that OpenSSL's strict mode requires.
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.client_certificate:
                self._load_certificate(tls)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise KubeconfigError(
                f"certificate data of {self.server} cannot be used: {type(error).__name__}"
            ) from None

        return Connection(
            server=self.server,
            tls=tls,
            authorization=_authorization_with(self.token),
            proxy=self.proxy_url or None,
            server_name=self.tls_server_name or None,
            trusted_proxy=self.proxy_of_environment,
            check_address=check_address,
        )

    def client(self, check_address: AddressCheck | None = None, **options: Any) -> ApiClient:
        """Return a client with these credentials. Raises `KubeconfigError`.

        `ApiClient` explains the options. The client does not trust the server by default, because a
        Secret can name any server.
        """
        return ApiClient(self.connection(check_address), **{"untrusted": True, **options})

    def _load_certificate(self, tls: ssl.SSLContext) -> None:
        # OpenSSL reads keys from files only.
        with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700
            certificate = Path(folder, "crt")
            key = Path(folder, "key")
            certificate.write_text(self.client_certificate)
            key.write_text(self.client_key)
            tls.load_cert_chain(certificate, key)


def parse_kubeconfig(raw: bytes | str, *, allow_insecure: bool = False) -> Kubeconfig:
    """Read a kubeconfig from an untrusted source. Raises `KubeconfigError` with all problems.

    `current-context` is required (contract: identity Secret). Programs, files, passwords,
    impersonation, plain HTTP and `insecure-skip-tls-verify` (unless allowed) are refused. Without
    `proxy-url`, the proxy of the environment is used.
    """
    config = load(raw)
    if not config.get("current-context"):
        raise KubeconfigError(
            "current-context: required; name the context to use, for example with `kubectl config "
            "use-context`"
        )
    context, context_path = _entry(config, "context", config["current-context"])
    cluster, cluster_path = _entry(config, "cluster", context.get("cluster"))
    user, user_path = _entry(config, "user", context.get("user"))

    # The other checks need fields that are texts.
    problems = [
        *_not_text(context, context_path, _CONTEXT_TEXTS),
        *_not_text(cluster, cluster_path, _CLUSTER_TEXTS),
        *_not_text(user, user_path, _USER_TEXTS),
    ]
    if not problems:
        problems += _cluster_problems(cluster, cluster_path, allow_insecure)
        problems += _user_problems(user, user_path)
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


def _authorization_with(token: str) -> Authorization:
    async def authorization() -> str:
        return f"Bearer {token}" if token else ""

    return authorization


def token_claims(token: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, which only its server could verify.

    They are empty for a token of another kind.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = load_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def _token_expiry(token: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(token_claims(token)["exp"]), UTC)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None


def _certificate_expiry(pem: str) -> datetime | None:
    validity = certificate_validity(pem)
    return validity[1] if validity else None


def certificate_validity(pem: str) -> tuple[datetime, datetime] | None:
    """Return from when until when the first certificate of a PEM text is valid.

    None if it cannot be read.
    """
    # Import this only here. Otherwise every command would take 20 ms longer to start, although few
    # commands need the expiry of a certificate.
    from cryptography import x509  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except (ValueError, x509.InvalidVersion):
        return None
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def load(raw: bytes | str) -> Mapping[str, Any]:
    """Return the content of a kubeconfig, unchecked. Raises `KubeconfigError` for other texts."""
    if len(raw) > _MAX_BYTES:
        raise KubeconfigError("kubeconfig: larger than 1 MiB")

    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    try:
        return _mapping(load_yaml(text, _LIMITS), "kubeconfig")
    except TextError as error:
        raise KubeconfigError(f"kubeconfig: {error}") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise KubeconfigError(f"{where}: must be {_SHAPES.get(where, 'an object with fields')}")
    return value


def _entry(config: Mapping[str, Any], kind: str, name: Any) -> tuple[Mapping[str, Any], str]:
    """Return a named entry, and its path for messages."""
    if not isinstance(name, str):
        raise KubeconfigError(f"{kind}s: the current context must name one of them as text")

    entries = config.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            where = f"{kind}s[{ascii(name[:_SHOWN])[1:-1]}].{kind}"
            return _mapping(entry.get(kind), where), where
    raise KubeconfigError(
        f"{kind}s: has no entry named {name[:_SHOWN]!a}, which the current context uses"
    )


def _not_text(section: Mapping[str, Any], where: str, fields: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each field that is not plain text."""
    for name in fields:
        value = section.get(name) or ""
        if isinstance(value, str):
            may_have_lines = name.endswith("-data")  # base64 may be wrapped
            if may_have_lines or (value.isascii() and value.strip().isprintable()):
                continue
        yield f"{where}.{name}: must be plain text on one line, in quotes"


def _is_url(value: str | None, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value or "")
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0:
            return False
        return bool(URL(value or "").host)
    except ValueError:  # malformed brackets or port
        return False


def _cluster_problems(
    cluster: Mapping[str, Any], where: str, allow_insecure: bool
) -> Iterator[str]:
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
        yield (
            f"{where}.{name}: API servers no longer take passwords; use a token or a client "
            "certificate"
        )
    for name in sorted(_IMPERSONATION & user.keys()):
        yield (
            f"{where}.{name}: impersonation is not supported; give the identity its own credentials"
        )

    certificate = user.get("client-certificate-data")
    if bool(certificate) != bool(user.get("client-key-data")):
        yield f"{where}: client-certificate-data and client-key-data belong together"
    token = (user.get("token") or "").strip()
    # `_inline_only` has reported programs already.
    if not token and not certificate and not _PROGRAMS & user.keys():
        yield (
            f"{where}: has no credentials; give token, or client-certificate-data and "
            "client-key-data"
        )


def _inline_only(section: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield a problem for each field that names a program or a file."""
    for name in sorted(_PROGRAMS & section.keys()):
        yield (
            f"{where}.{name}: refused, it would run a program in the controller; use a token or a "
            "client certificate"
        )
    for name in sorted(_FILES & section.keys()):
        hint = "token" if name == "tokenFile" else f"{name}-data"
        yield (
            f"{where}.{name}: refused, it names a file; put the content into {hint} (`kubectl "
            "config view --flatten`)"
        )


def _decode(section: Mapping[str, Any], name: str) -> str:
    """Return the PEM text of a field, empty without the field. Raises `KubeconfigError`."""
    encoded = "".join((section.get(name) or "").split())  # kubectl accepts wrapped base64, too
    try:
        text = base64.b64decode(encoded, validate=True).decode("ascii")
    except ValueError:
        text = "?"

    if len(text) > _LONGEST_PEM:
        raise KubeconfigError(
            f"{name}: has more than {_LONGEST_PEM // 1024} KiB; give the CA of this server alone"
        )
    if text and "-----BEGIN" not in text:
        raise KubeconfigError(f"{name}: is not base64 of PEM text")
    if "ENCRYPTED" in text:
        # OpenSSL would ask for the pass phrase on the terminal and block the process.
        raise KubeconfigError(f"{name}: is encrypted; give the key without a pass phrase")
    return text
