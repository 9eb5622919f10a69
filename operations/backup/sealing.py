"""Encrypt files: AES-256-GCM with a key that scrypt derives from a passphrase.

Each file can be opened on its own, with the passphrase only. Its first line names algorithm and
parameters in plain text, and is authenticated with the content.
"""

from __future__ import annotations

import base64
import binascii
import os
import re

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

_NAME = b"caphv-backup/1"
_HEADER = re.compile(
    rb"caphv-backup/1 aes-256-gcm scrypt n=([0-9]{1,2}) r=8 p=1 salt=([A-Za-z0-9+/=]{24})\n"
)
# Exponents of two. 16 takes 64 MiB and a fifth of a second.
_COST = 16
# A forged file with a higher cost would take gigabytes.
_HIGHEST_COST = 20
_SALT_BYTES = 16
# GCM hashes a nonce of any other length first.
_NONCE_BYTES = 12
_KEY_BYTES = 32
MIN_PASSPHRASE_LENGTH = 8


class SealError(Exception):
    """A file cannot be opened; the message is a phrase such as `is damaged`."""


class Sealer:
    """Encrypt files with one passphrase; the key is derived once."""

    def __init__(self, passphrase: str) -> None:
        salt = os.urandom(_SALT_BYTES)
        self._header = b"%s aes-256-gcm scrypt n=%d r=8 p=1 salt=%s\n" % (
            _NAME,
            _COST,
            base64.b64encode(salt),
        )
        self._cipher = AESGCM(_key(passphrase, salt, _COST))

    def seal(self, content: bytes) -> bytes:
        """Return the encrypted form of a file's content."""
        # Random nonces of 96 bits are safe for 2**32 files of one key (NIST SP 800-38D, 8.3).
        nonce = os.urandom(_NONCE_BYTES)
        return self._header + nonce + self._cipher.encrypt(nonce, content, self._header)


class Opener:
    """Decrypt the files of one backup with one passphrase.

    All files of a backup have the same salt. So a key is derived only once, and a file of another
    backup is refused.
    """

    def __init__(self, passphrase: str) -> None:
        self._passphrase = passphrase
        self._header = b""
        self._cipher: AESGCM | None = None

    def open(self, sealed: bytes) -> bytes:
        """Return the content of an encrypted file. Raises `SealError`."""
        match = _HEADER.match(sealed)
        if match is None:
            raise SealError("is not an encrypted backup file, or its header is damaged")

        # The first file decides on the salt, so that an attacker cannot make us derive a key for
        # each file.
        header = match[0]
        body = sealed[match.end() :]
        if self._cipher is None:
            self._header = header
            self._cipher = AESGCM(self._derive_key(match))
        if header != self._header:
            raise SealError("is a file of another backup, or its header is damaged")

        try:
            return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], header)
        except (InvalidTag, ValueError):
            raise SealError(
                "cannot be decrypted: the passphrase is wrong, or the file is damaged"
            ) from None

    def _derive_key(self, header: re.Match[bytes]) -> bytes:
        """Return the key of a file by its header, which is not authenticated yet."""
        cost = int(header[1])
        if cost > _HIGHEST_COST:
            raise SealError(
                f"asks for too much work to derive its key (n={cost}; at most {_HIGHEST_COST})"
            )

        try:
            salt = base64.b64decode(header[2], validate=True)
        except binascii.Error:
            raise SealError("is damaged") from None
        return _key(self._passphrase, salt, cost)


def _key(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=_KEY_BYTES, n=2**cost, r=8, p=1).derive(passphrase.encode())
