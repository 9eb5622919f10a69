"""Certificates and kubeconfigs of a sandbox."""

import base64
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.processes import pki

pytestmark = pytest.mark.unit

NAMES = ["127.0.0.1", "workload.example"]


def verify(ca: pki.CA, pair: pki.KeyPair, name: str) -> None:
    store = Store([x509.load_pem_x509_certificate(ca.certificate)])
    subject = x509.DNSName(name) if name[0].isalpha() else x509.IPAddress(pki.ipaddress.ip_address(name))
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    PolicyBuilder().store(store).build_server_verifier(subject).verify(leaf, [])


@pytest.mark.parametrize("name", NAMES)
def test_server_certificate_chains_to_its_ca(name: str) -> None:
    ca = pki.CA.create("test")
    verify(ca, ca.server(NAMES), name)


def test_server_certificate_is_for_its_names_and_ca_only() -> None:
    ca = pki.CA.create("test")
    pair = ca.server(NAMES)
    with pytest.raises(VerificationError):
        verify(ca, pair, "127.0.0.2")
    with pytest.raises(VerificationError):
        verify(pki.CA.create("test"), pair, "127.0.0.1")


def test_client_certificate_names_user_and_groups_and_verifies() -> None:
    ca = pki.CA.create("test")
    certificate = x509.load_pem_x509_certificate(ca.client("jane", ["a:b", "c"]).certificate)
    store = Store([x509.load_pem_x509_certificate(ca.certificate)])
    assert certificate.subject.rfc4514_string() == "CN=jane,O=c,O=a:b"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.certificate))
    assert store
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_ca_made_elsewhere_with_rsa_can_sign() -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, pki.hashes.SHA256()).public_bytes(Encoding.PEM)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    leaf = x509.load_pem_x509_certificate(pki.CA(pki.KeyPair(certificate, pem)).server(NAMES).certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(certificate))


def test_kubeconfig_is_what_the_provider_accepts_from_users() -> None:
    ca = pki.CA.create("test")
    pair = ca.client("jane")
    config = pki.kubeconfig(
        "https://127.0.0.1:1", ca.certificate, name="here", user="jane", credentials=pki.certificate_user(pair)
    )
    access = parse_kubeconfig(pki.to_yaml(config))
    assert access.server == "https://127.0.0.1:1"
    assert access.client_key.encode() == pair.key
    assert access.ca.encode() == ca.certificate


def test_private_keys_stay_out_of_representations() -> None:
    ca = pki.CA.create("test")
    secret = ca.pair.key.decode().splitlines()[1]
    assert secret not in repr(ca)
    assert base64.b64encode(ca.pair.key).decode() not in repr(ca)


def test_service_account_key_is_in_the_form_that_kube_apiserver_reads() -> None:
    key = pki.create_signing_key()
    assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")
    load_pem_private_key(key, None)
