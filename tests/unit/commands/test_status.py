"""What clusters look like on a terminal and in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace

import click
import pytest
from rich.console import Console

from commands.access.management import run
from commands.output import identities, pools, tree
from commands.output import overview as lines
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.status.assembly import overview_of
from operations.status.identities import Identity
from operations.status.model import Condition, Overview, Severity
from tests.support.clusters import NOW, Builder

MESSAGE = "the VirtualMachine does not exist on Harvester, and this text is far too long for one line of a terminal"


def broken() -> Overview:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", MESSAGE, minutes=3)
    return overview_of(builder.objects(), NOW)


def console(width: int, *, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True, highlight=False)


def shown(found: Overview, width: int = 80, *, terminal: bool = True) -> list[str]:
    out = console(width, terminal=terminal)
    lines.show(out, found, with_namespace=True, now=NOW)
    assert isinstance(out.file, io.StringIO)
    return [click.unstyle(line).rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(broken(), width))) <= width


IDENTITY = Identity(
    "production/harvester-identity",
    "https://harvester.example.com:6443",
    "2026-11-27T08:00:00Z",
    ("production/frontend", "production/backend", "production/database"),
    state="expiring",
)
ENTRY = Entry(
    pool="machines",
    address="172.16.3.41",
    id="production/frontend-workers-7xk2p-9dq4m",
    verdict=Verdict.IN_USE,
    owner="VirtualMachine production/frontend-workers-7xk2p-9dq4m",
    detail="its owner no longer exists",
)
POOL = PoolReport(
    harvester="https://harvester.example.com:6443",
    name="machines",
    total=50,
    available=49,
    expected=49,
    entries=(ENTRY,),
)


def table(name: str, width: int, *, terminal: bool = True) -> list[str]:
    """Lines of a table without the title above it."""
    out = console(width, terminal=terminal)
    if name == "identities":
        identities.show(out, [IDENTITY])
    else:
        pools.show(out, [POOL], only_wrong=False, now=NOW)
    assert isinstance(out.file, io.StringIO)
    found = [click.unstyle(line).rstrip() for line in out.file.getvalue().splitlines()]
    start = next(number for number, line in enumerate(found) if line.lstrip().startswith(("SECRET", "ADDRESS")))
    return found[start:]


@pytest.mark.parametrize("name", ["identities", "pools"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_has_one_line_a_row_on_a_terminal_of_any_width(name: str, width: int) -> None:
    header, row = table(name, width)
    assert max(len(header), len(row)) <= width
    whole = table(name, 10_000, terminal=False)
    assert row.removesuffix("…") in whole[1]


def test_a_pipe_gets_one_line_a_fact() -> None:
    header, cluster, cause, step = shown(broken(), 10_000, terminal=False)
    assert header.split()[:2] == ["NAMESPACE", "CLUSTER"]
    assert cluster.split()[:3] == ["team", "shop", "Degraded"]
    assert cause == f"  ✗ HarvesterMachine/worker-1: {MESSAGE}  (3m)"
    assert step.startswith("    Its owner replaces it")


def test_an_upgrade_shows_from_which_version_to_which() -> None:
    builder = Builder()
    builder.cluster["spec"]["topology"]["version"] = "v1.36.3+rke2r1"
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    assert lines.version_text(cluster) == "v1.36.2 → v1.36.3"


@pytest.mark.parametrize(
    ("version", "versions", "text"),
    [
        ("", (), ""),
        ("v1.36.3+rke2r1", (), "v1.36.3+rke2r1"),
        ("v1.36.3+rke2r1", ("v1.36.3+rke2r1",), "v1.36.3+rke2r1"),
        ("v1.36.3+rke2r1", ("v1.36.2+rke2r1", "v1.36.3+rke2r1"), "v1.36.2 → v1.36.3"),
        ("", ("v1.36.3+rke2r1",), "v1.36.3+rke2r1"),
        ("", ("v1.36.2+rke2r1", "v1.36.3+rke2r1"), "v1.36.2 → v1.36.3"),
    ],
)
def test_a_cluster_without_a_version_of_its_own_has_that_of_its_newest_machines(
    version: str, versions: tuple[str, ...], text: str
) -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    assert lines.version_text(replace(cluster, version=version, versions=versions)) == text


def test_many_objects_of_one_problem_are_counted() -> None:
    (problem,) = broken().clusters[0].problems
    many = replace(problem, objects=tuple(f"Machine/m{n}" for n in range(9)))
    assert lines.affected(many) == "Machine/m0, Machine/m1, Machine/m2 and 6 more"


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-11-22T11:59:50Z", "10s"),
        ("2026-11-22T11:58:30Z", "90s"),
        ("2026-11-22T11:30:00Z", "30m"),
        ("2026-11-22T02:00:00Z", "10h"),
        ("2026-11-12T12:00:00Z", "10d"),
        ("2026-11-22T12:00:01Z", "0s"),
        ("2026-11-22T11:59:50", "10s"),
        ("2026-11-22", "12h"),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_ages_are_those_of_kubectl(since: str, text: str) -> None:
    assert lines.age(since, NOW) == text


def test_a_time_without_a_zone_is_in_utc() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "VMProvisioningInProgress", MESSAGE)
    (found,) = builder.harvester_machines["worker-1"]["status"]["conditions"]
    found["lastTransitionTime"] = "2026-11-22T11:30:00"
    overview = overview_of(builder.objects(), NOW)
    (problem,) = overview.clusters[0].problems
    assert problem.severity is Severity.ERROR, "it lasts longer than usual"
    assert shown(overview, 10_000, terminal=False)[2].endswith("(30m)")


def tree_lines(*, conditions: bool) -> list[str]:
    out = console(200, terminal=False)
    (cluster,) = broken().clusters
    bundles = Condition("AddonBundlesReady", "False", "AddonBundlesNotPushed", "the branch is protected")
    tree.show(out, [replace(cluster, bundles=bundles)], conditions=conditions, now=NOW)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_a_tree_leads_from_the_cluster_to_its_nodes() -> None:
    found = tree_lines(conditions=False)
    text = "\n".join(found)
    assert found[0].startswith("Cluster team/shop  Degraded")
    for part in ("HarvesterCluster shop-x", "RKE2ControlPlane shop  1/1", "Machine worker-1", "Node cp-1  Ready"):
        assert part in text
    assert f"✗ HarvesterMachine Ready  MachineNotFound  {MESSAGE}  3m" in text
    assert "✗ AddonBundlesReady  AddonBundlesNotPushed  the branch is protected" in text
    assert all(line == line.rstrip() for line in found)


def test_conditions_that_are_as_they_should_be_show_on_request() -> None:
    assert not any("✓" in line for line in tree_lines(conditions=False))
    assert any("✓ HarvesterMachine VMUpToDate" in line for line in tree_lines(conditions=True))


def test_an_answer_is_not_written_as_text_when_a_command_ends() -> None:
    """That of a fleet would take longer to write than to read."""
    written = []

    class Answer:
        def __repr__(self) -> str:
            written.append(self)
            return "answer"

    async def read() -> Answer:
        return Answer()

    assert isinstance(run(read()), Answer)
    assert written == []


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("severity", Severity)
def test_what_only_waits_needs_no_next_step(severity: Severity, terminal: bool) -> None:
    overview = broken()
    (problem,) = overview.clusters[0].problems
    problem = replace(problem, severity=severity, since="", next_step="do this")
    found = shown(
        replace(overview, clusters=(replace(overview.clusters[0], problems=(problem,)),)), 160, terminal=terminal
    )
    (cause,) = (line for line in found if MESSAGE in line)
    assert cause.endswith(MESSAGE), "without an age"
    assert any(line.endswith("do this") for line in found) is (severity is not Severity.WAITING)
    assert any("→" in line for line in found) is (terminal and severity is not Severity.WAITING)


def test_clusters_are_counted_below_them_on_a_terminal() -> None:
    overview = broken()
    two = replace(overview, clusters=overview.clusters * 2)
    assert shown(two)[-1].startswith("2 clusters: 2 degraded")
    assert not any("2 clusters" in line for line in shown(two, 10_000, terminal=False))
    assert not any("1 cluster:" in line for line in shown(overview))


def test_a_wide_terminal_shows_the_endpoint() -> None:
    overview = broken()
    assert "ENDPOINT" in shown(overview, 110)[0]
    assert "ENDPOINT" not in shown(overview, 109)[0]
    assert "ENDPOINT" not in shown(overview, 10_000, terminal=False)[0]
