"""What a Harvester offers to new clusters, by the names that users give."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from operations.capacity.free import CapacityObjects
from operations.capacity.surroundings import Surroundings
from operations.read.objects import HarvesterObjects, Unseen

pytestmark = pytest.mark.unit


def image(name: str, shown: str = "") -> Obj:
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"displayName": shown} if shown else {}}


def test_images_have_their_name_and_the_one_that_is_displayed() -> None:
    harvester = HarvesterObjects(images=[image("a", "sles"), image("b")])
    found = Surroundings(CapacityObjects(harvester)).images
    assert found is not None
    assert {name: obj["metadata"]["name"] for name, obj in found.items()} == {
        "default/a": "a",
        "default/b": "b",
        "default/sles": "a",
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("virtualmachineimages.harvesterhci.io", "images"),
        ("network-attachment-definitions.k8s.cni.cncf.io", "networks"),
        ("keypairs.harvesterhci.io", "key_pairs"),
    ],
)
def test_what_may_not_be_listed_is_unknown(kind: str, name: str) -> None:
    harvester = HarvesterObjects(unseen=[Unseen(kind, "forbidden", forbidden=True)])
    assert getattr(Surroundings(CapacityObjects(harvester)), name) is None
    assert getattr(Surroundings(CapacityObjects(HarvesterObjects())), name) == {}
