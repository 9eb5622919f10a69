"""What Harvester says about the VMs of moved machines, and what its silence means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from caphv.api.object import Key, Obj
from operations.backup import adoption
from operations.backup.adoption import VirtualMachines, VirtualMachineState, read_vms
from operations.backup.files import Backup
from operations.read.graph import belongings
from operations.read.harvester import Harvesters, join
from operations.read.objects import HarvesterObjects, Unseen
from tests.support.backup import whole_cluster

pytestmark = pytest.mark.unit

IDENTITY = Key("team", "identity")


def vm(name: str, owner: str = "source") -> Obj:
    return {
        "metadata": {
            "name": name,
            "namespace": "vms",
            "uid": f"vm-{name}",
            "annotations": {"caphv.io/management-cluster": owner},
        }
    }


def instance(name: str) -> Obj:
    return {"metadata": {"name": name, "namespace": "vms", "uid": f"instance-{name}"}}


def ask(monkeypatch: pytest.MonkeyPatch, found: HarvesterObjects | None) -> VirtualMachines:
    """The answer for cluster `team/shop`, with machines `shop-0` and `shop-1`."""

    async def read(*_: Any) -> Harvesters:
        return Harvesters({IDENTITY: found} if found else {})

    monkeypatch.setattr(adoption, "read_harvesters", read)
    backup = Backup(objects=belongings([Key("team", "shop")], whole_cluster()).objects)
    return asyncio.run(read_vms(None, backup))  # type: ignore[arg-type]


def test_vms_are_present_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = HarvesterObjects(vms=[vm("shop-0")], instances=[instance("shop-0")], namespaces=frozenset({"vms"}))
    answer = ask(monkeypatch, found)
    assert answer.states == {"team/shop-0": VirtualMachineState("source", "vm-shop-0", "instance-shop-0")}
    assert (answer.absent, answer.unread) == ({"team/shop-1"}, set())


@pytest.mark.parametrize(
    "found",
    [
        None,
        HarvesterObjects(namespaces=frozenset({"other"})),
        HarvesterObjects(namespaces=frozenset({"vms"}), unserved=["virtualmachines.kubevirt.io"]),
        HarvesterObjects(
            namespaces=frozenset({"vms"}), unseen=[Unseen("virtualmachines.kubevirt.io of namespace vms", "down")]
        ),
        HarvesterObjects(
            vms=[vm("shop-0")],
            namespaces=frozenset({"vms"}),
            unseen=[Unseen("virtualmachineinstances.kubevirt.io of namespace vms", "forbidden")],
        ),
    ],
    ids=["no Harvester", "other namespace", "no such kind", "VMs not read", "instances not read"],
)
def test_what_could_not_be_read_is_not_absent(monkeypatch: pytest.MonkeyPatch, found: HarvesterObjects | None) -> None:
    answer = ask(monkeypatch, found)
    assert (answer.unread, answer.absent, answer.states) == ({"team/shop-0", "team/shop-1"}, set(), {})
    assert answer.unadopted_vms(VirtualMachines(), "target") == ["team/shop-0", "team/shop-1"]


def test_only_a_vm_that_belongs_to_the_target_is_adopted() -> None:
    state = VirtualMachineState("target", "vm", "instance")
    before = VirtualMachines({"a": state, "b": state, "c": state}, absent={"d"})
    other = VirtualMachineState("source", "vm", "instance")
    now = VirtualMachines({"a": state, "b": other}, absent={"c", "d"})
    assert now.unadopted_vms(before, "target") == ["b", "c"]


def test_a_vm_that_was_replaced_or_restarted_is_named() -> None:
    before = VirtualMachines({name: VirtualMachineState("source", "vm", "instance") for name in "abc"})
    states = {
        "a": VirtualMachineState("target", "vm", "instance"),
        "b": VirtualMachineState("target", "vm", "restarted"),
        "c": VirtualMachineState("target", "replaced", "instance"),
        "new": VirtualMachineState("target", "vm", "instance"),
    }
    assert VirtualMachines(states).changed_vms(before) == ["b", "c"]


def test_a_kind_that_two_accounts_find_unserved_stays_so_in_what_both_see() -> None:
    one, other = (HarvesterObjects(unserved=["virtualmachines.kubevirt.io", name]) for name in ("a", "b"))
    assert join(one, other).unserved == ["virtualmachines.kubevirt.io"]
