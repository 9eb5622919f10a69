"""The tree of a cluster, line by line: what is there, what is left out, and how it is coloured."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from commands.output import tree
from operations.status.model import (
    Cluster,
    Condition,
    Disk,
    Group,
    Machine,
    Node,
    Problem,
    Replicas,
    Severity,
    State,
    VirtualMachine,
)
from tests.support.clusters import NOW, ago

pytestmark = pytest.mark.unit

VM = VirtualMachine(
    "vms",
    "cp-1",
    "Running",
    "host-1",
    ago(hours=3),
    (Disk("root", "40Gi", "longhorn", "Bound", "sles"), Disk("data", "1Gi")),
    ("10.0.0.1", "10.1.0.1"),
)
NODE = Node("cp-1", "True", "v1.36.2", ago(hours=2), "zone-1")
MACHINE = Machine(
    "cp-1",
    control_plane=True,
    group="shop",
    phase="Running",
    ready=True,
    created=ago(hours=4),
    version="v1.36.2",
    infrastructure="cp-1-x",
    host="host-0",
    zone="zone-1",
    addresses=("10.0.0.1",),
    pool="machines",
    allocated="10.0.0.1",
    cpu=2,
    memory="4Gi",
    node=NODE,
    vm=VM,
)
CLUSTER = Cluster(
    "team",
    "shop",
    State.AVAILABLE,
    created=ago(days=3),
    class_name="rke2",
    version="v1.36.2",
    endpoint="10.0.0.9:6443",
    harvester="https://harvester",
    target_namespace="vms",
    identity="team/identity",
    infrastructure="shop-x",
    groups=(Group("RKE2ControlPlane", "shop", Replicas(1, 1, 1, 1), "v1.36.2", (MACHINE,)),),
    bundles=Condition("AddonBundlesReady", "True", "Ready"),
)


def lines(cluster: Cluster, *, conditions: bool = False) -> list[str]:
    """Lines of a tree without its branches, by depth."""
    out = Console(file=io.StringIO(), width=10_000, highlight=False)
    tree.show(out, [cluster], conditions=conditions, now=NOW)
    assert isinstance(out.file, io.StringIO)
    found = []
    for line in out.file.getvalue().splitlines():
        text = line.lstrip("│├└─ ")
        found.append("  " * ((len(line) - len(text)) // 4) + text)
    return found


def of_machine(**changes: object) -> list[str]:
    machine = replace(MACHINE, **changes)  # type: ignore[arg-type]
    found = lines(replace(CLUSTER, groups=(replace(CLUSTER.groups[0], machines=(machine,)),), bundles=None))
    return [line.strip() for line in found[6:]]


def test_everything_of_a_cluster_has_its_line() -> None:
    assert lines(CLUSTER) == [
        "Cluster team/shop  Available  v1.36.2  class rke2  3d",
        "  HarvesterCluster shop-x",
        "    Harvester https://harvester  namespace vms",
        "    identity Secret team/identity",
        "    endpoint 10.0.0.9:6443",
        "  RKE2ControlPlane shop  1/1  v1.36.2",
        "    Machine cp-1  Ready  v1.36.2  4h",
        "      VM vms/cp-1  Running  on host-1 (zone-1)  2 CPU, 4Gi  3h",
        "        disk root  Bound  40Gi  longhorn  image sles",
        "        disk data  1Gi",
        "        addresses 10.0.0.1, 10.1.0.1  IPPool machines",
        "      Node cp-1  Ready  v1.36.2  zone zone-1  2h",
        "  bundles Ready",
    ]


STALE = replace(MACHINE, ready=False, conditions=(Condition("Ready", "False", "VMProvisioningFailed", "stopped"),))


def stopped(state: State, *problems: Problem) -> Cluster:
    """A cluster that nothing reconciles, whose objects still report what they did before."""
    return replace(
        CLUSTER,
        state=state,
        problems=problems,
        conditions=(Condition("Available", "False", "NotAvailable", "1 of 1 machines is missing"),),
        groups=(replace(CLUSTER.groups[0], machines=(replace(STALE, vm=replace(VM, status="Stopped")),)),),
        bundles=Condition("AddonBundlesReady", "False", "NotReady", "not rendered"),
    )


@pytest.mark.parametrize(
    ("state", "reason", "severity", "subject", "machine"),
    [
        (State.PARKED, "Parked", Severity.NOTE, "HarvesterCluster/shop-x", "Parked"),
        (State.PROGRESSING, "Resuming", Severity.WAITING, "HarvesterCluster/shop-x", "Running"),
        (State.PAUSED, "Paused", Severity.NOTE, "Cluster/shop", "Running"),
    ],
)
def test_what_objects_reported_before_they_were_parked_or_paused_is_no_failure(
    state: State, reason: str, severity: Severity, subject: str, machine: str
) -> None:
    cause = Problem(severity, (subject,), reason, "stopped on request", "Resume it: x", ago(hours=3), ("Machine/cp-1",))
    found = lines(stopped(state, cause))
    assert found[1:4] == [
        "  · stopped on request  3h",
        "    → Resume it: x",
        "    1 object with older conditions: --conditions",
    ]
    assert f"    Machine cp-1  {machine}  v1.36.2  4h" in found
    assert not [line for line in found if "✗" in line]

    everything = lines(stopped(state, cause), conditions=True)
    assert "  ✗ Available  NotAvailable  1 of 1 machines is missing" in everything
    assert "--conditions" not in "".join(everything)


def test_what_was_wrong_before_the_pause_stays_visible() -> None:
    pause = Problem(Severity.NOTE, ("Cluster/shop",), "Paused", "paused: nothing is reconciled", "Resume it: x")
    wrong = Problem(Severity.ERROR, ("Machine/cp-1",), "VMProvisioningFailed", "stopped", "Start it")
    found = lines(stopped(State.PAUSED, wrong, pause))
    assert [line.strip() for line in found if "✗" in line] == ["✗ Ready  VMProvisioningFailed  stopped"]


def test_a_harvestercluster_that_is_paused_alone_hides_nothing_of_its_machines() -> None:
    pause = Problem(Severity.NOTE, ("HarvesterCluster/shop-x",), "Paused", "paused", "Resume it: x")
    assert len([line for line in lines(stopped(State.PAUSED, pause)) if "✗" in line]) == 3


def test_what_is_unknown_has_no_line() -> None:
    machine = Machine("w-1", control_plane=False, group="md", phase="", ready=False)
    empty = Cluster(
        "team", "new", State.PROGRESSING, groups=(Group("MachineDeployment", "md", Replicas(1), "", (machine,)),)
    )
    assert lines(empty) == [
        "Cluster team/new  Progressing",
        "  HarvesterCluster not created yet",
        "  MachineDeployment md  0/1",
        "    Machine w-1  Pending",
    ]


def test_without_a_deep_read_the_machine_says_where_its_vm_is() -> None:
    assert of_machine(vm=None, node=None)[1:] == [
        "VM cp-1-x  on host-0 (zone-1)  2 CPU, 4Gi",
        "address 10.0.0.1  IPPool machines",
    ]
    assert of_machine(vm=None, node=None, host="", cpu=0, pool="", allocated="")[1:] == [
        "VM cp-1-x",
        "address 10.0.0.1",
    ]
    assert of_machine(vm=None, node=None, infrastructure="")[1:] == []
    assert of_machine(vm=None, node=None, host="h", zone="h", addresses=(), allocated="")[1:] == [
        "VM cp-1-x  on h  2 CPU, 4Gi"
    ]


def test_an_address_that_is_only_reserved_has_a_line_of_its_own() -> None:
    found = of_machine(node=None, allocated="10.0.0.7", vm=replace(VM, disks=(), addresses=(), host=""))
    assert found[1:] == [
        "VM vms/cp-1  Running  2 CPU, 4Gi  3h",
        "address 10.0.0.1  IPPool machines",
        "reserved 10.0.0.7  IPPool machines",
    ]


@pytest.mark.parametrize(("ready", "word"), [("True", "Ready"), ("False", "NotReady"), ("", "Unknown")])
def test_a_node_is_ready_or_not_or_unknown(ready: str, word: str) -> None:
    assert of_machine(vm=None, infrastructure="", node=Node("n", ready))[1:] == [f"Node n  {word}"]


def test_a_machine_that_is_deleted_says_so() -> None:
    assert of_machine(deleting=True)[0] == "Machine cp-1  Deleting  v1.36.2  4h"
    assert of_machine(ready=False, phase="Failed")[0] == "Machine cp-1  Failed  v1.36.2  4h"


@pytest.mark.parametrize(
    ("condition", "always", "line"),
    [
        (Condition("Ready", "True", "Ready", "fine", ago(minutes=5)), False, "✓ Ready  fine  5m"),
        (Condition("Ready", "False", "Lost", "a\n b", ago(minutes=5)), True, "✗ Ready  Lost  a b  5m"),
        (Condition("Ready", "False", "Lost"), True, "✗ Ready  Lost"),
        (Condition("Ready", "Unknown", "Lost"), True, "… Ready  Lost"),
        (Condition("Paused", "True", "Paused", "on request"), True, "… Paused  on request"),
        (Condition("Paused", "True", "Paused"), False, "… Paused"),
        (
            Condition("FleetIntegrationReady", "False", "FleetIntegrationNotApplicable", "no Rancher"),
            False,
            "- FleetIntegrationReady  FleetIntegrationNotApplicable  no Rancher",
        ),
        (Condition("Paused", "False", "NotPaused"), False, "✓ Paused  NotPaused"),
        (Condition("HarvesterMachine:Ready", "False", "Ready"), True, "✗ HarvesterMachine Ready"),
    ],
)
def test_conditions_show_when_they_are_not_as_they_should_be_or_on_request(
    condition: Condition, always: bool, line: str
) -> None:
    cluster = replace(CLUSTER, groups=(), bundles=None, conditions=(condition,))
    assert (f"  {line}" in lines(cluster)) is always
    assert f"  {line}" in lines(cluster, conditions=True)
    own = replace(CLUSTER, groups=(), bundles=None, infrastructure_conditions=(condition,))
    assert (f"    {line}" in lines(own)) is always
    group = replace(CLUSTER.groups[0], machines=(), conditions=(condition,))
    assert f"    {line}" not in lines(replace(CLUSTER, groups=(group,), bundles=None))
    assert f"    {line}" in lines(replace(CLUSTER, groups=(group,), bundles=None), conditions=True)


def test_bundles_that_are_pending_say_why() -> None:
    bundles = Condition("AddonBundlesReady", "False", "Deploying", "1 of 2 applied")
    found = lines(replace(CLUSTER, groups=(), bundles=bundles))
    assert found[-2:] == ["  bundles Pending", "    ✗ AddonBundlesReady  Deploying  1 of 2 applied"]


@pytest.mark.parametrize(
    ("word", "colour"),
    [("Running", "32"), ("Bound", "32"), ("Starting", "36"), ("Migrating", "36"), ("CrashLoop", "31")],
)
def test_the_state_of_a_vm_has_a_colour(word: str, colour: str) -> None:
    machine = replace(MACHINE, vm=replace(VM, status=word, disks=()), node=None)
    cluster = replace(CLUSTER, groups=(replace(CLUSTER.groups[0], machines=(machine,)),), bundles=None)
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard", highlight=False)
    tree.show(out, [cluster], conditions=False, now=NOW)
    assert isinstance(out.file, io.StringIO)
    assert f"\x1b[{colour}m{word}" in out.file.getvalue()


@pytest.mark.parametrize(("available", "colour"), [(1, "32"), (0, "33")])
def test_replicas_that_are_not_complete_are_yellow(available: int, colour: str) -> None:
    group = Group("MachineDeployment", "md", Replicas(1, 1, available, 1))
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard", highlight=False)
    tree.show(out, [replace(CLUSTER, groups=(group,), bundles=None)], conditions=False, now=NOW)
    assert isinstance(out.file, io.StringIO)
    assert f"\x1b[{colour}m{available}/1" in out.file.getvalue()
