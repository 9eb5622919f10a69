"""Who may say that there was a push."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from packager.controller.receiver import Receiver, authentic, read_secret

pytestmark = pytest.mark.unit

SECRET, BODY = b"a secret of some length", b'{"ref": "refs/heads/main"}'
SIGNATURE = hmac.new(SECRET, BODY, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Hub-Signature-256", f"sha256={SIGNATURE}"),
        ("X-Hub-Signature", f"sha256={SIGNATURE}"),
        ("X-Gitea-Signature", SIGNATURE),
        ("X-Forgejo-Signature", SIGNATURE),
        ("X-Gogs-Signature", SIGNATURE),
        ("X-Gitlab-Token", SECRET.decode()),
    ],
)
def test_usual_git_hosts_are_known(header: str, value: str) -> None:
    assert authentic({header: value}, BODY, SECRET)
    assert not authentic({header: value}, BODY + b" ", SECRET) or header == "X-Gitlab-Token"
    assert not authentic({header: value}, BODY, SECRET + b"x")
    assert not authentic({header: value[:-1]}, BODY, SECRET)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature": "sha1=" + hmac.new(SECRET, BODY, hashlib.sha1).hexdigest()},
        {"X-Gitea-Signature": "ä" * 64},
        {"X-Gitlab-Token": ""},
    ],
)
def test_others_are_not(headers: dict[str, str]) -> None:
    assert not authentic(headers, BODY, SECRET)


def test_a_secret_is_read_without_its_line_end_and_never_reported(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    assert read_secret(file) == SECRET
    file.write_bytes(b"canary")
    with pytest.raises(ValueError, match="create a longer one") as error:
        Receiver(":8443", file, lambda: None)
    assert "canary" not in str(error.value)
    with pytest.raises(ValueError, match="cannot read the secret"):
        read_secret(tmp_path / "missing")
