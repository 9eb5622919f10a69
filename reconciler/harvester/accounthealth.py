"""Health of an account: whether Harvester answers it and accepts its credentials.

`AccountHealth.error` alone decides that Harvester is unreachable. It follows from:

- attempts to connect, until the first one succeeds (`Session._connect`)
- then the probe: the watch of Harvester's Deployment (`reconciler.harvester.harvester.Probe`),
  except for a refusal of another account that reads it for this one
- statuses of all responses: 401 means rejected credentials until another request succeeds

A change goes to `HarvesterHandlers.health`, which requeues the clusters and machines of the
account. Their conditions then say it: `reconciler.cluster.connection` for clusters, after the grace
of `reconciler.memory.periods` if the stored status says more, and `reconciler.machine.scope` for
machines. Nothing stores since when Harvester is unreachable: the conditions say since when they do.
The metrics of `reconciler.harvester.connectionmetrics` ask for the health when they are scraped.
"""

from __future__ import annotations

from collections.abc import Callable

from caphv.runtime.errors import Unauthorized, Unreachable, without_trace


class AccountHealth:
    """Health of one account, learned from connecting, from responses, and from the probe.

    :param probe_error: returns the last error of the watch of Harvester's Deployment that concerns
        this account
    :param on_change: called when the health changes, but not for each attempt
    """

    def __init__(
        self, probe_error: Callable[[], Exception | None], on_change: Callable[[], None]
    ) -> None:
        self.is_rejected = False
        """Whether a response had status 401, and none has succeeded since."""
        self._probe_error = probe_error
        self._on_change = on_change
        self._is_connected = False
        self._connect_error: Exception | None = None
        self._unanswered: Unreachable | None = None
        self._reported = ""

    @property
    def error(self) -> Exception | None:
        """Why requests to Harvester fail now, None if they do not."""
        if self.is_rejected:
            # While Harvester does not answer, the credentials may have become valid again.
            rejection = Unauthorized(
                401, "Unauthorized", "the credentials are invalid or have expired"
            )
            return self._unanswered or rejection
        return self._connect_error or self._probe_error()

    def report(self) -> None:
        """Call `on_change` if the health differs from what was reported last."""
        health = "answers" if self._is_connected else ""
        error = self.error
        if error:
            health = type(error).__name__
        if health != self._reported:
            self._reported = health
            self._on_change()

    def record_connection(self) -> None:
        """Record that the account is connected to a Harvester."""
        self._connect_error = None
        self._is_connected = True
        self.report()

    def record_connect_error(self, error: Exception) -> None:
        """Record that an attempt to connect has failed."""
        self._connect_error = without_trace(error)
        self.report()

    def record_no_answer(self, error: Unreachable) -> None:
        """Record that a request had no answer, so that a rejection may be outdated."""
        self._unanswered = without_trace(error)
        self.report()

    def handle_status(self, code: int) -> bool:
        """Learn from the HTTP status of a response, 0 for none.

        Returns whether Harvester now rejects credentials that it accepted before.
        """
        if code:
            self._unanswered = None

        is_new_rejection = code == 401 and not self.is_rejected
        if code == 401:
            self.is_rejected = True
            self.report()
        elif 200 <= code < 300 and self.is_rejected:
            self.is_rejected = False
            self.report()
        return is_new_rejection
