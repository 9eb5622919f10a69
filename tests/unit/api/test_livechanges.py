"""Which changes a running VM can follow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.livechanges import Changes, live_changes, machine_obstacles, other_changes
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

DISK: Obj = {"volumeType": "image", "imageName": "default/sles", "volumeSize": "40Gi"}
LARGER: Obj = {**DISK, "volumeSize": "60Gi"}
EMPTY: Obj = {
    "volumeType": "storageClass",
    "storageClass": "longhorn",
    "volumeSize": "10Gi",
    "accessMode": "ReadWriteMany",
}
SPEC: Obj = {
    "cpu": 4,
    "cpuMax": 16,
    "memory": "8Gi",
    "memoryMax": "32Gi",
    "networks": ["default/production"],
    "volumes": [DISK],
}


@pytest.mark.parametrize(
    ("change", "live"),
    [
        ({}, {}),
        ({"cpu": 8}, {"cpu": 8}),
        ({"cpu": 16}, {"cpu": 16}),
        ({"memory": "16Gi"}, {"memory": "16Gi"}),
        ({"memory": "8192Mi"}, {"memory": "8192Mi"}),
        ({"cpu": 8, "memory": "32Gi"}, {"cpu": 8, "memory": "32Gi"}),
        ({"nodeAffinity": {"a": 1}}, {"nodeAffinity": {"a": 1}}),
        ({"workloadAffinity": {"a": 1}, "cpu": 8}, {"workloadAffinity": {"a": 1}, "cpu": 8}),
        ({"volumes": [LARGER]}, {"volumes": [LARGER]}),
        ({"volumes": [DISK, EMPTY]}, {"volumes": [DISK, EMPTY]}),
        ({"volumes": [LARGER, EMPTY], "cpu": 8}, {"volumes": [LARGER, EMPTY], "cpu": 8}),
        ({"volumes": [{**DISK, "volumeSize": "40960Mi"}]}, {"volumes": [{**DISK, "volumeSize": "40960Mi"}]}),
    ],
)
def test_growth_additional_disks_and_affinities_are_live(change: Obj, live: Obj) -> None:
    changes = live_changes(SPEC, {**SPEC, **change})
    assert (changes.live, changes.reasons) == (live, ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cpu": 2}, "cpu becomes smaller"),
        ({"cpu": 17}, "cpu becomes larger than cpuMax"),
        ({"memory": "4Gi"}, "memory becomes smaller"),
        ({"memory": "33Gi"}, "memory becomes larger than memoryMax"),
        ({"cpuMax": 32}, "a change of cpuMax needs another VM"),
        ({"memoryMax": None}, "a change of memoryMax needs another VM"),
        ({"networks": []}, "a change of networks needs another VM"),
        ({"networkInterfaces": [{}]}, "a change of networkInterfaces needs another VM"),
        ({"sshUser": "other"}, "a change of sshUser needs another VM"),
        ({"volumes": []}, "1 of 1 volumes are removed"),
        ({"volumes": [{**DISK, "volumeSize": "20Gi"}]}, "volumes[0] becomes smaller"),
        ({"volumes": [{**DISK, "volumeSize": "much"}]}, "volumes[0].volumeSize is not a quantity"),
        ({"volumes": [{**DISK, "imageName": "other"}]}, "a change of volumes[0].imageName needs another VM"),
        ({"volumes": [{**LARGER, "bootOrder": 1}]}, "a change of volumes[0].bootOrder needs another VM"),
        ({"volumes": [DISK, {**EMPTY, "volumeType": "image"}]}, "volumes[1] is added and has an image"),
        (
            {"volumes": [DISK, {**EMPTY, "accessMode": "ReadWriteOnce"}]},
            "volumes[1] is added and its accessMode is not ReadWriteMany",
        ),
        (
            {"volumes": [DISK, {**EMPTY, "accessMode": None}]},
            "volumes[1] is added and its accessMode is not ReadWriteMany",
        ),
        ({"volumes": [DISK, {**EMPTY, "storageClass": ""}]}, "volumes[1] is added and has no storageClass"),
        ({"volumes": [DISK, {**EMPTY, "bootOrder": 2}]}, "volumes[1] is added and has a boot order"),
    ],
)
def test_other_changes_need_another_vm(change: Obj, reason: str) -> None:
    assert live_changes(SPEC, {**SPEC, **change}).reasons == (reason,)


def test_without_maxima_nothing_is_live() -> None:
    plain = {"cpu": 4, "memory": "8Gi"}
    changes = live_changes(plain, {"cpu": 8, "memory": "16Gi"})
    assert changes.live == {}
    assert changes.reasons == (
        "cpu changes, and the machines have no cpuMax",
        "memory changes, and the machines have no memoryMax",
    )


@pytest.mark.parametrize(
    ("volumes", "grows", "adds"),
    [([DISK], False, False), ([LARGER], True, False), ([DISK, EMPTY], False, True), ([LARGER, EMPTY], True, True)],
)
def test_larger_and_additional_disks_differ(volumes: list[Obj], grows: bool, adds: bool) -> None:
    changes = live_changes(SPEC, {**SPEC, "volumes": volumes})
    assert (changes.grows_disks, changes.adds_disks, changes.needs_growth) == (grows, adds, False)


specs = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(1, 8),
        "cpuMax": st.integers(1, 8),
        "memory": st.sampled_from(["1Gi", "2Gi", "2048Mi", "nonsense"]),
        "memoryMax": st.sampled_from(["2Gi", "4Gi"]),
        "sshUser": st.sampled_from(["a", "b"]),
        "nodeAffinity": st.sampled_from([{"a": 1}, {"b": 1}]),
        "volumes": st.lists(st.sampled_from([DISK, LARGER, EMPTY, {"volumeSize": "x"}]), max_size=3),
    },
)


@given(specs, specs)
def test_live_fields_and_reasons_cover_every_difference(current: Obj, desired: Obj) -> None:
    """So an answer without reasons makes both specs equal, which Cluster API demands."""
    changes = live_changes(current, desired)
    differing = {field for field in current.keys() | desired.keys() if current.get(field) != desired.get(field)}
    assert len(changes.live) + len(changes.reasons) == len(differing)
    assert changes.live.keys() <= differing & {"cpu", "memory", "nodeAffinity", "volumes"}
    assert changes.needs_growth == bool(changes.live.keys() & {"cpu", "memory"})
    if not changes.reasons:
        updated = {**current, **changes.live}
        assert {field: value for field, value in updated.items() if value is not None} == desired


@pytest.mark.parametrize(
    ("current", "desired", "fields"),
    [
        ({"version": "v1.36.1"}, {"version": "v1.36.1"}, []),
        ({"version": "v1.36.1"}, {"version": "v1.36.2"}, ["version"]),
        ({"failureDomain": ""}, {}, []),
        ({"infrastructureRef": {"name": "a"}, "taints": []}, {"infrastructureRef": {"name": "b"}}, []),
    ],
)
def test_changes_of_machine_and_bootstrap_are_named(current: Obj, desired: Obj, fields: list[str]) -> None:
    expected = tuple(f"a change of {field} of the Machine needs another VM" for field in fields)
    assert other_changes(current, desired, "Machine") == expected


def machine(**statuses: str) -> Obj:
    conditions = [{"type": kind, "status": status, "message": "secret"} for kind, status in statuses.items()]
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions}}


GROWS = machine(VMUpToDate="True", VMCanGrow="True")
FIXED = machine(VMUpToDate="True", VMCanGrow="False")
UPDATING: Obj = {"status": {"conditions": [{"type": "VMUpToDate", "status": "False", "reason": "VMUpdating"}]}}
UNKNOWN: Obj = {"metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("machines", "growth", "obstacles"),
    [
        ([GROWS, GROWS], True, []),
        ([GROWS, FIXED, FIXED], True, ["2 of 3 VMs cannot grow"]),
        ([FIXED, machine(VMUpToDate="True")], False, []),
        ([machine(VMUpToDate="True")], True, ["1 of 1 VMs cannot grow"]),
        ([GROWS, machine(VMUpToDate="False", VMCanGrow="True")], True, ["1 of 2 VMs cannot follow"]),
        ([machine(VMUpToDate="Unknown")], False, ["1 of 1 VMs cannot follow"]),
        ([UNKNOWN, {}], False, ["2 of 2 VMs cannot follow"]),
        ([UNKNOWN], True, ["1 of 1 VMs cannot follow", "1 of 1 VMs cannot grow"]),
        ([UPDATING], False, []),
        ([], True, []),
    ],
)
def test_machines_whose_update_could_not_finish_are_counted(
    machines: list[Obj], growth: bool, obstacles: list[str]
) -> None:
    reported = machine_obstacles(machines, Changes({"cpu": 8} if growth else {"nodeAffinity": {}}))
    assert len(reported) == len(obstacles)
    assert all(text.startswith(obstacle) for text, obstacle in zip(reported, obstacles, strict=True))
    assert "secret" not in str(reported)


def test_conditions_of_disks_count_for_their_changes_alone() -> None:
    machines = [machine(VMUpToDate="True", DisksCanGrow="True"), machine(VMUpToDate="True", DisksCanGrow="False")]
    volumes: Obj = {"volumes": [LARGER]}
    (growth,) = machine_obstacles(machines, Changes(volumes, grows_disks=True))
    assert growth.startswith("1 of 2 VMs have disks that cannot grow: see condition DisksCanGrow")
    (addition,) = machine_obstacles(machines, Changes(volumes, adds_disks=True))
    assert addition.startswith("2 of 2 VMs cannot get disks: see condition DisksCanBeAdded")
    assert machine_obstacles(machines, Changes({"nodeAffinity": {}})) == ()
    assert "secret" not in growth + addition
