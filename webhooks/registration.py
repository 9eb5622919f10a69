"""Keeps the webhook configurations on the API server: created when missing, and some seconds after a user deletes one.

Only while the webhooks are served here, because a configuration without a server refuses every write. So replicas
need no leader: the second replica finds it there. A server that stops leaves them, because others may serve, and does
not recreate them: a user who deletes them once the last server has begun to stop expects them to stay deleted. Helm
deletes them before the Deployment, so a deletion is undone only if this process still serves some seconds later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from caphv.api.object import Obj, Resource
from caphv.runtime.cache import Change, Informer
from caphv.runtime.certwatcher import authority
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from caphv.runtime.runnable import Runnable
from webhooks.configuration import NAMES, RESOURCES, configurations, renewed, restored
from webhooks.handler import WEBHOOKS

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
# An uninstallation ends this process within these seconds after it has deleted the configurations.
_RESTORE_SECONDS = 10.0
_MANAGER = "caphv"


class Registration(Runnable):
    """Keeps both configurations; `target` is as of `client_config`, `folder` may have the CA as `ca.crt`."""

    def __init__(self, client: ApiClient, target: Obj, folder: Path, serving: Callable[[], bool]) -> None:
        self._folder = folder
        self._serving = serving
        self._wake = asyncio.Event()
        self._stopping = False
        pairs = zip(WEBHOOKS, configurations(target), strict=True)
        self._kept = [_Kept(client, RESOURCES[webhook], NAMES[webhook], wanted) for webhook, wanted in pairs]

    async def run(self) -> None:
        """Run until cancelled."""
        for kept in self._kept:
            kept.informer.add_handler(self._changed)
        watches = [kept.informer.start() for kept in self._kept]
        try:
            await self._keep()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def stopping(self) -> None:
        """Make and change no configuration from now on."""
        self._stopping = True

    def _changed(self, _change: Change) -> None:
        self._wake.set()

    async def _keep(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            try:
                # Also without an event: whether it is served here, and a new CA, announce themselves in no watch.
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                for kept in self._kept:
                    if self._serving() and not self._stopping:
                        await kept.keep(authority(self._folder))
                pause = _LOOK_SECONDS
            except (ApiError, Unreachable) as error:
                log.warning("webhook configuration cannot be kept, trying again in %.0f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)


class _Kept:
    """One configuration: a watch of its metadata, and what it was when it was last read."""

    def __init__(self, client: ApiClient, resource: Resource, name: str, wanted: Obj) -> None:
        self.informer = Informer(client, resource, field_selector=f"metadata.name={name}", metadata_only=True)
        self._client, self._resource, self._name, self._wanted = client, resource, name, wanted
        self._last: Obj | None = None
        self._looked: tuple[str, bytes] | None = None
        self._restore_at = 0.0
        self.informer.add_handler(self._noticed)

    async def keep(self, authority: bytes) -> None:
        if not self.informer.synced:
            return
        seen = self.informer.get("", self._name)
        if seen is None:
            if time.monotonic() >= self._restore_at:
                await self._restore(authority)
        elif (seen["metadata"]["resourceVersion"], authority) != self._looked:
            await self._renew(authority)

    def _noticed(self, change: Change) -> None:
        if change.new is None:
            self._restore_at = time.monotonic() + _RESTORE_SECONDS
            log.info("%s was deleted and is recreated in %.0f s", self._name, _RESTORE_SECONDS)

    async def _restore(self, authority: bytes) -> None:
        new = restored(self._last, self._wanted, authority)
        try:
            # Applied, because the right to create can be limited to a name only for requests that name the object.
            made = await self._client.apply(self._resource, new, manager=_MANAGER, force=False)
        except Forbidden:
            made = await self._client.create(self._resource, new)  # the role of 0.11 grants this
        except Conflict:
            return  # another replica was faster, and the watch will report it
        log.info("%s was missing and has been made", self._name)
        self._take(made, authority)

    async def _renew(self, authority: bytes) -> None:
        try:
            found = await self._client.get(self._resource, self._name)
            new = renewed(found, self._wanted, authority, first=self._last is None)
            if new is not None:
                found = await self._client.replace(self._resource, new)
                log.info("%s was brought up to date", self._name)
        except NotFound:
            self.informer.forget("", self._name)
            self._looked = None
        except Conflict:
            pass  # another client changed it meanwhile, and the watch will report it
        else:
            self._take(found, authority)

    def _take(self, found: Obj, authority: bytes) -> None:
        self._last = found
        self._looked = (found["metadata"]["resourceVersion"], authority)
        self.informer.observe(found)
