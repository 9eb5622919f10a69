"""Read kubeconfigs of others, for example from Secrets. They may be hostile.

A kubeconfig can name programs to run (`exec`, `auth-provider`) and files to read. In a Secret, they
would let everybody who may write the Secret run commands in the controller. So only inline
credentials are accepted. `caphv.runtime.user_kubeconfig` reads a user's own kubeconfig.
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
# OpenSSL reads certificates on the event loop. Those of all public authorities have 220 KiB.
_MAX_PEM_LENGTH = 256 * 1024
# Characters of a name that messages show.
_MAX_SHOWN = 64
_IMPERSONATION = {"as", "as-uid", "as-groups", "as-user-extra"}


class KubeconfigError(ValueError):
    """A kubeconfig is invalid.

    The text names the field and the remedy, never a value that may be secret.
    """


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Inline credentials for one API server. Its `repr` shows no secrets.

    `namespace` is that of the context. `proxy_of_environment`: the environment of this process sets
    the proxy, not the kubeconfig.
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

    @property
    def fingerprint(self) -> str:
        """A hash of server and credentials, which is safe to log.

        Secrets with the same content have the same fingerprint.
        """
        parts = [self.server, self.ca, self.token, self.client_certificate, self.client_key]
        parts += [self.tls_server_name, self.proxy_url, str(self.insecure)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def expires(self) -> datetime | None:
        """Return the earlier expiry of token and client certificate, None if both are unknown.

        Tokens of ServiceAccounts and of OpenID Connect have a claim `exp`, tokens of Rancher do
        not.
        """
        validity = certificate_validity(self.client_certificate)
        expiries = (_token_expiry(self.token), validity.end if validity else None)
        return min((expiry for expiry in expiries if expiry), default=None)

    def connection(self, check_address: AddressCheck | None = None) -> Connection:
        """Return connection settings with these credentials.

        Raises `KubeconfigError` if the certificates or the key cannot be used.
        """
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
        """Return a client with these credentials. Raises `KubeconfigError` as `connection` does.

        By default the client does not trust the server, because a Secret can name any server.

        :param options: keyword arguments of `ApiClient`
        """
        return ApiClient(self.connection(check_address), **{"untrusted": True, **options})

    def _load_certificate(self, tls: ssl.SSLContext) -> None:
        # OpenSSL only reads keys from files.
        with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # mode 0700
            certificate = Path(folder, "crt")
            key = Path(folder, "key")
            certificate.write_text(self.client_certificate)
            key.write_text(self.client_key)
            tls.load_cert_chain(certificate, key)


def parse_kubeconfig(raw: bytes | str, *, allow_insecure: bool = False) -> Kubeconfig:
    """Read a kubeconfig from an untrusted source. Raises `KubeconfigError` with all problems.

    Programs, files, passwords, impersonation, plain HTTP and `insecure-skip-tls-verify` (unless
    allowed) are refused. Without `proxy-url`, the proxy of the environment is used.
    """
    config = load(raw)
    if not config.get("current-context"):
        raise KubeconfigError(
            "current-context: required; name the context to use, for example with `kubectl config "
            "use-context`"
        )
    context = _find(config, "context", config["current-context"])
    cluster = _find(config, "cluster", context.fields.get("cluster"))
    user = _find(config, "user", context.fields.get("user"))

    # The other checks need fields that are texts.
    problems = [
        *_text_problems(context, _CONTEXT_TEXTS),
        *_text_problems(cluster, _CLUSTER_TEXTS),
        *_text_problems(user, _USER_TEXTS),
    ]
    if not problems:
        problems += _cluster_problems(cluster, allow_insecure=allow_insecure)
        problems += _user_problems(user)
    if problems:
        raise KubeconfigError("; ".join(problems))

    server = cluster.text("server")
    return Kubeconfig(
        server=server.rstrip("/"),
        namespace=context.text("namespace"),
        ca=_decode(cluster, "certificate-authority-data"),
        token=user.text("token").strip(),
        client_certificate=_decode(user, "client-certificate-data"),
        client_key=_decode(user, "client-key-data"),
        tls_server_name=cluster.text("tls-server-name"),
        proxy_url=cluster.text("proxy-url") or environment_proxy(server),
        insecure=bool(cluster.fields.get("insecure-skip-tls-verify")),
        proxy_of_environment=not cluster.text("proxy-url"),
    )


def _authorization_with(token: str) -> Authorization:
    async def authorization() -> str:
        return f"Bearer {token}" if token else ""

    return authorization


def token_claims(token: str) -> dict[str, Any]:
    """Return the unverified claims of a JSON Web Token; empty for a token of another kind."""
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


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is valid."""

    start: datetime
    end: datetime


def certificate_validity(pem: str) -> Validity | None:
    """Return the validity of the first certificate in a PEM text; None if there is none."""
    # Import this only here. Otherwise every command would take 20 ms longer to start, although few
    # commands need the expiry of a certificate.
    from cryptography import x509  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except (ValueError, x509.InvalidVersion):
        return None
    return Validity(start=certificate.not_valid_before_utc, end=certificate.not_valid_after_utc)


