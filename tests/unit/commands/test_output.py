"""What commands write for people: each fact once, on its own line, with a mark that says whether it is bad news."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.counting import counted
from caphv.api.object import Key
from caphv.api.quantity import readable
from caphv.validation.yaml.yaml_rules import Position
from commands.output import capacity, changes, doctor, etcd, identities, plan, validate
from commands.output.bundles import UPGRADED, table
from commands.output.overview import console
from commands.output.pools import show, show_plan
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.capacity.free import Capacity, Quota, Room, Storage
from operations.capacity.machinechanges import Action, Field, PoolEffect
from operations.capacity.needs import Need
from operations.change.changes import Change, Patch, Plan
from operations.change.etcd import EtcdMember
from operations.change.plan.model import ClusterPlan, ObjectPlan
from operations.change.plan.model import Plan as ClustersPlan
from operations.status.assembly import overview_of
from operations.status.check import Check, Result
from operations.status.identities import Identity
from operations.status.model import AddressPool, Problem, Severity
from packager.upgrade.request import Request
from packager.upgrade.rollout import Rollout, State
from tests.support.clusters import NOW, Builder, ago

pytestmark = pytest.mark.unit

GIB = 1024**3


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


# Numbers


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (1023, "B", "1023 B"),
        (1024, "B", "1 KiB"),
        (1536, "B", "1.5 KiB"),
        (-2 * GIB, "B", "-2 GiB"),
        (5 * 1024**5, "B", "5 PiB"),
        (2048 * 1024**5, "B", "2048 PiB"),
        (2, "", "2"),
        (0.25, "", "0.2"),
        (10, "", "10"),
    ],
)
def test_amounts_have_the_unit_that_people_read(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text


@given(st.integers(0, 1024**6))
def test_an_amount_of_bytes_is_short_and_nearly_right(value: int) -> None:
    number, unit = readable(value, "B").split()
    size = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert abs(float(number) * size - value) <= size / 20 * (1 + 1e-9)
    assert len(number) <= 6


@given(st.integers(0, 10**6))
def test_only_one_is_singular(number: int) -> None:
    assert counted(number, "cluster") == f"{number} cluster" + ("" if number == 1 else "s")


def test_columns_of_a_table_are_as_wide_as_their_widest_cell() -> None:
    assert table(("A", "NAME"), [("long", "x"), ("s", "yy")]) == "A     NAME\nlong  x\ns     yy\n"


def test_cell_of_a_table_sends_no_escape_sequence_but_a_colour() -> None:
    assert table(("A",), [("\x1b[32mok\x1b[0m",)]) == "A\n\x1b[32mok\x1b[0m\n"
    assert "\x1b" not in table(("A",), [("\x1b[2Ja b",)])


def test_an_upgrade_names_clusters_that_were_not_ready_or_left_out() -> None:
    waves = ("canary", (Key("team", "a"),)), ("rest", (Key("team", "b"), Key("team", "c")))
    request = Request(("canary", "rest"), 600.0)
    upgrade = Rollout("2026.12", request, waves, State.REVERTED, wave=1)
    upgrade = replace(upgrade, problems={Key("team", "a"): ("late", "not ready")}, left_out={Key("team", "b"): ("x",)})
    lines = click.unstyle(UPGRADED["text"](upgrade)).splitlines()
    assert lines[:3] == [
        "Reverted: release 2026.12, wave 1 of 2 (canary)",
        "  not ready  team/a: late; not ready",
        "  left out  team/b: x",
    ]
    assert lines[3].startswith("  the wave has its former versions again; correct the cause")
    complete = replace(upgrade, state=State.COMPLETE, problems={}, left_out={})
    assert len(UPGRADED["text"](complete).splitlines()) == 1


@pytest.mark.parametrize("to_stderr", [False, True])
def test_progress_is_written_where_no_data_is(capsys: pytest.CaptureFixture[str], to_stderr: bool) -> None:
    progress = changes.Progress(to_stderr=to_stderr)
    for text in ("first", "first", "second", "first"):
        progress.say(text)
    written = capsys.readouterr()
    text, nothing = (written.err, written.out) if to_stderr else (written.out, written.err)
    assert [line.split("  ")[1] for line in text.splitlines()] == ["first", "second", "first"]
    assert nothing == ""


# Capacity


CAPACITY = Capacity(
    harvester="https://harvester:6443",
    total=Room(name="all hosts", hosts=2, cpu=8.0, cpu_free=0.0, memory=64 * GIB, memory_free=32 * GIB),
    hosts=(
        Room(name="host-1", hosts=1, cpu=4.0, cpu_free=0.0, memory=32 * GIB, memory_free=16 * GIB, zone="zone-1"),
        Room(name="host-2", hosts=1, cpu=4.0, cpu_free=0.0, memory=32 * GIB, memory_free=16 * GIB),
    ),
    zones=(Room(name="zone-1", hosts=1, cpu=4.0, cpu_free=0.0, memory=32 * GIB, memory_free=16 * GIB),),
    pools=(AddressPool("h", "machines", 10, 3), AddressPool("h", "others", 5, None)),
    quotas=(
        Quota("vms", "default", "limits.memory", 8.0 * GIB, 2.0 * GIB),
        Quota("vms", "default", "limits.cpu", 8.0, 9.0),
        Quota("vms", "default", "gold.storageclass.storage.k8s.io/requests.storage", 8.0 * GIB, 0.0),
    ),
    storage=Storage(2048 * GIB, 512 * GIB),
)


def test_capacity_shows_each_kind_of_room(capsys: pytest.CaptureFixture[str]) -> None:
    capacity.show([CAPACITY], hosts=False)
    assert [line.split(maxsplit=1) for line in lines(capsys)] == [
        ["Harvester", "https://harvester:6443"],
        ["HOSTS", "CPU FREE  MEMORY FREE"],
        ["all", "hosts  2      0 of 8    32 GiB of 64 GiB"],
        ["zone-1", "    1      0 of 4    16 GiB of 32 GiB".strip()],
        ["IPPOOL", "   FREE".strip()],
        ["machines", "3 of 10"],
        ["others", "? of 5"],
        ["QUOTA", "RESOURCE                                           FREE".strip()],
        ["vms/default", "limits.memory                                      6 GiB of 8 GiB"],
        ["vms/default", "limits.cpu                                         -1 of 8"],
        ["vms/default", "gold.storageclass.storage.k8s.io/requests.storage  8 GiB of 8 GiB"],
        ["STORAGE", "FREE"],
        ["Longhorn", "512 GiB of 2 TiB"],
    ]


def test_hosts_are_shown_with_their_zone_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    capacity.show([CAPACITY], hosts=True)
    shown = [line.split("  ")[1] for line in lines(capsys) if "host-" in line]
    assert shown == ["host-1 (zone-1)", "host-2"]


def test_room_that_is_counted_by_some_vms_only_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    capacity.show([Capacity(harvester="https://h", total=CAPACITY.total, all_vms=False)], hosts=False)
    _, _, total = lines(capsys)
    assert total.startswith("  all hosts (by the VMs that are seen)  2")


# Plans


def planned(*pools: PoolEffect, **more: object) -> ClustersPlan:
    return ClustersPlan(clusters=(ClusterPlan("team/shop", pools, **more),))  # type: ignore[arg-type]


def shown(found: ClustersPlan, capsys: pytest.CaptureFixture[str]) -> list[str]:
    plan.show(found)
    return lines(capsys)


def test_a_plan_without_changes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(ClustersPlan(), capsys) == ["Nothing to do: everything is up to date"]


def test_each_pool_says_what_happens_to_its_machines(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        PoolEffect(pool="control plane", before=3, after=3, replaced=3, surge=1, reasons=(Field("cpu", "2", "4"),)),
        PoolEffect(pool="md-0", before=2, after=5),
        PoolEffect(pool="md-1", before=4, after=1),
        PoolEffect(pool="md-2", before=2, after=3, replaced=2),
        vms_created=8,
        vms_deleted=8,
        services="addresses come from IPPool services",
        needs=(
            Need(what="CPU", unit="", needed=4.0, free=2.0, note="in namespace vms"),
            Need(what="memory", unit="B", needed=float(GIB), free=None),
            Need(what="addresses", unit="", needed=1, free=1),
        ),
    )
    assert shown(found, capsys) == [
        "Cluster team/shop",
        "  ± control plane: 3 machines are replaced, 1 more at a time",
        "      cpu: 2 → 4",
        "  + worker pool md-0: 3 machines are created (2 → 5)",
        "  - worker pool md-1: 3 machines are deleted (4 → 1)",
        "  ± worker pool md-2: 2 machines are replaced, each deleted before its successor is created",
        "  + worker pool md-2: 1 machine is created (2 → 3)",
        "  Harvester: 8 VMs are created, 8 are deleted, with their disks",
        "  ✗ CPU: 4 more at most, 2 free (in namespace vms)",
        "  - memory: 1 GiB more at most; how much is free is not known",
        "  ✓ addresses: 1 more at most, 1 free",
        "  Guest: addresses come from IPPool services",
        "Plan: objects 0 to create, 0 to change in place; machines 4 created, 5 replaced, 3 deleted",
    ]


def test_plan_says_what_is_made_in_place_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = (Field("machine.cpu", "4", "8"),)
    found = planned(
        PoolEffect(pool="md-0", before=3, after=3, reasons=reasons, updated=3),
        PoolEffect(pool="md-1", before=1, after=1, replaced=1, surge=1, reasons=reasons, why_replaced=("its rollout",)),
    )
    assert shown(found, capsys) == [
        "Cluster team/shop",
        "  ~ worker pool md-0: 3 machines are updated in place, one after another, if Cluster API has gate "
        "InPlaceUpdates",
        "      machine.cpu: 4 → 8",
        "  ± worker pool md-1: 1 machine is replaced, 1 more at a time",
        "      machine.cpu: 4 → 8",
        "      not in place: its rollout",
        "Plan: objects 0 to create, 0 to change in place; machines 0 created, 3 updated in place, 1 replaced, "
        "0 deleted",
    ]


def test_objects_have_the_mark_of_their_action_and_few_fields(capsys: pytest.CaptureFixture[str]) -> None:
    fields = tuple(Field(f"spec.f{number}", "a", "b") for number in range(10))
    found = ClustersPlan(
        objects=(
            ObjectPlan("Cluster team/a", Action.CHANGE, fields),
            ObjectPlan("Cluster team/b", Action.CREATE, fields[:8]),
            ObjectPlan("Cluster team/c", Action.REFUSED, error="exceeded quota"),
        )
    )
    text = shown(found, capsys)
    assert text[:2] == ["Management cluster", "  ~ Cluster team/a"]
    assert text[2:11] == [*(f"      spec.f{number}: a → b" for number in range(8)), "      and 2 more fields"]
    assert text[11] == "  + Cluster team/b"
    assert len([line for line in text if line.startswith("      ")]) == 17
    assert text[-2] == "  ✗ Cluster team/c: exceeded quota"
    summary = "Plan: objects 1 to create, 1 to change in place, 1 refused; machines 0 created, 0 replaced, 0 deleted"
    assert text[-1] == summary


def test_what_cannot_be_predicted_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    infrastructure = (Field("spec.server", "a", "b"),)
    text = shown(planned(unknown=("the class is not known",), infrastructure=infrastructure), capsys)
    assert text[:4] == [
        "Cluster team/shop",
        "  ! its machines cannot be predicted: the class is not known",
        "  ~ HarvesterCluster",
        "      spec.server: a → b",
    ]
    assert "Harvester:" not in " ".join(text)


@pytest.mark.parametrize(("created", "deleted"), [(1, 0), (0, 1)])
def test_vms_are_counted_when_some_come_or_go(created: int, deleted: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(planned(PoolEffect(pool="md", before=0, after=1), vms_created=created, vms_deleted=deleted), capsys)
    numbers = f"{counted(created, 'VM is', 'VMs are')} created, {counted(deleted, 'is', 'are')} deleted"
    assert f"  Harvester: {numbers}, with their disks" in text


# Changes and checks


def check(result: Result, message: str = "text", subject: str = "Cluster team/shop", remedy: str = "") -> Check:
    return Check(str(result), subject, result, message, remedy)


CHECKS = [check(Result.OK), check(Result.SKIPPED), check(Result.ERROR, remedy="do this"), check(Result.WARNING)]


def test_checks_of_a_change_come_in_the_order_of_their_weight(capsys: pytest.CaptureFixture[str]) -> None:
    changes.show_checks(CHECKS)
    marks = [line.split()[0] for line in lines(capsys)]
    assert marks == ["✗", "→", "!", "-", "✓"]


def test_changes_are_grouped_by_object(capsys: pytest.CaptureFixture[str]) -> None:
    first = [Change("Cluster team/a", "spec.x", "", "1"), Change("Cluster team/a", "spec.y", "0", "2")]
    later = Change("Machine team/b", "spec.z", "1", "3")
    changes.show(Plan(Key("team", "a"), (Patch("v1", "Cluster", Key("team", "a"), {}, tuple(first)),), (), (later,)))
    assert lines(capsys) == [
        "Cluster team/a",
        "  spec.x: (not set) → 1",
        "  spec.y: 0 → 2",
        "Machine team/b, later",
        "  spec.z: 1 → 3",
    ]


def test_a_change_that_has_to_wait_is_nothing_to_change_now(capsys: pytest.CaptureFixture[str]) -> None:
    later = Change("Machine team/b", "spec.z", "1", "3")
    changes.show(Plan(Key("team", "a"), pending=(later,)))
    assert lines(capsys)[0] == "Nothing to change now"
    changes.show(Plan(Key("team", "a")))
    assert lines(capsys) == ["Nothing to change: the objects of cluster team/a are up to date"]


def test_progress_does_not_repeat_itself(capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist", minutes=3)
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    progress = changes.Progress(to_stderr=True)
    for text in ("1 of 2", "1 of 2", "2 of 2", "1 of 2"):
        progress.say(text)
        progress.problems(cluster)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line[10:] for line in captured.err.splitlines() if line[2] == ":"] == ["1 of 2", "2 of 2", "1 of 2"]
    assert captured.err.count("✗ HarvesterMachine/worker-1: the VirtualMachine does not exist") == 1


def test_progress_names_what_it_waits_for_at_the_end_only(capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder()
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    problem = Problem(Severity.WAITING, ("Machine/worker-1",), "Creating", "the VM is created", "Wait")
    cluster = replace(cluster, problems=(problem,))
    progress = changes.Progress(to_stderr=False)
    progress.problems(cluster)
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit) as end:
        progress.give_up("too late")
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["… Machine/worker-1: the VM is created", "  → Wait"]
    assert (captured.err, end.value.code) == ("too late\n", 1)


def test_doctor_groups_checks_by_subject_and_counts_what_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    other = check(Result.OK, subject="Harvester")
    doctor.show([*CHECKS, other], everything=False)
    assert lines(capsys) == [
        "✗ Cluster team/shop  1 ok",
        f"  ✗ {Result.ERROR}: text",
        "    do this",
        f"  ! {Result.WARNING}: text",
        f"  - {Result.SKIPPED}: text",
        "✓ Harvester  1 ok",
        f"1 {Result.ERROR}, 1 {Result.WARNING}, 1 {Result.SKIPPED}, 2 {Result.OK}",
    ]
    doctor.show([other], everything=True)
    assert lines(capsys) == ["✓ Harvester", f"  ✓ {Result.OK}: text", f"1 {Result.OK}"]


# Manifests


def test_a_summary_counts_what_was_read_and_found() -> None:
    def summary(**fields: Any) -> str:
        return validate.FORMATS["text"](validate.Report(**fields)).splitlines()[-1]

    error, warning = (
        validate.Line(file="a.yaml", position=Position(1, 1), severity=each, rule="rule", message="text")
        for each in ("error", "warning")
    )
    assert summary(files=["a.yaml"], objects=1) == "1 object in 1 file: valid"
    assert summary(files=["a.yaml"], objects=2, passed_over=1).startswith("2 objects in 1 file, 1 of them of other")
    unread = "0 objects in 0 files: nothing was found in what could be read"
    assert summary(unreadable=["a.yaml: no such file"]) == unread
    assert summary(files=["a", "b"], objects=1, lines=[error], unreadable=["c"]).endswith(
        "2 files: 1 error, 0 warnings"
    )
    assert summary(files=["a"], objects=1, lines=[error, error, warning]).endswith(": 2 errors, 1 warning")


# etcd


def member(name: str, state: str = "healthy", machine: str = "") -> EtcdMember:
    return EtcdMember(name=name, id=f"{name}1", state=state, machine=machine, peer="https://10.0.0.1:2380")


def test_members_without_machine_lead_to_the_command_that_removes_them(capsys: pytest.CaptureFixture[str]) -> None:
    etcd.show([member("a", machine="cp-1"), member("", "learner")])
    assert lines(capsys) == [
        "MEMBER  ID  STATE    MACHINE  PEER",
        "a       a1  healthy  cp-1     https://10.0.0.1:2380",
        "-       1   learner  -        https://10.0.0.1:2380",
    ]
    etcd.show([member("a", "stale")])
    assert "caphv etcd remove" in lines(capsys)[-1]


def test_a_removal_names_members_and_machines(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = "Nothing to remove: every etcd member has a machine"
    for members, machines, text in (
        ([member("a", "stale")], [], ["remove member a (a1), stale"]),
        ([], ["cp-1"], ["release Machine cp-1: neither its Node nor its etcd member exists"]),
        ([], [], [nothing]),
    ):
        etcd.show_removal(members, machines)
        assert lines(capsys) == text


# IPPools


HELD = Entry(
    pool="machines",
    address="10.0.0.1",
    id="team/shop-1",
    verdict=Verdict.HELD,
    owner="HarvesterMachine team/shop-1",
    created=ago(hours=5),
)
LEAKED = Entry(
    pool="machines", address="10.0.0.2", id="team/gone", verdict=Verdict.LEAKED, owner="", detail="no such machine"
)


def report(*entries: Entry, **more: object) -> PoolReport:
    numbers = {"total": 10, "available": 8, "expected": 8} | more
    return PoolReport(harvester="https://harvester", name="machines", entries=entries, **numbers)  # type: ignore[arg-type]


def pool_lines(found: PoolReport, capsys: pytest.CaptureFixture[str], *, only_wrong: bool = False) -> list[str]:
    show(console(), [found], only_wrong=only_wrong, now=NOW)
    return lines(capsys)


def test_entries_of_pools_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    title, header, held, leaked = pool_lines(report(HELD, LEAKED), capsys)
    assert title == f"IPPool machines on https://harvester: 8 of 10 free; 1 {Verdict.HELD}, 1 {Verdict.LEAKED}"
    assert header.split() == ["ADDRESS", "STATE", "AGE", "HOLDER", "OWNER"]
    assert held.split()[:4] == ["10.0.0.1", str(Verdict.HELD), "5h", "team/shop-1"]
    assert leaked.split()[:4] == ["10.0.0.2", str(Verdict.LEAKED), "-", "team/gone"]
    assert leaked.endswith("no such machine")
    assert len(pool_lines(report(HELD, LEAKED), capsys, only_wrong=True)) == 3
    assert pool_lines(report(HELD), capsys, only_wrong=True) == [
        f"IPPool machines on https://harvester: 8 of 10 free; 1 {Verdict.HELD}"
    ]


def test_wrong_books_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(LEAKED, available=7, error="its ranges overlap", stray_marks=("10.0.0.9",))
    assert pool_lines(found, capsys)[1:4] == [
        "  ! its ranges overlap",
        "  ! status.available is 7, but its entries give 8",
        "  ! marks of addresses that are not allocated: 10.0.0.9",
    ]
    show_plan([found])
    assert lines(capsys)[1:3] == [
        "  release 10.0.0.2  team/gone  no such machine",
        "  correct its ranges overlap",
    ]
    show_plan([report()])
    assert lines(capsys) == ["IPPool machines on https://harvester: 8 of 10 free"]


# Identities


@pytest.mark.parametrize(
    ("clusters", "shown"),
    [
        ((), "none"),
        (("team/a", "team/b", "team/c"), "team/a, team/b, team/c"),
        (("team/a", "team/b", "team/c", "team/d", "team/e"), "team/a, team/b, team/c and 2 more"),
    ],
)
def test_an_identity_names_a_few_of_its_clusters(
    clusters: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    identities.show(console(), [Identity("team/identity", "https://harvester", "", clusters, state="valid")])
    _, line = lines(capsys)
    assert line.endswith(f"  {shown}")
