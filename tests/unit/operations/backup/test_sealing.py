"""Sealed files: what this release wrote is opened by every later one.

A sealed file is a line of text, a nonce of 12 bytes, and the ciphertext of AES-256-GCM with its tag of 16 bytes. The
line (`caphv-backup/1 aes-256-gcm scrypt n=16 r=8 p=1 salt=<16 bytes in base64>`, n as a power of two) is authenticated
with the content. The key of 32 bytes comes from the passphrase in UTF-8 by scrypt with the parameters of the line.
"""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from operations.backup.sealing import Opener, Sealer, SealError

pytestmark = pytest.mark.unit

PASSPHRASE = "correct horse battery"
CONTENT = (
    b'{"apiVersion":"v1","kind":"Secret","metadata":{"name":"identity","namespace":"team"},'
    b'"data":{"kubeconfig":"eA=="}}\n'
)
# Written once, by the first release that seals. Never replace it: backups of that release have to be readable forever.
FIRST_RELEASE = base64.b64decode(
    "Y2FwaHYtYmFja3VwLzEgYWVzLTI1Ni1nY20gc2NyeXB0IG49MTYgcj04IHA9MSBzYWx0PUdEalM5OWhPWlZWaHdMTjBLL1BN"
    "cFE9PQrSqLFRvExZUifdJNVPemMUyssiMvZMRyXp0ffwq7pqIKNQQleHWWVXiBONC/uvCsVwKMXCAMs3rCBH/c7slibrEH0m"
    "7VMfZh1NhX63KtHnpONPE9AK4PZBUJX4A1fcSvgWap9dH8z9PrqM8rNNeov6wRaOs87fFmUVm7lae+jbghL5aUFMY+nJApXv"
    "TUBU1Q=="
)


def opened_by_description(sealed: bytes) -> bytes:
    """Open a file with nothing but the description above."""
    line, body = sealed[: sealed.index(b"\n") + 1], sealed[sealed.index(b"\n") + 1 :]
    fields = dict(word.split(b"=", 1) for word in line.split()[3:])
    cost, block, parallel = (int(fields[name]) for name in (b"n", b"r", b"p"))
    key = hashlib.scrypt(
        PASSPHRASE.encode(),
        salt=base64.b64decode(fields[b"salt"]),
        n=2**cost,
        r=block,
        p=parallel,
        maxmem=2**28,
        dklen=32,
    )
    return AESGCM(key).decrypt(body[:12], body[12:], line)


def test_file_of_the_first_release_is_opened() -> None:
    assert Opener(PASSPHRASE).open(FIRST_RELEASE) == CONTENT


def test_description_of_the_format_is_all_that_is_needed_to_open_a_file() -> None:
    assert opened_by_description(FIRST_RELEASE) == CONTENT
    assert opened_by_description(Sealer(PASSPHRASE).seal(CONTENT)) == CONTENT


@pytest.mark.parametrize("place", [25, 60, 90, -1], ids=["parameters", "salt", "nonce or content", "tag"])
def test_changed_file_is_not_opened(place: int) -> None:
    changed = bytearray(FIRST_RELEASE)
    changed[place] ^= 1
    with pytest.raises(SealError):
        Opener(PASSPHRASE).open(bytes(changed))


def test_forged_cost_is_refused_before_the_work() -> None:
    with pytest.raises(SealError, match="too much work"):
        Opener(PASSPHRASE).open(FIRST_RELEASE.replace(b"n=16", b"n=21"))


def test_no_two_files_share_a_nonce_and_no_two_backups_a_salt() -> None:
    sealer = Sealer(PASSPHRASE)
    first, second, other = sealer.seal(CONTENT), sealer.seal(CONTENT), Sealer(PASSPHRASE).seal(CONTENT)
    line = first[: first.index(b"\n") + 1]
    assert second.startswith(line)
    assert not other.startswith(line)
    assert first[len(line) : len(line) + 12] != second[len(line) : len(line) + 12]
