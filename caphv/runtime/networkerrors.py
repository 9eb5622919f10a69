"""Describe why a request failed on the network, without credentials."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp

from caphv.runtime.addresses import AddressNotAllowed

UNTRUSTED = "does not match certificate-authority-data"
"""The end of the description of a server that another CA signed."""


def describe(error: BaseException) -> str:
    """Describe why a request failed, without credentials."""
    if isinstance(error, aiohttp.ClientResponseError):
        # The text of the error has the URL of the proxy with its password.
        return f"HTTP {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke in the middle of a response"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"

    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    if isinstance(cause, ssl.SSLError | ssl.CertificateError):
        description = _describe_tls(cause)
    else:
        description = _describe_socket(cause)
    if description:
        return description

    if isinstance(error, TimeoutError):
        return "timed out"
    return str(cause) or type(error).__name__


_SOCKET_ERRORS = {
    errno.ECONNREFUSED: "the connection was refused: nothing listens at this address and port",
    errno.ECONNRESET: "the server closed the connection",
    errno.EHOSTUNREACH: "no route to this address",
    errno.ENETUNREACH: "no route to this address",
}


def _describe_socket(error: BaseException) -> str:
    """Describe an error of the network; return an empty text for one without a description."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, OSError):
        return _SOCKET_ERRORS.get(error.errno or 0, "")
    return ""


def _describe_tls(error: Exception) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "TLS failed: the server does not speak TLS, or refuses the connection"
    # OpenSSL's codes 62 to 64 mean a mismatch of host name, e-mail or address. Codes 9 and 10 mean
    # that the certificate is not valid yet or has expired.
    if error.verify_code in (62, 63, 64):
        return (
            "the certificate of the server is for another host name; set tls-server-name, or "
            "correct server"
        )
    if error.verify_code in (9, 10):
        return "the certificate of the server has expired or is not valid yet"
    # Codes 18 to 21 mean that the issuer is not trusted.
    if error.verify_code in (18, 19, 20, 21):
        return f"the certificate of the server {UNTRUSTED}"
    return f"the certificate of the server is not accepted: {error.verify_message}"


def refused_address(error: BaseException) -> AddressNotAllowed | None:
    """Return the refusal of an address that made a request fail; None for another cause."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return cause if isinstance(cause, AddressNotAllowed) else None
