"""Tell errors of requests to an API server apart by the type of the exception.

* RequestError
  * ApiError          the server refused the request
    + NotFound
    + Conflict
      - AlreadyExists
    + Unauthorized
    + Forbidden
      - NamespaceTerminating
    + Invalid
    + Gone
    + TooManyRequests
    + ServerFault
  * Unreachable       there is no response, or none that can be used
    + AddressRefused
    + Fenced
    + TooLarge
    + SilentWatch
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from caphv.api.object import Obj, dict_at, text_at
from caphv.api.plaintext import LONGEST_ERROR, plain


class RequestError(Exception):
    """A request to an API server failed: the server refused it, or there is no usable response."""


class ApiError(RequestError):
    """The API server has refused a request.

    `status` is the HTTP code, and `reason` is the reason in the Status object. `server` is the name
    of the client that sent the request, empty without a client.
    """

    def __init__(self, status: int, reason: str, message: str, details: Obj | None = None) -> None:
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
    """403: the account lacks the right, or admission refused the request."""


class NamespaceTerminating(Forbidden):
    """403: the namespace is being deleted, so nothing can be created in it."""


class Invalid(ApiError):
    """400 or 422, or denied by an admission webhook: retrying the same request cannot help."""


class Gone(ApiError):
    """410: the resource version is too old; list again."""


class TooManyRequests(ApiError):
    """429 (or 503 with Retry-After): retry after `retry_after` seconds."""

    @property
    def retry_after(self) -> float:
        """Return how many seconds the server asks to wait, at most 60; 1 by default."""
        seconds = self.details.get("retryAfterSeconds")
        return min(float(seconds), 60.0) if isinstance(seconds, int) and seconds > 0 else 1.0


class ServerFault(ApiError):
    """5xx: the server failed; the request may have taken effect."""


class Unreachable(RequestError):
    """No response: name resolution, connection, TLS or time-out failed.

    The text names the server, never credentials.
    """


class AddressRefused(Unreachable):
    """Not sent: a tenant's kubeconfig must not name the server's address."""


class Fenced(Unreachable):
    """Not sent: this process may no longer write."""


class TooLarge(Unreachable):
    """A response was larger than allowed and has been discarded; smaller pages may help."""


class SilentWatch(Unreachable):
    """A watch was open, but brought neither events nor bookmarks for some minutes.

    The server may send no bookmarks, may be behind a proxy that hides its loss, or may have been
    restored to an older state than the watch began at.
    """


def lacks_namespace(error: Exception, name: str) -> bool:
    """Return whether a request has failed because a namespace does not exist."""
    lacking = {"kind": "namespaces", "name": name}
    return isinstance(error, NotFound) and lacking.items() <= error.details.items()


def kind_of(error: RequestError) -> str:
    """Return the kind of a failure, in words that stay the same while the failure lasts.

    Conditions use it, because they must not change with each attempt.
    """
    return f"HTTP {error.status}" if isinstance(error, ApiError) else "no answer"


_Error = TypeVar("_Error", bound=BaseException)


def without_trace(error: _Error) -> _Error:
    """Drop the traceback of an error to be kept.

    It keeps every local variable of the failed call alive, such as whole answers of a server.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


# Harvester's webhooks deny with 500 InternalError unless their code chooses another status, such as
# 409 for a disk in use (harvester/webhook: pkg/server/admission/admission.go; harvester:
# pkg/webhook/types/admission.go). The API server keeps the status. A webhook that it cannot call is
# a server fault ("failed calling webhook").
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
    """Return the exception for an HTTP status and a parsed `Status` object.

    The body may be whatever a proxy returned.
    """
    # Clean the texts of a server, which may be hostile and end up in conditions, Events and logs.
    reason = plain(text_at(body, "reason"), 256)
    message = plain(text_at(body, "message"), LONGEST_ERROR)
    details = dict(dict_at(body, "details"))

    if status == 401 and message in ("", "Unauthorized"):
        message = (
            "Unauthorized: the server rejects the credentials; they are invalid or have expired"
        )
    if retry_after and retry_after.isdecimal():
        details["retryAfterSeconds"] = int(retry_after[:9])

    kind = _BY_STATUS.get(status, ServerFault if status >= 500 else ApiError)
    if status == 503 and "retryAfterSeconds" in details:
        kind = TooManyRequests
    elif reason == "AlreadyExists":
        kind = AlreadyExists
    elif status == 403 and "NamespaceTerminating" in _causes(details):
        kind = NamespaceTerminating
    elif (status == 409 or status >= 500) and _DENIED.match(message):
        kind = Invalid
    return kind(status, reason, message, details)


def _causes(details: Obj) -> list[Any]:
    """Return the reasons of the causes in the details of a Status, which may be anything."""
    causes = details.get("causes")
    if not isinstance(causes, list):
        return []
    return [cause.get("reason") for cause in causes if isinstance(cause, dict)]
