"""Which Pods a drain ends."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from reconciler.cluster.parking.drain import is_evicted

pytestmark = pytest.mark.unit

REPLICA = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        # It would be lost.
        ({"metadata": {}}, False),
        ({"metadata": {"ownerReferences": [{"kind": "Backup"}]}}, False),
        ({"metadata": REPLICA}, True),
        ({"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}}, False),
        ({"metadata": {**REPLICA, "annotations": {"kubernetes.io/config.mirror": "x"}}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Succeeded"}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Failed"}}, False),
        ({"metadata": REPLICA, "status": {"phase": "Running"}}, True),
    ],
)
def test_pods(pod: Obj, expected: bool) -> None:
    assert is_evicted(pod) is expected
