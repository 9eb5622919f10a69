"""Show a cluster as a tree of objects, each with its age and its problems."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.tree import Tree

from caphv.api.counting import counted
from commands.output.overview import STATE_STYLES, age, machine_state, version_text
from commands.output.text import Text
from operations.status.causes import standstill, visible_conditions
from operations.status.diagnosis import CHOSEN
from operations.status.model import (
    Cluster,
    Condition,
    Disk,
    Group,
    Machine,
    Node,
    State,
)
from operations.status.parkingproblems import explains_all

_GOOD = {"Ready", "Running", "Bound", "True", "Available"}
_BUSY = {
    "Provisioning",
    "Provisioned",
    "Pending",
    "Starting",
    "Deleting",
    "Terminating",
    "Migrating",
    "Progressing",
    "Parked",
}


def show(
    out: Console, clusters: Iterable[Cluster], *, conditions: bool, now: datetime | None = None
) -> None:
    """Write a tree for each cluster; `conditions` adds conditions in their normal status."""
    for cluster in clusters:
        tree = tree_of(cluster, conditions=conditions, now=now or datetime.now(UTC))
        if out.is_terminal:
            out.print(tree)
            continue
        # rich fills lines with spaces, which a pipe does not need.
        with out.capture() as captured:
            out.print(tree)
        out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def tree_of(cluster: Cluster, *, conditions: bool, now: datetime) -> Tree:
    """Return a cluster as a tree."""
    tree = Tree(
        _line(
            ("Cluster ", "dim"),
            (str(cluster.key), "bold"),
            (cluster.state, STATE_STYLES[cluster.state]),
            version_text(cluster),
            (cluster.class_name and f"class {cluster.class_name}", "dim"),
            (age(cluster.created, now), "dim"),
        ),
        guide_style="dim",
    )

    _add_standstill(tree, cluster, everything=conditions, now=now)
    own_conditions = _select_conditions(
        cluster, cluster.conditions, (f"Cluster/{cluster.name}",), everything=conditions
    )
    _add_conditions(tree, own_conditions, everything=conditions, now=now)

    infrastructure = tree.add(
        _line(("HarvesterCluster ", "dim"), (cluster.infrastructure or "not created yet", "bold"))
    )
    if cluster.harvester:
        infrastructure.add(
            _line(
                ("Harvester ", "dim"),
                cluster.harvester,
                (f"namespace {cluster.target_namespace}", "dim"),
            )
        )
    if cluster.identity:
        infrastructure.add(_line(("identity Secret ", "dim"), cluster.identity))
    if cluster.endpoint:
        infrastructure.add(_line(("endpoint ", "dim"), cluster.endpoint))
    owners = (f"HarvesterCluster/{cluster.infrastructure}",)
    own_conditions = _select_conditions(
        cluster, cluster.infrastructure_conditions, owners, everything=conditions
    )
    _add_conditions(infrastructure, own_conditions, everything=conditions, now=now)

    for group in cluster.groups:
        _add_group(tree, cluster, group, everything=conditions, now=now)

    if cluster.bundles:
        is_ready = cluster.bundles.status == "True"
        branch = tree.add(_line(("bundles ", "dim"), _word("Ready" if is_ready else "Pending")))
        if conditions or not (is_ready or standstill(cluster.problems)):
            _add_conditions(branch, (cluster.bundles,), everything=True, now=now)
    return tree


def _add_standstill(tree: Tree, cluster: Cluster, *, everything: bool, now: datetime) -> None:
    """Say why and since when nothing reconciles a cluster, and the command that ends it."""
    cause = standstill(cluster.problems)
    if cause is None:
        return
    branch = tree.add(
        _line(("· ", "magenta"), (cause.cause, "magenta"), (age(cause.since, now), "dim"))
    )
    branch.add(Text.assemble(("→ ", "dim"), cause.next_step))
    if cause.consequences and not everything:
        objects = counted(len(cause.consequences), "object")
        branch.add(Text(f"{objects} with older conditions: --conditions", style="dim"))


def _select_conditions(
    cluster: Cluster, conditions: Iterable[Condition], owners: tuple[str, ...], *, everything: bool
) -> Iterable[Condition]:
    """Return the conditions of an object that do not only repeat a problem of another object."""
    if everything:
        return conditions
    return visible_conditions(conditions, frozenset(owners), cluster.problems)


def _add_group(
    tree: Tree, cluster: Cluster, group: Group, *, everything: bool, now: datetime
) -> None:
    """Add a group of machines below a cluster."""
    style = "green" if group.replicas.complete else "yellow"
    branch = tree.add(
        _line(
            (f"{group.kind} ", "dim"),
            (group.name, "bold"),
            (str(group.replicas), style),
            group.version,
        )
    )
    if everything:
        _add_conditions(branch, group.conditions, everything=True, now=now)
    for machine in group.machines:
        _add_machine(branch, cluster, machine, everything=everything, now=now)


def _add_machine(
    tree: Tree, cluster: Cluster, machine: Machine, *, everything: bool, now: datetime
) -> None:
    """Add a machine with its VM and Node, and the conditions that say something new."""
    branch = tree.add(
        _line(
            ("Machine ", "dim"),
            (machine.name, "bold"),
            _word("Parked" if cluster.state is State.PARKED else machine_state(machine)),
            machine.version,
            (age(machine.created, now), "dim"),
        )
    )
    conditions = _select_conditions(
        cluster, machine.conditions, machine.owners, everything=everything
    )
    _add_conditions(branch, conditions, everything=everything, now=now)

    size = f"{machine.cpu} CPU, {machine.memory}" if machine.cpu else ""
    if machine.vm:
        _add_vm(branch, cluster, machine, size, now)
    elif machine.infrastructure:
        where = f"on {_host(machine.host, machine.zone)}" if machine.host else ""
        # If Harvester was not asked, only the management cluster describes the VM.
        vm = branch.add(_line(("VM ", "dim"), machine.infrastructure, where, (size, "dim")))
        _add_addresses(vm, machine)
    # Hide the Node of a parked cluster: only the Machine's last report of it is known.
    if machine.node and cluster.state is not State.PARKED:
        branch.add(_node(machine.node, now))


def _add_vm(tree: Tree, cluster: Cluster, machine: Machine, size: str, now: datetime) -> None:
    """Add the VM of a machine, as Harvester describes it."""
    vm = machine.vm
    assert vm is not None  # noqa: S101 - checked by the caller
    where = f"on {_host(vm.host, machine.zone)}" if vm.host else ""
    # While a cluster is parked or resumed, a VM is as it should be when it is stopped.
    is_parked = explains_all(cluster.problems)
    branch = tree.add(
        _line(
            ("VM ", "dim"),
            f"{vm.namespace}/{vm.name}",
            (vm.status, "cyan") if is_parked else _word(vm.status),
            where,
            (size, "dim"),
            (age(vm.created, now), "dim"),
        )
    )
    for disk in vm.disks:
        branch.add(_disk(disk))
    _add_addresses(branch, machine)


def _add_addresses(tree: Tree, machine: Machine) -> None:
    """Add the addresses of a machine, and a reserved one that it does not use.

    The addresses that Harvester reports for the VM take precedence.
    """
    addresses = machine.vm.addresses if machine.vm and machine.vm.addresses else machine.addresses
    if addresses:
        pool = f"IPPool {machine.pool}" if machine.pool else ""
        tree.add(
            _line(
                ("addresses " if len(addresses) > 1 else "address ", "dim"),
                ", ".join(addresses),
                (pool, "dim"),
            )
        )
    if machine.allocated and machine.allocated not in addresses:
        tree.add(_line(("reserved ", "dim"), machine.allocated, (f"IPPool {machine.pool}", "dim")))


def _disk(disk: Disk) -> Text:
    """Return the line of a disk."""
    image = f"image {disk.image}" if disk.image else ""
    return _line(
        ("disk ", "dim"),
        disk.name,
        _word(disk.phase),
        disk.size,
        (disk.storage_class, "dim"),
        (image, "dim"),
    )


def _node(node: Node, now: datetime) -> Text:
    """Return the line of a Node."""
    ready = {"True": "Ready", "False": "NotReady"}.get(node.ready, "Unknown")
    zone = f"zone {node.zone}" if node.zone else ""
    return _line(
        ("Node ", "dim"),
        (node.name, "bold"),
        _word(ready),
        node.version,
        (zone, "dim"),
        (age(node.created, now), "dim"),
    )


def _add_conditions(
    tree: Tree, conditions: Iterable[Condition], *, everything: bool, now: datetime
) -> None:
    """Add the conditions that say something new, or with `everything` all of them.

    A condition of negative polarity that is True says something new only by its message.
    """
    for condition in conditions:
        good = condition.good
        negative = condition.negative
        # While a cluster is paused, the core reports it also in conditions that were true.
        repeats_pause = condition.reason == "Paused" and not negative
        is_chosen = condition.reason in CHOSEN
        is_informative = not good and not is_chosen and (condition.message or not negative)
        if not everything and (repeats_pause or not is_informative):
            continue

        mark = ("✗ ", "red")
        if good:
            mark = ("✓ ", "green")
        elif is_chosen:
            mark = ("- ", "dim")
        elif negative or condition.status == "Unknown":
            mark = ("… ", "cyan")

        # A reason that repeats the type adds no information.
        reason = "" if condition.reason == condition.bare_type else condition.reason
        message = " ".join(condition.message.split())
        text = Text.assemble(mark, condition.type.replace(":", " "))
        for part, style in ((reason, "dim"), (message, ""), (age(condition.since, now), "dim")):
            if part:
                text.append(f"  {part}", style=style)
        tree.add(text)


def _host(host: str, zone: str) -> str:
    return f"{host} ({zone})" if zone and zone != host else host


def _word(word: str) -> tuple[str, str]:
    if word in _GOOD:
        return word, "green"
    return word, "cyan" if word in _BUSY else "red"


def _line(*parts: str | tuple[str, str]) -> Text:
    """Join the parts that are not empty: kind and name by one space, further parts by two."""
    text = Text()
    for part in parts:
        content, style = part if isinstance(part, tuple) else (part, "")
        if not content:
            continue
        if text and not text.plain.endswith(" "):
            text.append("  ")
        text.append(content, style=style)
    return text
