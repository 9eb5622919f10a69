"""Serving certificates from a folder that cert-manager (through a mounted Secret) or a user writes.

The folder is polled once a second: two `stat` calls cost nothing, and file watches behave differently on mounted
Secrets (swapped links) and on network file systems.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_Seen = tuple[tuple[int, int, int], ...]


class CertWatcher:
    """`tls.crt` and `tls.key` of a folder; new connections get the newest pair that matches.

    A rotation touches no open connection. While certificate and key do not match, or are half written, the previous
    pair stays in use.
    """

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self._seen: _Seen = ()
        self._current: ssl.SSLContext | None = None
        self.problem = f"certificate {self._files[0]} has not been read yet"

    def refresh(self) -> bool:
        """Check the folder; return whether there is a pair to serve. `problem` says what is wrong with the newest."""
        try:
            seen = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (f.stat() for f in self._files))
            if seen != self._seen:
                self._current = server_context(self._files)
                self._report("")
                log.info("serving the certificate in %s", self._files[0].parent)
                self._seen = seen
        except FileNotFoundError as error:
            self._report(f"certificate: {error.filename} is missing; create it, or let cert-manager create it")
        except ssl.SSLError as error:
            self._report(f"certificate: {self._files[0]} and tls.key do not match: {error.reason or error}")
        except (OSError, ValueError) as error:
            self._report(f"certificate: {self._files[0]} cannot be read: {error}")
        return self._current is not None

    def listener(self) -> ssl.SSLContext:
        """TLS context for a listening socket; call it after `refresh` has returned True.

        The context of a listening socket cannot be replaced, so each handshake switches to the newest.
        """
        if self._current is None:
            raise RuntimeError("no certificate has been loaded")
        self.attach(self._current)
        return self._current

    def attach(self, context: ssl.SSLContext) -> None:
        """Make connections to a socket with this context use the newest pair, once there is one."""
        context.sni_callback = self._newest

    def _newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # OpenSSL also calls this for clients that send no server name.
        if self._current is not None:
            connection.context = self._current

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each with its armour, without the text between them."""
    certificates = []
    end = 0

    while (begin := pem.find(_BEGIN, end)) >= 0 and (end := pem.find(_END, begin)) >= 0:
        end += len(_END)
        certificates.append(pem[begin:end])

    return certificates


def authority(folder: Path) -> bytes:
    """Return the certificates in the folder's `ca.crt` as PEM; empty if there are none."""
    try:
        return b"".join(block + b"\n" for block in certificates_in((folder / "ca.crt").read_bytes()))
    except OSError:
        return b""


def server_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    """TLS context of a server with a certificate file and a key file. Raises `OSError`, `ssl.SSLError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Makes an encrypted key fail; otherwise OpenSSL asks for its pass phrase on the terminal and waits.
    context.load_cert_chain(*files, password=b"")
    return context
