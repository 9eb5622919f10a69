"""The work queues of all controllers. They exist before what feeds them."""

from __future__ import annotations

from collections.abc import Callable

from caphv.api.object import Key
from caphv.runtime.queue import WorkQueue


class Queues:
    """One queue of keys per kind; `harvester_of` groups machines: a slow Harvester never takes all workers."""

    def __init__(self, *, concurrency: int = 32, harvester_of: Callable[[Key], str] | None = None) -> None:
        self.clusters: WorkQueue[Key] = WorkQueue("harvestercluster")
        self.machines: WorkQueue[Key] = WorkQueue(
            "harvestermachine", group_of=harvester_of, group_limit=max(1, concurrency * 3 // 4)
        )
        self.identities: WorkQueue[Key] = WorkQueue("identity")
        self.templates: WorkQueue[Key] = WorkQueue("harvestermachinetemplate")
