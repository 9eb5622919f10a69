"""Create and update the webhook configurations on the API server, and undo deletions.

This happens only while this process serves the webhooks, because a configuration without a server
refuses every write. So replicas need no leader, because the second replica finds the
configurations. A server that stops keeps them, because others may serve. It does not recreate them,
because a user who deletes them after the last server has begun to stop expects them to stay
deleted. Helm deletes them before the Deployment, so a deletion is undone only if this process still
serves some seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from caphv.api.object import Obj, Resource
from caphv.runtime.cache import Change, Informer
from caphv.runtime.certwatcher import authority
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, RequestError
from caphv.runtime.runnable import Runnable
from webhooks.configuration import NAMES, RESOURCES, configurations, recreate, repair
from webhooks.handler import WEBHOOKS

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
# An uninstallation deletes the configurations, and ends this process within this many seconds.
_RESTORE_SECONDS = 10.0
# The field manager of server-side apply.
_MANAGER = "caphv"


class Registration(Runnable):
    """Keep both webhook configurations.

    `client_config` explains `target`. The folder of the certificate may have the CA as `ca.crt`.
    """

    def __init__(
        self, client: ApiClient, target: Obj, folder: Path, serving: Callable[[], bool]
    ) -> None:
        """Prepare the configurations.

        :param client: client of the API server that sends reviews
        :param target: the result of `client_config`
        :param folder: folder of the certificate; it may have the CA as `ca.crt`
        :param serving: returns whether this process serves the webhooks
        """
        self._folder = folder
        self._serving = serving
        self._wake = asyncio.Event()
        self._stopping = False
        self._registered = [
            _RegisteredConfiguration(
                client=client, resource=RESOURCES[webhook], name=NAMES[webhook], intended=intended
            )
            for webhook, intended in zip(WEBHOOKS, configurations(target), strict=True)
        ]

    async def run(self) -> None:
        """Run until cancelled."""
        for configuration in self._registered:
            configuration.informer.add_handler(lambda _change: self._wake.set())
        watches = [configuration.informer.start() for configuration in self._registered]

        try:
            await self._keep()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def stopping(self) -> None:
        """Stop creating and changing configurations."""
        self._stopping = True

    async def _keep(self) -> None:
        """Check the configurations once a second and after each change, and repair them.

        The regular check is needed because no watch reports the start of this server or a new CA.
        """
        pause = _LOOK_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

            try:
                for configuration in self._registered:
                    if self._serving() and not self._stopping:
                        await configuration.keep(authority(self._folder))
                pause = _LOOK_SECONDS
            except RequestError as error:
                log.warning(
                    "webhook configuration cannot be kept, trying again in %.0f s: %s", pause, error
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)


class _RegisteredConfiguration:
    """One configuration on the server.

    Only its metadata is watched. The configuration is read when its metadata has changed.
    """

    def __init__(self, client: ApiClient, resource: Resource, name: str, intended: Obj) -> None:
        """Prepare one configuration.

        :param client: client of the API server
        :param resource: kind of the configuration
        :param name: name of the configuration
        :param intended: the configuration of this release
        """
        self.informer = Informer(
            client, resource, field_selector=f"metadata.name={name}", metadata_only=True
        )
        self._client = client
        self._resource = resource
        self._name = name
        self._intended = intended
        self._last: Obj | None = None
        # Resource version and CA that were last checked.
        self._checked: tuple[str, bytes] | None = None
        self._recreate_at = 0.0
        self.informer.add_handler(self._postpone_recreation)

    async def keep(self, authority: bytes) -> None:
        """Recreate or repair the configuration if needed."""
        # Before the first list, every configuration seems to be missing.
        if not self.informer.synced:
            return

        metadata_only = self.informer.get("", self._name)
        if metadata_only is None:
            if time.monotonic() >= self._recreate_at:
                await self._recreate(authority)
        elif (metadata_only["metadata"]["resourceVersion"], authority) != self._checked:
            await self._repair(authority)

    def _postpone_recreation(self, change: Change) -> None:
        """Wait after a deletion: if an uninstallation causes it, this process ends before."""
        if change.new is None:
            self._recreate_at = time.monotonic() + _RESTORE_SECONDS
            log.info("%s was deleted and is recreated in %.0f s", self._name, _RESTORE_SECONDS)

    async def _recreate(self, authority: bytes) -> None:
        """Create the configuration that is missing, with these CAs."""
        new = recreate(self._last, self._intended, authority)
        try:
            # Use apply, because a role can limit creation to a name only for requests that name
            # the object.
            created = await self._client.apply(self._resource, new, manager=_MANAGER, force=False)
        except Conflict:
            # Another replica was faster, and the watch will report its configuration.
            return

        log.info("recreated missing %s", self._name)
        self._remember(created, authority)

    async def _repair(self, authority: bytes) -> None:
        """Read the configuration, and replace it if it needs a repair or lacks these CAs."""
        try:
            current = await self._client.get(self._resource, self._name)
            new = repair(current, self._intended, authority, first=self._last is None)
            if new is not None:
                current = await self._client.replace(self._resource, new)
                log.info("%s was brought up to date", self._name)
        except NotFound:
            self.informer.forget("", self._name)
            self._checked = None
        except Conflict:
            # Another client changed the configuration meanwhile, and the watch will report that.
            pass
        else:
            self._remember(current, authority)

    def _remember(self, configuration: Obj, authority: bytes) -> None:
        """Record that the configuration on the server was checked with these CAs."""
        self._last = configuration
        self._checked = (configuration["metadata"]["resourceVersion"], authority)
        # Otherwise the watch would report our own write as a change, and cause another read.
        self.informer.observe(configuration)
