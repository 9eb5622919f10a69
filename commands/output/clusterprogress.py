"""Show how far a change of several clusters is that the provider carries out."""

from __future__ import annotations

import time
from collections.abc import Iterable

from caphv.api.object import Key
from commands.output.changes import Progress
from commands.output.echo import echo
from operations.change.clusterprogress import ClusterProgress

# A problem must last this long before the cluster counts as one that needs its user.
_BLOCKED_SECONDS = 10.0


class ClustersProgress:
    """Lines about the progress of each cluster, and whether all are done or need their user."""

    def __init__(self, keys: Iterable[Key], *, to_stderr: bool) -> None:
        self._lines = {key: Progress(to_stderr=to_stderr) for key in keys}
        self._last: dict[Key, ClusterProgress] = {}
        self._blocked_since: dict[Key, float] = {}

    def say(self, key: Key, progress: ClusterProgress) -> None:
        """Write the progress of a cluster unless it repeats the last one."""
        self._last[key] = progress
        self._lines[key].say(f"{key}: {progress.text}")
        if progress.blocked:
            self._blocked_since.setdefault(key, time.monotonic())
        else:
            self._blocked_since.pop(key, None)

    def is_done(self) -> bool:
        """Return whether all clusters are done, as far as is known."""
        return all(progress.done for progress in self._last.values())

    def has_ended(self) -> bool:
        """Return whether each cluster is done, or needs its user."""
        return all(progress.done or self._is_stuck(key) for key, progress in self._last.items())

    def _is_stuck(self, key: Key) -> bool:
        # What the condition says may be older than the change.
        since = self._blocked_since.get(key)
        return since is not None and time.monotonic() - since >= _BLOCKED_SECONDS

    def explain(self, *, in_time: bool) -> None:
        """Write to standard error which clusters are not done, and what to do."""
        for key, progress in self._last.items():
            if not progress.done:
                echo(f"✗ {key}: {progress.text}", err=True)
        if in_time:
            echo(
                "Do what these lines say; the change then continues. Run this command again to "
                "wait.",
                err=True,
            )
        else:
            echo(
                "Timed out. The change continues without this command; run it again to wait.",
                err=True,
            )
