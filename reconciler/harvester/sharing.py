"""Let a session use the shared caches of those collections that its account may list.

A SelfSubjectAccessReview answers which ones these are. The session reads a denied collection alone,
and the errors of that cache name the missing right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from reconciler.harvester.harvester import Harvester
from reconciler.harvester.rights import may
from reconciler.harvester.sharedcache import is_refusal
from reconciler.harvester.views import View
from reconciler.harvester.watchedcollections import POOLS

if TYPE_CHECKING:
    from reconciler.harvester.session import Session


class CacheSharing:
    """Decide for each view of a session whether it uses the shared cache or one of its own.

    :param session: the session
    :param announce: starts a task that requeues the objects which wait for these views, once the
        caches are filled
    """

    def __init__(
        self, session: Session, announce: Callable[[list[View]], asyncio.Task[None]]
    ) -> None:
        self._session = session
        self._announce = announce
        self._harvester: Harvester | None = None

    def join(self, harvester: Harvester) -> None:
        """Record to which Harvester the session is connected, before any view is opened."""
        self._harvester = harvester

    def reads(self, view: View) -> bool:
        """Return whether the account reads a collection itself, so that errors concern it."""
        if not view.is_shared:
            return True
        harvester = self._harvester
        return harvester is not None and harvester.cache(view.collection).reads(self._session)

    def error_of(self, view: View) -> Exception | None:
        """Return why the cache of a view cannot be read, None while there is no error.

        A refusal counts only if the account reads the collection itself. If another account reads
        for it, the refusal says nothing about this account, which reads once the other has left.
        """
        error = view.informer.last_error
        return None if is_refusal(error) and not self.reads(view) else error

    async def open(self, views: Iterable[View]) -> None:
        """Give each view that is empty a cache, and announce all of them."""
        opened = list(views)
        for view in opened:
            if not view.is_shared and not view.is_read_alone:
                await self._open(view)
        self._announce(opened)

    async def review(self, views: Iterable[View]) -> None:
        """Leave shared caches that the account may no longer list, and join caches that it may."""
        assert self._harvester is not None  # noqa: S101 - the session has joined
        for view in views:
            cache = self._harvester.cache(view.collection)
            await self._share_turns(view)
            if view.is_shared and cache.reads(self._session):
                continue  # the account lists the collection itself, so a review is not needed

            allowed = await may(self._session.client, "list", view.collection)
            if view.is_shared and not allowed:
                await self._harvester.leave(self._session, view.collection)
                self._session.handle_refusal(view.collection)
            elif allowed and not view.is_shared:
                await view.stop()
                await self._open(view)
                self._announce_switch(view)

    def read_alone(self, view: View) -> None:
        """Let a view use a cache of its own, because Harvester has refused the account's list."""
        # An account that does not share the cache of pools must not write pools for others.
        if view.collection == POOLS:
            self._session.allocator.writes_for_others = False
        self._read_alone(view)
        self._announce_switch(view)

    async def close(self, view: View) -> None:
        """Leave the cache of a view that the session no longer needs."""
        view.close()
        await view.stop()
        if view.is_shared and self._harvester:
            view.unshare()
            await self._harvester.leave(self._session, view.collection)

    async def _open(self, view: View) -> None:
        """Use the shared cache if the account may list the collection, else a cache of its own."""
        assert self._harvester is not None  # noqa: S101 - the session has joined
        cache = self._harvester.cache(view.collection)
        # The first account needs no review, because its own list shows whether it may.
        allowed = not cache.members or await may(self._session.client, "list", view.collection)
        if view.is_closed:
            return
        if not allowed:
            self._read_alone(view)
            return

        # Get the cache again, because the last member may have left and closed it during the
        # review.
        cache = self._harvester.cache(view.collection)
        view.share(cache.informer)
        cache.join(self._session)
        await self._share_turns(view)

    async def _share_turns(self, view: View) -> None:
        """Find out whether this account and others may write pools for each other."""
        if view.collection == POOLS:
            self._session.allocator.writes_for_others = view.is_shared and await may(
                self._session.client, "patch", POOLS
            )

    def _read_alone(self, view: View) -> None:
        view.read_alone(server=self._session.server, identity=self._session.identity)

    def _announce_switch(self, view: View) -> None:
        """Requeue objects that may wait for a change which neither cache has reported."""
        view.replace_announcement(self._announce([view]))
