"""Which PersistentVolumeClaims a VM uses, in whatever way its volumes name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from caphv.api.virtualmachine import claim_sources, claims_of

pytestmark = pytest.mark.unit

NAMES = st.sampled_from(["root", "data", "photos"])
CLAIM = st.builds(lambda name: {"persistentVolumeClaim": {"claimName": name}}, NAMES)
DATA_VOLUME = st.builds(
    lambda name, hotplugged: {"dataVolume": {"name": name, "hotpluggable": hotplugged}}, NAMES, st.booleans()
)
NO_CLAIM = st.sampled_from(
    [
        {"cloudInitNoCloud": {"secretRef": {"name": "root"}}},
        {"containerDisk": {"image": "data"}},
        {"persistentVolumeClaim": None, "dataVolume": None},
        {"dataVolume": {}},
        # Servers of tenants may answer anything.
        "root",
        {"dataVolume": "root"},
        {"dataVolume": {"name": ["root"]}},
        {"persistentVolumeClaim": ["root"]},
        {"persistentVolumeClaim": {"claimName": {"root": 1}}},
    ]
)


@given(st.lists(CLAIM | DATA_VOLUME), st.lists(NO_CLAIM))
def test_claims_and_data_volumes_are_used_and_nothing_else(used: list[Obj], others: list[Obj]) -> None:
    vm = {"spec": {"template": {"spec": {"volumes": [*others, *used]}}}}
    named = [source.get("claimName") or source.get("name") for volume in used for source in volume.values()]
    assert claims_of(vm) == set(named)
    hotplugged = [bool(source.get("hotpluggable")) for volume in used for source in volume.values()]
    assert [bool(source.get("hotpluggable")) for source in claim_sources(vm)] == hotplugged
