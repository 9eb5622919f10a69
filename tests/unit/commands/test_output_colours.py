"""Lines of commands on a terminal of 40 columns: which are cut, which continue, and what is coloured."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import click
import pytest

from caphv.api.object import Key
from commands.output import capacity, changes, doctor, etcd, overview, plan, pools
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.capacity.free import Capacity, Quota, Room
from operations.capacity.machinechanges import Action, Field, PoolEffect
from operations.capacity.needs import Need
from operations.change.changes import Change, Patch
from operations.change.changes import Plan as ChangePlan
from operations.change.etcd import EtcdMember
from operations.change.plan.model import ClusterPlan, ObjectPlan, Plan, Shortcoming
from operations.read.objects import Unseen
from operations.status.assembly import overview_of
from operations.status.check import Check, Result
from operations.status.model import Overview, Provider, Replicas, Severity, SharedCause, State
from tests.support.clusters import NOW, Builder, ago

pytestmark = pytest.mark.unit

LONG = "words " * 12 + "end"
Shown = Callable[[Callable[[], object]], str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return what a call writes to a terminal of 40 columns with 16 colours."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-16color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORTERM", raising=False)

    def written(call: Callable[[], object]) -> str:
        terminal = Terminal()
        with redirect_stdout(terminal), redirect_stderr(terminal):
            call()
        return terminal.getvalue()

    return written


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in click.unstyle(text).splitlines()]


def has(text: str, words: str, *codes: int) -> bool:
    """Whether words have a style, by its codes: 1 bold, 2 dim, 31 red, 32 green, 33 yellow, 35 magenta, 36 cyan."""
    return f"\x1b[{';'.join(map(str, codes))}m{words}" in text


# Lines that are read as a whole, and so are never broken by the command


FIELD = Field("spec.image", "a", LONG)
PLAN = Plan(
    objects=(
        ObjectPlan(f"Cluster {LONG}", Action.CREATE),
        ObjectPlan("Cluster b", Action.CHANGE, (FIELD,)),
        ObjectPlan("Cluster c", Action.REFUSED, error=LONG),
    ),
    clusters=(
        ClusterPlan(
            "team/shop",
            pools=(
                PoolEffect(pool=f"md {LONG}", before=3, after=4, replaced=1, reasons=(FIELD,)),
                PoolEffect(pool="old", before=2, after=0),
            ),
            infrastructure=(FIELD,),
            vms_created=1,
            vms_deleted=1,
            shortcomings=(
                Shortcoming("images", LONG, "does not exist", ("a", "b", "c", "d"), ""),
                Shortcoming("images", "x", LONG, ("a", "b", "c"), "", advice=True),
            ),
            needs=(
                Need(what="CPU", unit="", needed=4.0, free=2.0, note=LONG),
                Need(what="memory", unit="", needed=4.0, free=8.0, note=LONG),
                Need(what="hosts", unit="", needed=4.0, free=None, note=LONG),
                Need(what="rooms", unit="", needed=4.0, free=8.0, note=LONG, partial=True),
                Need(what="floors", unit="", needed=9.0, free=8.0, note=LONG, partial=True),
            ),
            unknown=(LONG,),
            services=LONG,
        ),
    ),
)


def test_lines_of_a_plan_are_not_broken_and_have_the_colours_of_their_marks(shown: Shown) -> None:
    text = shown(lambda: plan.show(PLAN))
    assert lines(text) == [
        "Management cluster",
        f"  + Cluster {LONG}",
        "  ~ Cluster b",
        f"      spec.image: a → {LONG}",
        f"  ✗ Cluster c: {LONG}",
        "Cluster team/shop",
        f"  ! its machines cannot be predicted: {LONG}",
        "  ~ HarvesterCluster",
        f"      spec.image: a → {LONG}",
        f"  ± worker pool md {LONG}: 1 machine is replaced, each deleted before its successor is created",
        f"  + worker pool md {LONG}: 1 machine is created (3 → 4)",
        f"      spec.image: a → {LONG}",
        "  - worker pool old: 2 machines are deleted (2 → 0)",
        "  Harvester: 1 VM is created, 1 is",
        "deleted, with their disks",
        f"  ✗ {LONG}: does not exist (a, b, c and 1 more)",
        f"  ! x: {LONG} (a, b, c)",
        f"  ✗ CPU: 4 more at most, 2 free ({LONG})",
        f"  ✓ memory: 4 more at most, 8 free ({LONG})",
        f"  - hosts: 4 more at most; how much is free is not known ({LONG})",
        f"  ? rooms: 4 more at most, at most 8 free ({LONG})",
        f"  ✗ floors: 9 more at most, 8 free ({LONG})",
        f"  Guest: {LONG}",
        "Plan: objects 1 to create, 1 to change",
        "in place, 1 refused; machines 1 created,",
        "1 replaced, 2 deleted",
    ]
    marks = {"+": (32,), "~": (33,), "±": (35,), "-": (31,), "✓": (32,), "?": (33,)}
    assert {mark: has(text, f"  {mark} ", *codes) for mark, codes in marks.items()} == dict.fromkeys(marks, True)
    assert has(text, "  ✗ ", 1, 31)
    assert has(text, "  - ", 2)
    assert has(text, "  ! ", 33)


def test_lines_of_changes_and_checks_are_not_broken(shown: Shown) -> None:
    change = Change(f"Cluster {LONG}", "spec.version", "v1", LONG)
    patch = Patch("v1", "Cluster", Key("team", "shop"), {}, (change,))
    checks = tuple(Check(str(result), "Cluster", result, LONG, LONG) for result in Result)
    text = shown(lambda: changes.show(ChangePlan(Key("team", "shop"), (patch,), checks)))
    found = lines(text)
    assert f"  spec.version: v1 → {LONG}" in found
    for result in Result:
        assert any(line.endswith(f" {result}: {LONG}") for line in found)
    assert found.count(f"  → {LONG}") == len(Result)
    assert (has(text, "✗ ", 31), has(text, "! ", 33), has(text, "- ", 2), has(text, "✓ ", 32)) == (True,) * 4
    assert "\x1b[1mCluster words" in text


def test_members_of_etcd_are_neither_broken_nor_cut(shown: Shown) -> None:
    members = [
        EtcdMember("a1", "cp-1-00000001", "healthy", "cp-1-with-a-long-name", "https://10.0.0.1:2380"),
        EtcdMember("b2", "cp-2-00000002", "stale", "", "https://10.0.0.2:2380"),
    ]
    text = shown(lambda: etcd.show(members))
    assert [line.split()[-1] for line in lines(text)[:3]] == ["PEER", "https://10.0.0.1:2380", "https://10.0.0.2:2380"]
    assert lines(text)[3].startswith("→ Members without a machine")
    assert (has(text, "healthy", 32), has(text, "stale", 31), has(text, "MEMBER", 2)) == (True, True, True)


def test_what_is_not_seen_is_one_yellow_line(shown: Shown) -> None:
    text = shown(lambda: overview.show_unseen(Overview("https://m", unseen=(LONG,))))
    assert lines(text) == [f"not seen: {LONG}"]
    assert has(text, "not seen", 33)
    text = shown(lambda: pools.show_unseen([Unseen("x", LONG)]))
    assert lines(text) == [f"not seen: x: {LONG}"]
    assert has(text, "not seen", 33)


def test_capacity_is_one_line_a_room_and_yellow_where_nothing_is_left(shown: Shown) -> None:
    room = Room(
        name="a-host-with-a-long-name-in-a-zone", hosts=1, cpu=8.0, cpu_free=0.0, memory=2**30, memory_free=2**29
    )
    found = Capacity(harvester="https://h", total=room, quotas=(Quota("vms", "q", "limits.cpu", 4.0, 5.0),))
    text = shown(lambda: capacity.show([found], hosts=False))
    assert lines(text)[2] == "  a-host-with-a-long-name-in-a-zone  1      0 of 8    512 MiB of 1 GiB"
    assert has(text, "0 of 8", 33)
    assert has(text, "-1 of 4", 33)
    assert not has(text, "512 MiB of 1 GiB", 33)
    assert has(text, "HOSTS", 2)
    assert has(text, "https://h", 1)


# Lines that are broken at the width of the terminal, behind their mark


@pytest.mark.parametrize(
    ("result", "mark", "code"),
    [(Result.ERROR, "✗", 31), (Result.WARNING, "!", 33), (Result.SKIPPED, "-", 2), (Result.OK, "✓", 32)],
)
def test_checks_of_doctor_continue_behind_their_mark(shown: Shown, result: Result, mark: str, code: int) -> None:
    checks = [Check("id", "Cluster team/shop", result, LONG, LONG)]
    text = shown(lambda: doctor.show(checks, everything=True))
    found = lines(text)
    assert found[0] == f"{mark} Cluster team/shop"
    assert max(map(len, found)) <= 40
    assert found[1].startswith(f"  {mark} id: words")
    assert found[2].startswith("    words")
    assert sum(line.startswith("  → words") for line in found) == 1
    assert has(text, mark, code)
    assert has(text, "id", 1) is (result in (Result.ERROR, Result.WARNING))
    bare = lines(shown(lambda: doctor.show([replace(checks[0], remedy="")], everything=True)))
    assert not any("→" in line for line in bare)


@pytest.mark.parametrize(
    ("severity", "mark", "code"),
    [(Severity.ERROR, "✗", 31), (Severity.WARNING, "!", 33), (Severity.WAITING, "…", 36), (Severity.NOTE, "·", 2)],
)
def test_problems_of_a_cluster_continue_behind_their_mark(
    shown: Shown, severity: Severity, mark: str, code: int
) -> None:
    builder = Builder()
    builder.break_machine("worker-1", "Lost", LONG, minutes=3)
    found = overview_of(builder.objects(), NOW)
    (cluster,) = found.clusters
    problem = replace(cluster.problems[0], severity=severity, next_step=LONG)
    found = replace(found, clusters=(replace(cluster, problems=(problem,)),))
    text = shown(lambda: overview.show(overview.console(), found, with_namespace=False, now=NOW))
    rows = lines(text)
    assert max(map(len, rows)) <= 40
    assert rows[2].startswith(f"  {mark} HarvesterMachine/worker-1: words")
    assert rows[3].startswith("    words")
    assert sum(row.startswith("  → words") for row in rows) == (severity is not Severity.WAITING)
    assert has(text, mark, code)
    assert "(3m)" in " ".join(rows)


STATES = {
    State.AVAILABLE: (32,),
    State.PROGRESSING: (36,),
    State.DEGRADED: (33,),
    State.UNREACHABLE: (1, 33),
    State.FAILED: (1, 31),
    State.PARKED: (35,),
    State.PAUSED: (35,),
    State.DELETING: (36,),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("replicas", "codes"), [(Replicas(3, 3, 3, 3), ()), (Replicas(3, 4, 3, 3), (36,)), (Replicas(3, 3, 2, 3), (33,))]
)
def test_a_cluster_has_the_colours_of_its_state_and_replicas(
    shown: Shown, state: State, replicas: Replicas, codes: tuple[int, ...]
) -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    found = Overview("https://m", (replace(cluster, state=state, control_plane=replicas),))
    text = shown(lambda: overview.show(overview.console(), found, with_namespace=False, now=NOW))
    _, row = lines(text)
    assert (len(row) <= 40, row.endswith("…")) == (True, True)
    assert has(text, state, *STATES[state])
    assert has(text, str(replicas), *codes) if codes else f"m{replicas}" not in text


def test_the_provider_and_shared_causes_come_with_their_age_and_what_to_do(shown: Shown) -> None:
    provider = Provider("lease", silent=True, since=ago(hours=3), cause="silent", next_step="start it")
    cause = SharedCause(Severity.ERROR, "Harvester h", "r", "no answer", "ping", ago(minutes=5), ("a", "b", "c", "d"))
    found = Overview("https://m", provider=provider, causes=(cause, replace(cause, since="", clusters=("a",))))
    text = shown(lambda: overview.show_provider(overview.console(), found, NOW))
    assert lines(text) == ["✗ provider: silent  (3h)", "→ start it"]
    assert (has(text, "✗ ", 31), has(text, "provider", 1), has(text, "→ ", 2)) == (True,) * 3
    text = shown(lambda: overview.show_causes(overview.console(), found, NOW))
    assert lines(text) == [
        "✗ Harvester h: no answer  (5m)",
        "  concerns 4 clusters: a, b, c and 1",
        "more",
        "→ ping",
        "✗ Harvester h: no answer",
        "  concerns 1 cluster: a",
        "→ ping",
    ]
    for quiet in (None, replace(provider, silent=False)):
        silent = replace(found, provider=quiet)
        assert shown(lambda silent=silent: overview.show_provider(overview.console(), silent, NOW)) == ""  # type: ignore[misc]


@pytest.mark.parametrize(
    ("verdict", "codes"),
    [
        (Verdict.HELD, (32,)),
        (Verdict.LEAKED, (1, 31)),
        (Verdict.IN_USE, (33,)),
        (Verdict.FOREIGN, (36,)),
        (Verdict.UNRECORDED, (33,)),
        (Verdict.UNKNOWN, (35,)),
    ],
)
def test_an_address_has_the_colour_of_its_state(shown: Shown, verdict: Verdict, codes: tuple[int, ...]) -> None:
    entry = Entry(
        pool="machines", address="10.0.0.1", id="t/m", verdict=verdict, owner="HarvesterMachine team/m " + LONG
    )
    report = PoolReport(harvester="https://h", name="machines", total=9, available=8, expected=8, entries=(entry,))
    text = shown(lambda: pools.show(pools.console(), [report], only_wrong=False, now=NOW))
    assert has(text, str(verdict), *codes)
    row = lines(text)[-1]
    assert (len(row) <= 40, row.endswith("…")) == (True, True)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_plain_lines_although_the_environment_asks_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    builder = Builder()
    builder.break_machine("worker-1", "VMNotFound", LONG)
    overview.show(overview.console(), overview_of(builder.objects(), NOW), with_namespace=True, now=NOW)
    text = capsys.readouterr().out
    assert LONG in text
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
