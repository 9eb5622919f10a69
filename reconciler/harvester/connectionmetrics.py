"""Report which Harvesters answer and which identities they accept, when metrics are scraped."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.runtime.errors import Unreachable
from reconciler import metrics
from reconciler.harvester.session import Session


def report(sessions: Iterable[Session]) -> None:
    """Set the metrics of connections, and remove those of identities that are no longer used."""
    metrics.HARVESTER_REACHABLE.clear()
    metrics.IDENTITY_ACCEPTED.clear()
    for session in sessions:
        answers = not isinstance(session.error, Unreachable)
        metrics.HARVESTER_REACHABLE.labels(session.server, session.identity).set(int(answers))
        if answers:
            metrics.IDENTITY_ACCEPTED.labels(session.identity).set(int(not session.is_unauthorized))
