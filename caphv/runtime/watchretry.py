"""Decide when an informer tries again, and report the failures of its attempts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable

from caphv.api.object import Resource
from caphv.runtime import metrics
from caphv.runtime.errors import ApiError, Gone, NotFound, TooLarge, Unreachable

# Operators know the lines of an informer by this name.
log = logging.getLogger("caphv.runtime.cache")


class WatchRetries:
    """Failures of one informer, and waits between its attempts.

    :param server: name of the server in metrics and logs
    :param on_error: called with the error of each failed attempt
    :param max_backoff: longest wait between attempts, in seconds
    :param patience: for how many seconds a server that has never answered is expected to be
        unreachable
    :param probe: retries of another informer of the same server that retries often
    """

    def __init__(
        self,
        server: str,
        resource: Resource,
        *,
        on_error: Callable[[Exception], None] | None,
        max_backoff: float,
        patience: float,
        probe: WatchRetries | None,
    ) -> None:
        self.last_error: Exception | None = None
        self._server = server
        self._resource = resource
        self._on_error = on_error
        self._max_backoff = max_backoff
        self._patience = patience
        self._probe = probe

        self._began = time.monotonic()
        self._has_warned = False
        self._wake = asyncio.Event()

    def count_restart(self, error: Exception | None) -> None:
        """Count the end of an attempt, by the reason of its error."""
        reason = _reason(error)
        metrics.WATCH_RESTARTS.labels(self._server, str(self._resource), reason).inc()
        if reason in ("closed", "expired"):
            # These ends are no failures. The line names the server, which the metric does not.
            log.debug("watch of %s on %s restarts: %s", self._resource, self._server, reason)

    def note_contact(self) -> None:
        """Forget the failures, because the server has accepted the watch."""
        self._wake.clear()
        self.last_error = None
        if self._has_warned:
            self._has_warned = False
            log.info("watch of %s on %s resumed", self._resource, self._server)

    def report_failure(self, error: Exception, failures: int, *, has_answered: bool) -> None:
        """Log a failure and call `on_error`.

        :param failures: how many attempts have failed one after the other
        :param has_answered: whether the server has ever answered a list
        """
        self.last_error = error
        level = logging.WARNING
        if self._is_expected(failures, has_answered=has_answered):
            level = logging.DEBUG
        else:
            self._has_warned = True

        problem: object = error
        if isinstance(error, NotFound):
            # The body of this answer is no Status object, so the text of the error would say that
            # the server is not an API server.
            problem = "the server does not serve this kind (HTTP 404)"
        log.log(level, "watch of %s on %s failed: %s", self._resource, self._server, problem)
        if self._on_error:
            self._on_error(error)

    def _is_expected(self, failures: int, *, has_answered: bool) -> bool:
        """Return whether a failure needs no warning, for example because it is the first one."""
        if failures == 1 or self._probe_fails:
            return True
        return not has_answered and time.monotonic() - self._began < self._patience

    @property
    def _probe_fails(self) -> bool:
        return self._probe is not None and self._probe.last_error is not None

    def retry_now(self) -> None:
        """Skip the next wait, or end the current one."""
        self._wake.set()

    async def pause(self, failures: int, at_least: float = 0) -> None:
        """Wait for the next attempt, or for `retry_now`."""
        longest = self._max_backoff
        if not self._probe_fails:
            longest = min(0.2 * 2.0 ** min(failures, 20), self._max_backoff)

        # With jitter, the watches of all processes resume at different times after an outage.
        seconds = max(at_least, random.uniform(longest / 4, longest))
        # `_wake` is not cleared before the wait, because `retry_now` may have been called while the
        # failed attempt was hanging.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()


def _reason(error: Exception | None) -> str:
    """Return the label of the metric that counts why watches end."""
    if error is None:
        return "closed"
    if isinstance(error, Gone):
        return "expired"
    if isinstance(error, TooLarge):
        return "broken"  # the server answers, though
    if isinstance(error, ApiError):
        return "refused"
    if isinstance(error, Unreachable):
        return "unreachable"
    return "broken"
