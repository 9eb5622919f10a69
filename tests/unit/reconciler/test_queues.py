"""A slow Harvester never takes all workers, however many accounts it has."""

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.object import Key
from caphv.runtime.queue import Group
from reconciler.manager import Groups
from reconciler.queues import Queues
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


class Sessions:
    """Each cluster has an account of its own; those named `slow-…` are on one server."""

    def of(self, cluster: Key) -> Any:
        return SimpleNamespace(server=cluster.name.partition("-")[0], fingerprint=f"account of {cluster.name}")


async def test_all_accounts_on_one_harvester_leave_workers_to_others() -> None:
    caches: Any = SimpleNamespace(
        harvester_machines=SimpleNamespace(get=lambda _namespace, name: {"cluster": name}),
        harvester_cluster_of_machine=lambda machine: {"metadata": {"namespace": "team", "name": machine["cluster"]}},
    )
    sessions: Any = Sessions()
    groups = Groups(caches, sessions)
    queues = Queues(concurrency=8, cluster_group=groups.of_cluster, machine_group=groups.of_machine)
    for queue in (queues.clusters, queues.machines):
        for number in range(20):
            queue.add(Key("team", f"slow-{number}"))
        queue.add(Key("team", "other"))
        taken = [await queue.get() for _ in range(7)]
        assert Key("team", "other") in taken
        # The eighth worker waits for a key of another Harvester.
        queue.add(Key("team", "third"))
        await settle()
        assert await queue.get() == Key("team", "third")


async def test_renewals_on_one_harvester_that_does_not_answer_leave_workers_to_others() -> None:
    queues = Queues(renewal_group=lambda key: Group(key.name.partition("-")[0]))
    for number in range(20):
        queues.renewals.add(Key("", f"slow-{number}"))
    queues.renewals.add(Key("", "other"))
    assert Key("", "other") in [await queues.renewals.get() for _ in range(13)]
