"""Certificates of a sandbox. Each API server has its own CA, so no other accepts its credentials.

All keys are P-256, because a new P-256 key takes less than a millisecond, and an RSA key a hundred.
"""

import base64
import datetime
import ipaddress
import ssl
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from caphv.api.object import Obj

LIFETIME = datetime.timedelta(days=365)
# Clocks of containers on one machine can differ a little.
BACKDATE = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def server_context(self) -> ssl.SSLContext:
        """Return TLS settings for a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # OpenSSL reads keys from files only.
        with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
            certificate = Path(folder) / "crt"
            key = Path(folder) / "key"
            certificate.write_bytes(self.certificate)
            key.write_bytes(self.key)
            context.load_cert_chain(certificate, key)
        return context


@dataclass(frozen=True)
class CA:
    """A certificate authority. `pair` may come from the CA Secret of a workload cluster."""

    pair: KeyPair

    @classmethod
    def create(cls, common_name: str) -> "CA":
        """Create a self-signed CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(common_name, ())
        builder = _builder(name, name, key.public_key())
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        builder = builder.add_extension(_usage(ca=True), critical=True)
        return cls(_sign(builder, key, key))

    @property
    def certificate(self) -> bytes:
        """Return the CA's certificate, PEM."""
        return self.pair.certificate

    def server(self, names: Sequence[str], *, common_name: str = "") -> KeyPair:
        """Sign a server certificate for host names and IP addresses.

        Its CN is `common_name`, or the first name.
        """
        return self._sign_for_names(names, common_name or names[0], ExtendedKeyUsageOID.SERVER_AUTH)

    def peer(self, names: Sequence[str]) -> KeyPair:
        """Sign a certificate for a server that is a client of its peers, such as an etcd member."""
        return self._sign_for_names(
            names, names[0], ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
        )

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Sign a client certificate for a user."""
        # kube-apiserver reads the user from the CN and the groups from the organisations.
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._leaf(_name(user, groups), key, ExtendedKeyUsageOID.CLIENT_AUTH)
        return _sign(builder, key, self._key())

    def _sign_for_names(
        self, names: Sequence[str], common_name: str, *usages: x509.ObjectIdentifier
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._leaf(_name(common_name, ()), key, *usages)
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        return _sign(builder.add_extension(alternatives, critical=False), key, self._key())

    def _leaf(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *usages: x509.ObjectIdentifier
    ) -> x509.CertificateBuilder:
        issuer = load_certificate(self.pair.certificate)
        authority = _authority_key_identifier(issuer)

        builder = _builder(subject, issuer.subject, key.public_key())
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(_usage(ca=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.add_extension(authority, critical=False)

    def _key(self) -> CertificateIssuerPrivateKeyTypes:
        return serialization.load_pem_private_key(self.pair.key, None)  # type: ignore[return-value]


def _authority_key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier that the issuer gives its key."""
    # Read the identifier if it exists, because CAs created by Go 1.25 and later do not compute it
    # with SHA-1.
    try:
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        key = issuer.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def client_context(ca: bytes) -> ssl.SSLContext:
    """Return TLS settings for clients that trust a CA (PEM) in the same way as Go's clients."""
    # Strict verification refuses CAs of Cluster API, because they have the serial number 0.
    context = ssl.create_default_context(cadata=ca.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def load_certificate(certificate: bytes) -> x509.Certificate:
    """Parse a certificate (PEM)."""
    # cryptography warns about the serial number 0, which CAs of Cluster API have.
    with warnings.catch_warnings(category=CryptographyDeprecationWarning, action="ignore"):
        return x509.load_pem_x509_certificate(certificate)


def create_signing_key() -> bytes:
    """Create a key for service account tokens (ES256), PEM."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def kubeconfig(server: str, ca: bytes, *, name: str, user: str, credentials: Obj) -> Obj:
    """Build a kubeconfig with one context `name`.

    `credentials` is the user entry: `certificate_user(pair)` or `{"token": …}`. `ca` is PEM.
    """
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority-data": _base64(ca)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }


def to_yaml(config: Obj) -> bytes:
    """Format a kubeconfig for a file."""
    return yaml.safe_dump(config, sort_keys=False).encode()


def certificate_user(pair: KeyPair) -> Obj:
    """Build the user entry of a kubeconfig from a client certificate."""
    return {
        "client-certificate-data": _base64(pair.certificate),
        "client-key-data": _base64(pair.key),
    }


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, item) for item in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    time = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(time - BACKDATE).not_valid_after(time + LIFETIME)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: CertificateIssuerPrivateKeyTypes,
) -> KeyPair:
    certificate = builder.sign(signer, hashes.SHA256())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # Use this form instead of PKCS 8, because kube-apiserver reads EC keys of service accounts only
    # in this form.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