def load(raw: bytes | str) -> Mapping[str, Any]:
    """Return the unchecked content of a kubeconfig. Raises `KubeconfigError` for other texts."""
    if len(raw) > _MAX_BYTES:
        raise KubeconfigError("kubeconfig: larger than 1 MiB")

    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    try:
        config = load_yaml(text, _LIMITS)
    except TextError as error:
        raise KubeconfigError(f"kubeconfig: {error}") from None
    if not isinstance(config, Mapping):
        raise KubeconfigError(
            "kubeconfig: must be a kubeconfig file with clusters, users and contexts; found "
            "something else, or nothing"
        )
    return config


@dataclass(frozen=True, slots=True)
class _Section:
    """A context, cluster or user of a kubeconfig; `path` is its place for messages."""

    path: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a field that `_text_problems` accepts; empty without the field."""
        return str(self.fields.get(name) or "")

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the names of the fields that the section has, sorted."""
        return sorted(self.fields.keys() & names)

    def problem(self, name: str, detail: str) -> str:
        """Return a message about a field."""
        return f"{self.path}.{name}: {detail}"


def _find(config: Mapping[str, Any], kind: str, name: Any) -> _Section:
    """Return a section by its name. Raises `KubeconfigError` if there is none."""
    if not isinstance(name, str):
        raise KubeconfigError(f"{kind}s: the current context must name one of them as text")

    entries = config.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            path = f"{kind}s[{ascii(name[:_MAX_SHOWN])[1:-1]}].{kind}"
            if not isinstance(entry.get(kind), Mapping):
                raise KubeconfigError(f"{path}: must be an object with fields")
            return _Section(path, entry[kind])
    raise KubeconfigError(
        f"{kind}s: has no entry named {name[:_MAX_SHOWN]!a}, which the current context uses"
    )


def _text_problems(section: _Section, names: Iterable[str]) -> Iterator[str]:
    """Yield a problem for each field that is not plain text."""
    for name in names:
        value = section.fields.get(name) or ""
        if isinstance(value, str):
            may_have_lines = name.endswith("-data")  # base64 may be wrapped
            if may_have_lines or (value.isascii() and value.strip().isprintable()):
                continue
        yield section.problem(name, "must be plain text on one line, in quotes")


def _is_url(value: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value)
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0:
            return False
        return bool(URL(value).host)
    except ValueError:  # malformed brackets or port
        return False


def _cluster_problems(cluster: _Section, *, allow_insecure: bool) -> Iterator[str]:
    server = cluster.text("server")
    if not _is_url(server, ("https",)) or set(server) & set("@?#"):
        yield cluster.problem(
            "server", "must be an https:// URL without user, password, query and fragment"
        )
    if cluster.fields.get("insecure-skip-tls-verify") and not allow_insecure:
        yield cluster.problem(
            "insecure-skip-tls-verify", "refused; give certificate-authority-data instead"
        )
    proxy = cluster.text("proxy-url")
    if proxy and not _is_url(proxy, ("http", "https")):
        yield cluster.problem("proxy-url", "must be an http:// or https:// URL")
    yield from _reference_problems(cluster)


def _user_problems(user: _Section) -> Iterator[str]:
    yield from _reference_problems(user)
    for name in user.present(_PASSWORDS):
        yield user.problem(
            name, "API servers no longer take passwords; use a token or a client certificate"
        )
    for name in user.present(_IMPERSONATION):
        yield user.problem(
            name, "impersonation is not supported; give the identity its own credentials"
        )

    certificate = user.text("client-certificate-data")
    if bool(certificate) != bool(user.text("client-key-data")):
        yield f"{user.path}: client-certificate-data and client-key-data belong together"
    # `_reference_problems` has reported programs already.
    if not user.text("token").strip() and not certificate and not user.present(_PROGRAMS):
        yield (
            f"{user.path}: has no credentials; give token, or client-certificate-data and "
            "client-key-data"
        )


def _reference_problems(section: _Section) -> Iterator[str]:
    """Yield a problem for each field that names a program or a file."""
    for name in section.present(_PROGRAMS):
        yield section.problem(
            name,
            "refused, it would run a program in the controller; use a token or a client "
            "certificate",
        )
    for name in section.present(_FILES):
        inline_field = "token" if name == "tokenFile" else f"{name}-data"
        yield section.problem(
            name,
            f"refused, it names a file; put the content into {inline_field} (`kubectl config view "
            "--flatten`)",
        )


def _decode(section: _Section, name: str) -> str:
    """Return the PEM text of a field, empty without the field. Raises `KubeconfigError`."""
    encoded = "".join(section.text(name).split())  # like kubectl, accept wrapped base64
    try:
        text = base64.b64decode(encoded, validate=True).decode("ascii")
    except ValueError:
        text = "?"

    if len(text) > _MAX_PEM_LENGTH:
        raise KubeconfigError(
            f"{name}: has more than {_MAX_PEM_LENGTH // 1024} KiB; give the CA of this server alone"
        )
    if text and "-----BEGIN" not in text:
        raise KubeconfigError(f"{name}: is not base64 of PEM text")
    if "ENCRYPTED" in text:
        # OpenSSL would ask for the pass phrase on the terminal and block the process.
        raise KubeconfigError(f"{name}: is encrypted; give the key without a pass phrase")
    return text
