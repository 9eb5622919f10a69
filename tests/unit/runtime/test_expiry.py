"""When credentials expire, read from tokens and certificates that may hold anything."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes import pki

pytestmark = pytest.mark.unit

PAIR = pki.CA.create("test").client("user")
CERTIFICATE = PAIR.certificate.decode()
CERTIFICATE_ENDS = x509.load_pem_x509_certificate(PAIR.certificate).not_valid_after_utc


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def token(**claims: Any) -> str:
    return f"{part(b'{}')}.{part(json.dumps(claims).encode())}.signature"


def expires(token: str = "", certificate: str = "") -> datetime | None:
    return Kubeconfig(server="https://h", token=token, client_certificate=certificate).expires()


def test_token_says_it_in_its_claims() -> None:
    assert expires(token(exp=1_800_000_000, sub="caphv")) == datetime(2027, 1, 15, 8, 0, tzinfo=UTC)


def test_certificate_says_it() -> None:
    assert expires(certificate=CERTIFICATE) == CERTIFICATE_ENDS


def test_the_first_of_both_counts() -> None:
    assert expires(token(exp=1_000), CERTIFICATE) == datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC)
    assert expires(token(exp=100_000_000_000), CERTIFICATE) == CERTIFICATE_ENDS


@pytest.mark.parametrize(
    "opaque",
    [
        "kubeconfig-user-abc12:0123456789abcdef",
        "",
        "a.b",
        token(),
        token(exp="soon"),
        token(exp=None),
        token(exp=1e300),
        token(exp=float("nan")),
        f"x.{part(b'[1]')}.y",
        f"x.{part(b'[' * 100_000)}.y",
    ],
)
def test_what_does_not_say_it_has_no_date(opaque: str) -> None:
    assert expires(opaque) is None


def test_broken_certificate_has_no_date() -> None:
    assert expires(certificate="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") is None


@given(st.text(), st.text())
def test_nothing_that_a_secret_can_hold_raises(claims: str, certificate: str) -> None:
    expires(f"a.{part(claims.encode())}.b", certificate)
    expires(claims, certificate)
