"""Talk to one API server with raw JSON requests, because a provider does little else.

The generated models and the dynamic client of the `kubernetes` package cost two to four times the
CPU of a raw request; see docs/adr/0002-kubernetes-client.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import aiohttp
import orjson

from caphv.api.object import Obj, Resource, being_deleted, well_formed
from caphv.runtime import metrics
from caphv.runtime.errors import Conflict, Forbidden, NotFound, SilentWatch
from caphv.runtime.requester import Requester

PatchType = Literal["merge", "json", "strategic"]
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
# The API server closes a watch after a random time between these, in seconds. Otherwise all watches
# that start together would also end together.
_WATCH_SECONDS = (240, 360)
# The client abandons a watch after this many seconds without any event or bookmark.
_WATCH_SILENCE_SECONDS = 150.0
_METADATA_ONLY = "application/json;as={0};g=meta.k8s.io;v=v1"


class ApiClient(Requester):
    """Read, write and watch the objects of one API server with one identity.

    `Requester` explains the parameters.
    """

    def clone(self, *, timeout: float) -> ApiClient:
        """Return a client of the same server for two requests at once, with its own connections.

        No other work occupies them.
        """
        return ApiClient(self._connection, name=self.name, timeout=timeout, max_in_flight=2)

    # Objects

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        """Read one object from the server. Raises `NotFound`."""
        path = _object_path(resource, namespace, name)
        answer = await self.request("GET", path, resource=resource)
        return self._answers.one(name, answer)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        metadata_only: bool = False,
        resource_version: str = "",
        exact: bool = False,
    ) -> Obj:
        """Read a collection: `{"metadata": {"resourceVersion", "continue"?}, "items": […]}`.

        :param limit: objects per page; 0 for all at once
        :param continue_token: `continue` of the previous page
        :param metadata_only: request only the metadata of objects
        :param resource_version: with `0` the server may answer from its cache, which can be a
            little old
        :param exact: read the collection as of that version; raises `Gone` if the server no longer
            has this version
        """
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
            "resourceVersion": resource_version,
            "resourceVersionMatch": "Exact" if exact else "",
        }
        accept = _METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else None

        path = resource.path(namespace)
        page = await self.request(
            "GET", path, resource=resource, verb="list", query=query, accept=accept
        )
        return self._answers.page(page)

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object in the namespace that its metadata names. Raises `AlreadyExists`."""
        path = resource.path(obj["metadata"].get("namespace", ""))
        query = {"dryRun": "All" if dry_run else ""}
        answer = await self.request("POST", path, resource=resource, body=obj, query=query)
        return self._answers.one(obj["metadata"].get("name", ""), answer)

    async def replace(self, resource: Resource, obj: Obj, *, subresource: str = "") -> Obj:
        """Replace an object.

        If its metadata has a resourceVersion, raises `Conflict` unless the server has that version.
        """
        metadata = obj["metadata"]
        path = _object_path(resource, metadata.get("namespace", ""), metadata["name"], subresource)
        answer = await self.request("PUT", path, resource=resource, body=obj)
        return self._answers.one(metadata["name"], answer)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        patch: Any,
        *,
        patch_type: PatchType = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Patch an object.

        If a merge patch has `metadata.resourceVersion`, raises `Conflict` unless the server has
        that version.
        """
        answer = await self.request(
            "PATCH",
            _object_path(resource, namespace, name, subresource),
            resource=resource,
            body=patch,
            content_type=_PATCH_TYPES[patch_type],
            query={"dryRun": "All" if dry_run else ""},
        )
        return self._answers.one(name, answer)

    async def apply(
        self,
        resource: Resource,
        obj: Obj,
        *,
        manager: str,
        force: bool = True,
        dry_run: bool = False,
    ) -> Obj:
        """Apply an object on the server, which creates it or takes over the fields that it sets.

        :param manager: name of the field manager that owns the fields
        :param force: take fields from other managers; without it they cause a `Conflict`
        """
        metadata = obj["metadata"]
        query = {
            "fieldManager": manager,
            "force": "true" if force else "",
            "dryRun": "All" if dry_run else "",
        }

        answer = await self.request(
            "PATCH",
            _object_path(resource, metadata.get("namespace", ""), metadata["name"]),
            resource=resource,
            verb="apply",
            body=obj,
            content_type="application/apply-patch+yaml",
            query=query,
        )
        return self._answers.one(metadata["name"], answer)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> Obj | None:
        """Request the deletion of an object.

        Returns the object while finalizers keep it (with its deletionTimestamp), None once the
        server has deleted it. Raises `NotFound` if the object does not exist, and `Conflict` if
        something else writes to it at the same time.

        :param uid: delete only an object with this uid; another object counts as not found
        :param resource_version: delete the object only if it still has this version
        :param propagation: treatment of dependents: `Background`, `Foreground` or `Orphan`
        :param dry_run: have the server check the request without deleting anything
        """
        body: Obj = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            body["preconditions"] = {name: text for name, text in preconditions.items() if text}
        if dry_run:
            body["dryRun"] = ["All"]

        path = _object_path(resource, namespace, name)
        try:
            answer = await self.request("DELETE", path, resource=resource, body=body)
        except Conflict:
            # 409 means another uid, or a concurrent write of an object that still exists.
            if uid and await self._has_other_uid(resource, name, namespace, uid):
                message = (
                    f"{resource} {name} of uid {uid} no longer exists; its name is used by another "
                    "object"
                )
                raise NotFound(404, "NotFound", message) from None
            raise
        return answer if well_formed(answer) and being_deleted(answer) else None

    async def _has_other_uid(self, resource: Resource, name: str, namespace: str, uid: str) -> bool:
        try:
            obj = await self.get(resource, name, namespace)
        except Forbidden:
            # Not every account may `get` objects that it may delete. The caller tries again, and
            # its watch reports the deletion.
            return False
        return bool(obj["metadata"]["uid"] != uid)

    # Watches

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Yield `(type, object)` until the server ends the stream after some minutes.

        Types are ADDED, MODIFIED, DELETED and BOOKMARK. Raises `Gone` if the resource version is
        too old, `ApiError` for a refusal, `Unreachable` if the connection cannot be opened or
        breaks, and `SilentWatch` if it brings nothing for some minutes.

        :param resource_version: yield changes after this version
        :param metadata_only: request only the metadata of objects
        :param on_open: called when the server has accepted the watch
        """
        seconds = random.randint(*_WATCH_SECONDS)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        accept = _METADATA_ONLY.format("PartialObjectMetadata") if metadata_only else None
        # TCP keep-alive finds a dead connection, unless a proxy answers the probes. Then silence
        # shows it, because the server sends a bookmark each minute.
        timeout = aiohttp.ClientTimeout(
            total=seconds + 30, sock_connect=10, sock_read=_WATCH_SILENCE_SECONDS
        )

        code = "none"
        try:
            async with await self._transport.send(
                "GET",
                resource.path(namespace),
                query=query,
                headers=await self._headers(accept),
                timeout=timeout,
            ) as response:
                code = str(response.status)
                self._on_response(response.status, None)
                if response.status != 200:
                    raw = await self._transport.read(response)
                    retry_after = response.headers.get("Retry-After")
                    self._answers.parse(response.status, raw, retry_after, resource.path(namespace))
                if on_open:
                    on_open()

                async for line in self._transport.lines(response):
                    began = time.thread_time() if self.time else 0.0
                    yield self._parse_event(line)
                    if self.time:
                        # This includes the work of the caller, who awaits nothing but the next
                        # event.
                        self.time.spend(time.thread_time() - began)
                        await self.time.rest()
        except aiohttp.SocketTimeoutError as error:
            if code != "200":
                raise self._unreachable(error) from None
            message = f"{self.name}: no event for {_WATCH_SILENCE_SECONDS:.0f} s"
            raise SilentWatch(message) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            metrics.API_REQUESTS.labels(self.name, "watch", str(resource), code).inc()

    def _parse_event(self, line: bytes) -> tuple[str, Obj]:
        """Return type and object of a line of a watch. Raises `ApiError` for an event ERROR."""
        event = orjson.loads(line)  # noqa: TID251 - bounded by the size of an answer
        kind = event["type"]
        obj = event["object"]
        if kind == "ERROR":
            raise self._answers.error(int(obj.get("code") or 500), obj)
        return kind, self._answers.event_object(kind, obj)


def _object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        message = f"{resource}: the name is empty; the path would be that of the whole collection"
        raise ValueError(message)
    return resource.path(namespace, name, subresource)
