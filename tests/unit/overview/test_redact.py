"""No secret leaves a cluster in a support bundle."""

from __future__ import annotations

from typing import Any

import pytest

from overview.redact import REMOVED, redacted, redacted_text

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {JWT}", JWT),
        ("sent Bearer abcdef0123456789", "abcdef0123456789"),
        (f"key is {PEM} there", "MIIEow"),
        ("proxy http://user:hunter22@proxy:3128 used", "hunter22"),
        ("GET /x?token=abcdef123&watch=1", "abcdef123"),
        ("password: correct-horse", "correct-horse"),
        ("token kubeconfig-u-abc12:" + "x1" * 25, "x1" * 25),
        (f"join K10{'a' * 64}::server:s3cret", "s3cret"),
        ("remote https://glpat-abcdefghijklmnopqrst", "glpat-abcdefghijklmnopqrst"),
    ],
)
def test_texts_lose_what_looks_like_a_credential(text: str, secret: str) -> None:
    assert secret not in redacted_text(text)
    assert REMOVED in redacted_text(text)


@pytest.mark.parametrize(
    "value",
    [
        {"spec": {"guestConfig": {"userData": "secret-1"}}},
        {"spec": {"files": [{"path": "/etc/x", "content": "secret-1"}]}},
        {"spec": {"preRKE2Commands": ["echo secret-1"]}},
        {"env": [{"name": "GIT_PASSWORD", "value": "secret-1"}]},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret-1"}}},
        {"metadata": {"managedFields": [{"x": "secret-1"}]}},
        {"users": [{"user": {"token": "secret-1"}}]},
    ],
)
def test_fields_that_hold_credentials_are_removed(value: Any) -> None:
    assert "secret-1" not in str(redacted(value))


def test_what_helps_stays() -> None:
    value = {
        "metadata": {"name": "shop", "annotations": {"caphv.io/owner": "HarvesterMachine/team/m"}},
        "spec": {
            "identitySecret": {"name": "identity", "namespace": "team"},
            "variables": [{"name": "identitySecretName", "value": "identity"}, {"name": "sshKeyPair", "value": "a/b"}],
            "cloudInitNoCloud": {"secretRef": {"name": "m-cloud-init"}},
            "content": {"name": "reference"},
        },
        "status": {"conditions": [{"message": "identity Secret team/identity: not found; create it"}]},
    }
    assert redacted(value) == value
