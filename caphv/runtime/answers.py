"""Turn responses of a server into values and errors, and check responses of untrusted servers.

An untrusted server may send anything. If a response does not have the form of an object, it becomes
an error here, before a reconcile fails on it. `opaque` errors do not contain the response, so that
tenants cannot scan a network with kubeconfigs. The log has it.
"""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import orjson

from caphv.api.object import Obj, well_formed
from caphv.api.plaintext import LONGEST_ERROR, plain
from caphv.runtime.budget import TimeBudget
from caphv.runtime.errors import AddressRefused, ApiError, Unreachable, error_from
from caphv.runtime.networkerrors import describe, refused_address

log = logging.getLogger(__name__)

_NO_API = "this server does not answer like a Kubernetes API server"
_NO_API_HINT = f"{_NO_API} (is there a proxy in between?)"
# What an API server answers for a group or version of which it has no CRD.
_NO_SUCH_PATH = b"404 page not found"
# Details of an opaque connection are logged when they change, but at most once in this many
# seconds.
_DETAIL_SECONDS = 10.0


class Answers:
    """Read the answers of one server; `budget` is None for a trusted one."""

    def __init__(self, name: str, server: str, budget: TimeBudget | None, *, opaque: bool) -> None:
        self._name = name
        self._server = server
        self._budget = budget
        self._opaque = opaque
        self._detail = ""
        self._detail_at = -_DETAIL_SECONDS

    def parse(self, status: int, raw: bytearray, retry_after: str | None, path: str = "") -> Any:
        """Return the JSON object of a response to a request of a path. Raises `ApiError`."""
        try:
            body = orjson.loads(raw) if raw else {}  # noqa: TID251 - `raw` is bounded
        except orjson.JSONDecodeError:
            body = None

        is_success = 200 <= status < 300
        if is_success and isinstance(body, dict):
            return body
        fault = "not JSON" if body is None else "no Status object"
        detail = f"HTTP {status} with a body that is {fault}"
        if is_success:
            raise self._no_api_error(detail)

        # Only API servers send a Status object. The text of any other response stays in the log.
        is_status = isinstance(body, dict) and (not self._opaque or body.get("kind") == "Status")
        if not is_status:
            self._log_detail(detail)
            is_missing = status == 404 and raw.strip() == _NO_SUCH_PATH and not self._opaque
            body = {"message": self._missing_api(path) if is_missing else _NO_API_HINT}
        raise self.error(status, body, retry_after)

    def error(self, status: int, body: Any, retry_after: str | None = None) -> ApiError:
        """Return the error for an unsuccessful response."""
        error = error_from(status, body, retry_after)
        error.server = self._name
        return error

    def one(self, name: str, answer: Any) -> Obj:
        """Return an answer if it has the form of an object with this name.

        An empty name allows any object. Raises `ServerFault`.
        """
        # Answers of trusted servers are not checked, because each check costs time.
        if not self._budget or not name:
            return cast(Obj, answer)
        if not well_formed(answer) or answer["metadata"].get("name") != name:
            raise self._no_api_error("another answer than the object")
        return answer

    def page(self, page: Obj) -> Obj:
        """Return a page of a list with its items. Raises `ServerFault`."""
        # API servers send null for an empty list of metadata.
        items = page["items"] = page.get("items") or []
        if self._budget:
            is_list = well_formed(page) and isinstance(items, list)
            if not is_list or not all(map(_has_name, items)):
                raise self._no_api_error("a list of something else than objects")
        return page

    def event_object(self, kind: str, obj: Any) -> Obj:
        """Return the object of an event, which has no name in a bookmark. Raises `ServerFault`."""
        if self._budget:
            is_object = well_formed(obj) if kind == "BOOKMARK" else _has_name(obj)
            if not is_object:
                raise self._no_api_error("an event without an object")
        return cast(Obj, obj)

    def refused_upgrade(self, status: int, message: str) -> ApiError:
        """Return the error of a WebSocket's handshake. Nothing reads the body of the response."""
        text = f"HTTP {status}: {message}"
        if self._opaque:
            self._log_detail(text)
            text = "this server refuses the connection to a container"
        return self.error(status, {"message": text})

    def unreachable(self, error: BaseException) -> Unreachable:
        """Return the error of a request that got no response."""
        if refusal := refused_address(error):
            self._log_detail(str(refusal))
            text = "its address is not allowed" if self._opaque else str(refusal)
            return AddressRefused(f"{self._server}: {text}")

        # A ValueError means a compressed response, unless it is also an OSError, which means that a
        # certificate does not match.
        if self._budget and isinstance(error, ValueError) and not isinstance(error, OSError):
            self._budget.record_violation(str(error))
        if not self._opaque:
            return Unreachable(f"{self._server}: {describe(error)}")

        self._log_detail(describe(error))
        hint = (
            "no API server can be reached there, or its certificate does not match the kubeconfig"
        )
        return Unreachable(f"{self._server}: {hint}")

    def _missing_api(self, path: str) -> str:
        """Return the message for a path of which the server has no API."""
        # The names of a namespace and an object say nothing about the missing kind.
        parts = path.split("/")
        if parts[4:5] == ["namespaces"] and len(parts) > 6:
            del parts[4:6]
        api = "/".join(parts[:5])
        return (
            f"{self._server} does not serve {api}: install its CRDs there, or name another server"
        )

    def _no_api_error(self, detail: str) -> ApiError:
        if self._budget:
            self._budget.record_violation(_NO_API)
        self._log_detail(detail)
        return self.error(502, {"message": _NO_API_HINT})

    def _log_detail(self, detail: str) -> None:
        """Log a detail that an opaque error hides, when it has changed."""
        moment = time.monotonic()
        is_due = moment - self._detail_at >= _DETAIL_SECONDS
        if self._opaque and detail != self._detail and is_due:
            self._detail = detail
            self._detail_at = moment
            log.warning("%s at %s: %s", self._name, self._server, plain(detail, LONGEST_ERROR))


def _has_name(obj: Any) -> bool:
    return well_formed(obj) and bool(obj["metadata"].get("name"))
