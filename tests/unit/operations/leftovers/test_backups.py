"""Backups of replaced machines that a lost cluster left."""

from __future__ import annotations

import pytest

from caphv.api import names, resources
from caphv.api.object import Obj
from caphv.api.ownership import Owner
from caphv.runtime.errors import ApiError, Forbidden, NotFound, ServerFault
from operations.capacity.addresspools import Verdict
from operations.leftovers.release import Outcome
from tests.support.leftovers import CLUSTER, US, Sides, obj, vm

pytestmark = pytest.mark.unit

BACKUPS = resources.VM_BACKUPS


def backup(name: str = "former-replaced", owner: Owner | None = CLUSTER, **annotations: str) -> Obj:
    found = obj(BACKUPS, name, owner)
    found["metadata"]["annotations"] |= annotations
    return found


async def verdicts(*objs: Obj) -> dict[str, Verdict]:
    report, unseen = await Sides.of(*objs).read()
    assert unseen == []
    return {item.name: item.verdict for item in report.objects if item.kind == BACKUPS.kind}


async def test_backup_of_a_lost_cluster_is_deleted() -> None:
    sides = Sides.of(backup())
    assert await sides.delete() == {f"{BACKUPS.kind} vms/former-replaced": Outcome.DELETED}
    assert sides.left() == []


async def test_only_what_the_provider_makes_and_nothing_needs_is_left_over() -> None:
    retained = backup("kept-replaced", **{names.RETAINED_ANNOTATION: "true"})
    assert await verdicts(backup(), retained, backup("nightly"), backup("users-replaced", None)) == {
        "former-replaced": Verdict.LEAKED,
        "kept-replaced": Verdict.IN_USE,
        "nightly": Verdict.UNKNOWN,
    }
    machine = Owner("HarvesterMachine", "team", "gone", "gone-uid", US)
    running = vm("gone", machine)
    running["status"]["printableStatus"] = "Running"
    assert await verdicts(backup(), running) == {"former-replaced": Verdict.IN_USE}


@pytest.mark.parametrize(
    ("error", "hides"),
    [
        (Forbidden(403, "Forbidden", "cannot list"), False),
        (NotFound(404, "NotFound", "the server could not find the requested resource"), False),
        (ServerFault(500, "InternalError", "etcdserver: leader changed"), True),
    ],
)
async def test_missing_right_or_kind_hides_nothing(error: ApiError, hides: bool) -> None:
    sides = Sides.of()
    sides.harvester.errors[f"list {BACKUPS.kind}"] = error
    _, unseen = await sides.read()
    assert bool(unseen) == hides
