"""TLS of a server from a folder that others write: cert-manager by way of a mounted Secret, or a user.

The folder is looked at once a second. That needs no file watches, which mounted Secrets (links that are swapped) and
network file systems each treat in their own way, and two `stat` calls cost nothing.
"""

from __future__ import annotations

import logging
import re
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

_PEM_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_Seen = tuple[tuple[int, int, int], ...]


class CertWatcher:
    """`tls.crt` and `tls.key` of a folder; new connections get the newest pair that fits together.

    A rotation touches no connection that is open, and a pair that is half written or does not fit changes nothing: the
    one before is served until the new one is whole.
    """

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self._seen: _Seen = ()
        self._current: ssl.SSLContext | None = None
        self.problem = f"certificate {self._files[0]} has not been read yet"

    def refresh(self) -> bool:
        """Look at the folder; tells whether there is a pair to serve. `problem` says what is wrong with the newest."""
        try:
            seen = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (f.stat() for f in self._files))
            if seen != self._seen:
                self._current = server_context(self._files)
                self._told("")
                log.info("serving with the certificate of %s", self._files[0].parent)
                self._seen = seen
        except FileNotFoundError as error:
            self._told(f"certificate: {error.filename} is missing; cert-manager or you must put it there")
        except ssl.SSLError as error:
            self._told(f"certificate: {self._files[0]} and tls.key cannot be used together: {error.reason or error}")
        except (OSError, ValueError) as error:
            self._told(f"certificate: {self._files[0]} cannot be read: {error}")
        return self._current is not None

    def listener(self) -> ssl.SSLContext:
        """Settings for a listening socket; call it after a `refresh` that was true.

        They stay as they are for as long as the socket listens, so each handshake is led to the newest.
        """
        if self._current is None:
            raise RuntimeError("there is no certificate yet")
        self.lead(self._current)
        return self._current

    def lead(self, context: ssl.SSLContext) -> None:
        """Have connections to a socket with these settings get the newest pair, as soon as there is one."""
        context.sni_callback = self._newest

    def _newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called for clients that send no server name, too.
        if self._current is not None:
            connection.context = self._current

    def _told(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each with its armour; what stands between them is left out."""
    return _PEM_CERTIFICATE.findall(pem)


def authority(folder: Path) -> bytes:
    """Return the certificates of the folder's `ca.crt`, PEM; empty when it has none."""
    try:
        return b"".join(block + b"\n" for block in certificates_in((folder / "ca.crt").read_bytes()))
    except OSError:
        return b""


def server_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    """Settings of a server with these two files, certificate and key. Raises `OSError`, `ssl.SSLError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An encrypted key fails: without this, OpenSSL would ask for its pass phrase on the terminal and wait.
    context.load_cert_chain(*files, password=b"")
    return context
