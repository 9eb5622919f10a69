"""Settings of interfaces that exclude each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import interfaces

pytestmark = pytest.mark.unit

POOL = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "a"}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["network", "addressesFromPools", "networkConfig"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def found(*listed: Any, **fields: Any) -> list[tuple[str, tuple[str | int, ...]]]:
    spec = {"networks": ["a", "b"], **fields, interfaces.FIELD: list(listed)}
    return [(conflict.kind, conflict.path) for conflict in interfaces.conflicts(spec)]


def test_all_conflicts_at_once() -> None:
    first = {"network": "a", "addressesFromPools": [POOL, POOL]}
    assert found(first, {"network": "c"}, first, vmNetworkConfig={"gateway": "10.0.0.1"}) == [
        (interfaces.ADDRESSES_EXCLUSIVE, (0, "addressesFromPools")),
        (interfaces.UNIQUE, (0, "addressesFromPools", 1)),
        (interfaces.NETWORK, (1, "network")),
        (interfaces.UNIQUE, (2, "network")),
        (interfaces.ADDRESSES_EXCLUSIVE, (2, "addressesFromPools")),
        (interfaces.UNIQUE, (2, "addressesFromPools", 1)),
    ]


def test_static_address_of_the_first_interface_does_not_concern_the_others() -> None:
    assert found({"network": "b", "addressesFromPools": [POOL]}, networkConfig={"address": "10.0.0.5"}) == []


@given(ANYTHING, ANYTHING)
def test_values_of_any_type_are_read(networks: Any, listed: Any) -> None:
    list(interfaces.conflicts({"networks": networks, interfaces.FIELD: listed}))
