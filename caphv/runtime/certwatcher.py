"""Serve certificates from a folder that cert-manager (through a mounted Secret) or a user writes.

Callers poll the folder once a second, because two `stat` calls cost nothing, and file watches
behave differently on mounted Secrets (swapped links) and on network file systems.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from caphv.runtime.kubeconfig import Validity, certificate_validity

log = logging.getLogger(__name__)

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_END = b"-----END CERTIFICATE-----"
# A certificate that is renewed in time never has so small a part of its lifetime left: cert-manager
# renews after two thirds.
_LAST_PART = 0.1
# Time of modification, size and inode of each file.
_Versions = tuple[tuple[int, int, int], ...]


class ClientAuthorityError(Exception):
    """The file with the authorities of clients cannot be used."""


class CertWatcher:
    """Serve `tls.crt` and `tls.key` of a folder. New connections get the newest matching pair.

    A rotation touches no open connection. While certificate and key do not match, or are half
    written, the previous pair stays in use.
    """

    def __init__(self, folder: Path, client_authority: Path | None = None) -> None:
        """Watch a folder.

        :param client_authority: file with the authorities of clients, which must show a certificate
            of one of them; None to accept all clients
        """
        self._files = (folder / "tls.crt", folder / "tls.key")
        self._client_authority = client_authority
        self._versions: _Versions = ()
        self._current: ssl.SSLContext | None = None
        self._validity: Validity | None = None
        self._reported_expiry = ""
        self.problem = f"certificate {self._files[0]} has not been read yet"

    def refresh(self) -> bool:
        """Check the folder, and return whether there is a pair to serve.

        Afterwards `problem` describes a problem with the newest pair, and is empty without one.
        """
        try:
            authority = [self._client_authority] if self._client_authority else []
            stats = [file.stat() for file in (*self._files, *authority)]
            versions = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)
            if versions != self._versions:
                self._current = server_context(self._files, self._client_authority)
                pem = self._files[0].read_text("ascii", "replace")
                self._validity = certificate_validity(pem)
                self._report("")
                log.info("serving the certificate in %s", self._files[0].parent)
                # Record the versions last, so that each refresh retries a pair that cannot be read.
                self._versions = versions

        except FileNotFoundError as error:
            name = error.filename
            self._report(
                f"certificate: {name} is missing; create it, or let cert-manager create it"
            )
        except ClientAuthorityError as error:
            self._report(str(error))
        except ssl.SSLError as error:
            self._report(
                f"certificate: {self._files[0]} and tls.key do not match: {error.reason or error}"
            )
        except (OSError, ValueError) as error:
            self._report(f"certificate: {self._files[0]} cannot be read: {error}")
        self._report_expiry(datetime.now(UTC))
        return self._current is not None

    def listener(self) -> ssl.SSLContext:
        """Return the TLS context of a listening socket. Call this after `refresh` returned True.

        Nothing can replace the context of a listening socket, so each handshake switches to the
        newest one.
        """
        if self._current is None:
            raise RuntimeError("no certificate has been loaded")
        self.attach(self._current)
        return self._current

    def attach(self, context: ssl.SSLContext) -> None:
        """Let connections to a socket with this context use the newest pair once there is one."""
        context.sni_callback = self._newest

    def _newest(
        self,
        connection: ssl.SSLSocket | ssl.SSLObject,
        _name: str | None,
        _context: ssl.SSLContext,
    ) -> None:
        # OpenSSL also calls this for clients that send no server name.
        if self._current is not None:
            connection.context = self._current

    def _report_expiry(self, now: datetime) -> None:
        """Log once that clients refuse the certificate that is served, or will do so soon.

        It stays in use, because there is no better one, and clients may trust it nevertheless.
        """
        message = ""
        if self._validity is not None:
            end = self._validity.end
            if end - now < _LAST_PART * (end - self._validity.start):
                verb = "expires" if end > now else "has expired, and clients refuse it: since"
                message = f"certificate {self._files[0]} {verb} {end:%Y-%m-%d %H:%M} UTC"
        if message and message != self._reported_expiry:
            log.warning("%s; renew it", message)
        self._reported_expiry = message

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each with its armour, and no text between them."""
    certificates = []
    end = 0

    while (begin := pem.find(_BEGIN, end)) >= 0 and (end := pem.find(_END, begin)) >= 0:
        end += len(_END)
        certificates.append(pem[begin:end])

    return certificates


def authority(folder: Path) -> bytes:
    """Return the certificates in the folder's `ca.crt` as PEM; empty if there are none."""
    try:
        return b"".join(
            block + b"\n" for block in certificates_in((folder / "ca.crt").read_bytes())
        )
    except OSError:
        return b""


def server_context(
    files: tuple[Path, Path], client_authority: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS context of a server.

    Raises `OSError`, `ssl.SSLError`, `ClientAuthorityError`.

    :param files: certificate file and key file
    :param client_authority: file with the authorities whose certificates clients must show, None to
        accept all clients
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Give a pass phrase, so that an encrypted key fails. Otherwise OpenSSL would ask for the pass
    # phrase on the terminal and wait.
    context.load_cert_chain(*files, password=b"")
    if client_authority:
        try:
            context.load_verify_locations(cafile=client_authority)
        except ssl.SSLError as error:
            raise ClientAuthorityError(
                f"{client_authority} has no certificate authority of clients: {error.reason}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed checks no certificate again, not even after the authorities of
        # clients have changed. TLS 1.2 also has sessions without tickets.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context
