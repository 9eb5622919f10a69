"""Errors of requests to an API server, as exceptions of different types."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from caphv.api.plaintext import LONGEST_ERROR, plain


class ApiError(Exception):
    """The API server refused a request: `status` is the HTTP code, `reason` that of the Status object.

    `server` is the name of the client that asked, empty where none did.
    """

    def __init__(self, status: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.server = ""


class NotFound(ApiError):
    """404: the object, its namespace or its kind does not exist."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, uid) no longer holds."""


class AlreadyExists(Conflict):
    """409 on a create: an object of that name exists."""


class Unauthorized(ApiError):
    """401: the credentials are invalid or have expired."""


class Forbidden(ApiError):
    """403: the account lacks the right; admission refusals are 403, too."""


class Invalid(ApiError):
    """400 or 422, or denied by an admission webhook with 409 or 5xx: a retry without a change cannot help."""


class Gone(ApiError):
    """410: the resource version is too old; list again."""


class TooManyRequests(ApiError):
    """429 (or 503 with Retry-After): retry after `retry_after` seconds."""

    @property
    def retry_after(self) -> float:
        """Seconds the server asks to wait, at most 60; 1 by default."""
        seconds = self.details.get("retryAfterSeconds")
        return min(float(seconds), 60.0) if isinstance(seconds, int) and seconds > 0 else 1.0


class ServerFault(ApiError):
    """5xx: the server failed; the request may have taken effect."""


class Unreachable(Exception):
    """No response: name resolution, connection, TLS or time-out. The text names the server, never credentials."""


class AddressRefused(Unreachable):
    """Not sent: the server's address is none that a tenant's kubeconfig may name."""


class Fenced(Unreachable):
    """Not sent: this process may no longer write."""


class TooLarge(Unreachable):
    """A response was larger than allowed and has been discarded; smaller pages may help."""


def kind_of(error: ApiError | Unreachable) -> str:
    """What kind of failure this is, in words that stay the same while it lasts: for a condition that is repeated."""
    return f"HTTP {error.status}" if isinstance(error, ApiError) else "no answer"


_Error = TypeVar("_Error", bound=BaseException)


def without_trace(error: _Error) -> _Error:
    """The error, to be kept: its trace refers to all that functions worked on, such as whole answers of a server."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


# Harvester's webhooks deny with 500 InternalError unless their code chooses another status, such as 409 for a disk in
# use (harvester/webhook: pkg/server/admission/admission.go; harvester: pkg/webhook/types/admission.go). The API server
# keeps the status. A webhook that it cannot call is a server fault ("failed calling webhook").
_DENIED = re.compile(r'admission webhook "[^"]*" denied the request')

_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_from(status: int, body: Any, retry_after: str | None = None) -> ApiError:
    """Exception for an HTTP status and the parsed `Status` object (or whatever a proxy returned)."""
    body = body if isinstance(body, dict) else {}
    # A hostile server says what it likes, and it ends in conditions, Events and logs.
    reason = plain(str(body.get("reason") or ""), 256)
    message = plain(str(body.get("message") or ""), LONGEST_ERROR)
    details = dict(body["details"]) if isinstance(body.get("details"), dict) else {}
    if status == 401 and message in ("", "Unauthorized"):
        message = "Unauthorized: the server rejects the credentials; they are invalid or have expired"
    if retry_after and retry_after.isdecimal():
        details["retryAfterSeconds"] = int(retry_after[:9])
    if status == 503 and "retryAfterSeconds" in details:
        return TooManyRequests(status, reason, message, details)
    if reason == "AlreadyExists":
        return AlreadyExists(status, reason, message, details)
    if (status == 409 or status >= 500) and _DENIED.match(message):
        return Invalid(status, reason, message, details)
    fallback = ServerFault if status >= 500 else ApiError
    return _BY_STATUS.get(status, fallback)(status, reason, message, details)
