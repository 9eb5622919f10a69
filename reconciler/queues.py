"""The work queues of all controllers, which exist before the handlers that feed them."""

from __future__ import annotations

from collections.abc import Callable

from caphv.api.object import Key
from caphv.runtime.queue import Group, WorkQueue

GroupOf = Callable[[Key], Group]
# Renewals at a time. An attempt mostly waits for its Harvester, and must not delay those on others.
RENEWALS = 16


class Queues:
    """One queue of keys per kind.

    :param concurrency: how many workers each of the controllers has
    :param cluster_group: returns the group of a HarvesterCluster, by its Harvester
    :param machine_group: returns the group of a HarvesterMachine
    :param renewal_group: returns the group of an identity whose token is renewed
    """

    def __init__(
        self,
        *,
        concurrency: int = 32,
        cluster_group: GroupOf | None = None,
        machine_group: GroupOf | None = None,
        renewal_group: GroupOf | None = None,
    ) -> None:
        # A slow Harvester must never take all workers.
        limit = max(1, concurrency * 3 // 4)
        self.clusters: WorkQueue[Key] = WorkQueue(
            "harvestercluster", group_of=cluster_group, group_limit=limit
        )
        self.machines: WorkQueue[Key] = WorkQueue(
            "harvestermachine", group_of=machine_group, group_limit=limit
        )
        self.identities: WorkQueue[Key] = WorkQueue("identity")
        self.renewals: WorkQueue[Key] = WorkQueue(
            "tokenrenewal", group_of=renewal_group, group_limit=RENEWALS * 3 // 4
        )
        self.templates: WorkQueue[Key] = WorkQueue("harvestermachinetemplate")
