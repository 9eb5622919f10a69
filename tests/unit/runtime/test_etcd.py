"""Output of `etcdctl` in an etcd Pod."""

from __future__ import annotations

import json

import pytest

from caphv.runtime.etcd import leader_id
from caphv.runtime.exec import ExecError

pytestmark = pytest.mark.unit


def test_each_endpoint_names_the_leader() -> None:
    # etcdctl 3.5: `endpoint status -w json`; ids have 64 bits.
    status = {"header": {"member_id": 1}, "leader": 14358734029829570281, "raftTerm": 5}
    assert (
        leader_id(json.dumps([{"Endpoint": "https://127.0.0.1:2379", "Status": status}]).encode()) == status["leader"]
    )


@pytest.mark.parametrize("output", [b"", b"[]", b"{}", b'[{"Status": {}}]', b'[{"Status": {"leader": "x"}}]', b"null"])
def test_unexpected_output_is_an_error(output: bytes) -> None:
    with pytest.raises(ExecError):
        leader_id(output)
