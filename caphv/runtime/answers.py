"""Turns what a server sends into values and errors, as far as it is believed.

An untrusted server may send anything: what has not the form of an object is an error here, so that no reconcile fails
with it. `opaque` errors do not contain what answered, so that no one can scan a network with kubeconfigs; the log does.
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
from caphv.runtime.transport import describe, refused_address

log = logging.getLogger(__name__)

_NO_API = "this server does not answer like a Kubernetes API server"
_NO_API_HINT = f"{_NO_API} (is there a proxy in between?)"
# Details of an opaque connection are logged when they change, and not more often than this.
_DETAIL_SECONDS = 10.0


class Answers:
    """Reads the answers of one server; `budget` is None for a trusted one."""

    def __init__(self, name: str, server: str, budget: TimeBudget | None, *, opaque: bool) -> None:
        self._name, self._server = name, server
        self._budget = budget
        self._opaque = opaque
        self._detail, self._detail_at = "", -_DETAIL_SECONDS

    def parse(self, status: int, raw: bytearray, retry_after: str | None) -> Any:
        """Return the JSON object of a response. Raises `ApiError`."""
        try:
            body = orjson.loads(raw) if raw else {}  # noqa: TID251 - bounded by the size of an answer
        except orjson.JSONDecodeError:
            body = None
        if 200 <= status < 300 and isinstance(body, dict):
            return body
        detail = f"HTTP {status} with a body that is {'not JSON' if body is None else 'no Status object'}"
        if 200 <= status < 300:
            raise self._no_api(detail)
        known = isinstance(body, dict) and (not self._opaque or body.get("kind") == "Status")
        if not known:
            self._log_detail(detail)
            body = {"message": _NO_API_HINT}
        raise self.error(status, body, retry_after)

    def error(self, status: int, body: Any, retry_after: str | None = None) -> ApiError:
        """Return the error of a response that is no success."""
        error = error_from(status, body, retry_after)
        error.server = self._name
        return error

    def one(self, name: str, answer: Any) -> Obj:
        """Return an answer that has the form of an object of this name; empty for any. Raises `ServerFault`."""
        if self._budget and name and not (well_formed(answer) and answer["metadata"].get("name") == name):
            raise self._no_api("another answer than the object")
        return cast(Obj, answer)

    def page(self, page: Obj) -> Obj:
        """Return a page of a list, with items. Raises `ServerFault`."""
        # API servers send null for an empty list of metadata.
        items = page["items"] = page.get("items") or []
        if self._budget and not (well_formed(page) and isinstance(items, list) and all(map(_named, items))):
            raise self._no_api("a list of something else than objects")
        return page

    def changed(self, kind: str, obj: Any) -> Obj:
        """Return the object of an event; that of a bookmark has no name. Raises `ServerFault`."""
        if self._budget and not (well_formed(obj) if kind == "BOOKMARK" else _named(obj)):
            raise self._no_api("an event without an object")
        return cast(Obj, obj)

    def refused_upgrade(self, status: int, message: str) -> ApiError:
        """Return the error of a WebSocket's handshake, whose body is not read."""
        text = f"HTTP {status}: {message}"
        if self._opaque:
            self._log_detail(text)
            text = "this server refuses the connection to a container"
        return self.error(status, {"message": text})

    def unreachable(self, error: BaseException) -> Unreachable:
        """Return the error of a request that got no response."""
        refused = refused_address(error)
        if refused:
            self._log_detail(str(refused))
            return AddressRefused(f"{self._server}: {'its address is not allowed' if self._opaque else refused}")
        # A compressed response. A certificate that does not fit is a ValueError, too.
        if self._budget and isinstance(error, ValueError) and not isinstance(error, OSError):
            self._budget.broken(str(error))
        if not self._opaque:
            return Unreachable(f"{self._server}: {describe(error)}")
        self._log_detail(describe(error))
        hint = "no API server can be reached there, or its certificate does not match the kubeconfig"
        return Unreachable(f"{self._server}: {hint}")

    def _no_api(self, detail: str) -> ApiError:
        if self._budget:
            self._budget.broken(_NO_API)
        self._log_detail(detail)
        return self.error(502, {"message": _NO_API_HINT})

    def _log_detail(self, detail: str) -> None:
        """Log what an opaque error hides, for operators: a change, and not each attempt."""
        now = time.monotonic()
        if self._opaque and detail != self._detail and now - self._detail_at >= _DETAIL_SECONDS:
            self._detail, self._detail_at = detail, now
            log.warning("%s at %s: %s", self._name, self._server, plain(detail, LONGEST_ERROR))


def _named(obj: Any) -> bool:
    return well_formed(obj) and bool(obj["metadata"].get("name"))
