"""How a cluster looks as a tree: Cluster, machines, VMs, disks, Nodes, each with its age and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.tree import Tree

from commands.output.overview import STATE_STYLES, age, machine_state, version_text
from commands.output.text import Text
from overview.causes import visible_conditions
from overview.model import Cluster, Condition, Disk, Group, Machine, Node, VirtualMachine

_GOOD = {"Ready", "Running", "Bound", "True", "Available"}
_BUSY = {"Provisioning", "Provisioned", "Pending", "Starting", "Deleting", "Terminating", "Migrating", "Progressing"}


def show(out: Console, clusters: Iterable[Cluster], *, conditions: bool, now: datetime | None = None) -> None:
    """Write a tree for each cluster; `conditions` adds those that are as they should be."""
    for cluster in clusters:
        tree = tree_of(cluster, conditions=conditions, now=now or datetime.now(UTC))
        if out.is_terminal:
            out.print(tree)
            continue
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
    own_conditions = _worth_showing(cluster, cluster.conditions, (f"Cluster/{cluster.name}",), everything=conditions)
    _add_conditions(tree, own_conditions, everything=conditions, now=now)
    own = tree.add(_line(("HarvesterCluster ", "dim"), (cluster.infrastructure or "not created yet", "bold")))
    if cluster.harvester:
        own.add(_line(("Harvester ", "dim"), cluster.harvester, (f"namespace {cluster.target_namespace}", "dim")))
    if cluster.identity:
        own.add(_line(("identity Secret ", "dim"), cluster.identity))
    if cluster.endpoint:
        own.add(_line(("endpoint ", "dim"), cluster.endpoint))
    owners = (f"HarvesterCluster/{cluster.infrastructure}",)
    own_conditions = _worth_showing(cluster, cluster.infrastructure_conditions, owners, everything=conditions)
    _add_conditions(own, own_conditions, everything=conditions, now=now)
    for group in cluster.groups:
        _add_group(tree, cluster, group, everything=conditions, now=now)
    if cluster.bundles:
        _add_conditions(
            tree.add(_line(("bundles ", "dim"), _word("Ready" if cluster.bundles.status == "True" else "Pending"))),
            (cluster.bundles,),
            everything=conditions or cluster.bundles.status != "True",
            now=now,
        )
    return tree


def _worth_showing(
    cluster: Cluster, conditions: Iterable[Condition], owners: tuple[str, ...], *, everything: bool
) -> Iterable[Condition]:
    """Return the conditions of an object, without those that only repeat a problem of another one."""
    return conditions if everything else visible_conditions(conditions, frozenset(owners), cluster.problems)


def _add_group(tree: Tree, cluster: Cluster, group: Group, *, everything: bool, now: datetime) -> None:
    style = "green" if group.replicas.complete else "yellow"
    branch = tree.add(
        _line((f"{group.kind} ", "dim"), (group.name, "bold"), (str(group.replicas), style), group.version)
    )
    if everything:
        _add_conditions(branch, group.conditions, everything=True, now=now)
    for machine in group.machines:
        _add_machine(branch, cluster, machine, everything=everything, now=now)


def _add_machine(tree: Tree, cluster: Cluster, machine: Machine, *, everything: bool, now: datetime) -> None:
    branch = tree.add(
        _line(
            ("Machine ", "dim"),
            (machine.name, "bold"),
            _word(machine_state(machine)),
            machine.version,
            (age(machine.created, now), "dim"),
        )
    )
    conditions = _worth_showing(cluster, machine.conditions, machine.owners, everything=everything)
    _add_conditions(branch, conditions, everything=everything, now=now)
    size = f"{machine.cpu} CPU, {machine.memory}" if machine.cpu else ""
    if machine.vm:
        _add_vm(branch, machine, machine.vm, size, now)
    elif machine.infrastructure:
        where = f"on {_host(machine.host, machine.zone)}" if machine.host else ""
        vm = branch.add(_line(("VM ", "dim"), machine.infrastructure, where, (size, "dim")))
        _add_addresses(vm, machine)
    if machine.node:
        branch.add(_node(machine.node, now))


def _add_vm(tree: Tree, machine: Machine, vm: VirtualMachine, size: str, now: datetime) -> None:
    where = f"on {_host(vm.host, machine.zone)}" if vm.host else ""
    branch = tree.add(
        _line(
            ("VM ", "dim"),
            f"{vm.namespace}/{vm.name}",
            _word(vm.status),
            where,
            (size, "dim"),
            (age(vm.created, now), "dim"),
        )
    )
    for disk in vm.disks:
        branch.add(_disk(disk))
    _add_addresses(branch, machine)


def _add_addresses(tree: Tree, machine: Machine) -> None:
    addresses = machine.vm.addresses if machine.vm and machine.vm.addresses else machine.addresses
    if addresses:
        pool = f"IPPool {machine.pool}" if machine.pool else ""
        tree.add(
            _line(("addresses " if len(addresses) > 1 else "address ", "dim"), ", ".join(addresses), (pool, "dim"))
        )
    if machine.allocated and machine.allocated not in addresses:
        tree.add(_line(("reserved ", "dim"), machine.allocated, (f"IPPool {machine.pool}", "dim")))


def _disk(disk: Disk) -> Text:
    image = f"image {disk.image}" if disk.image else ""
    return _line(("disk ", "dim"), disk.name, _word(disk.phase), disk.size, (disk.storage_class, "dim"), (image, "dim"))


def _node(node: Node, now: datetime) -> Text:
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


def _add_conditions(tree: Tree, conditions: Iterable[Condition], *, everything: bool, now: datetime) -> None:
    for condition in conditions:
        good, negative = condition.good, condition.negative
        worth = not good and (condition.message or not negative)
        if not (everything or worth):
            continue
        mark = (
            ("✓ ", "green") if good else ("… ", "cyan") if negative or condition.status == "Unknown" else ("✗ ", "red")
        )
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
    return word, "green" if word in _GOOD else "cyan" if word in _BUSY else "red"


def _line(*parts: str | tuple[str, str]) -> Text:
    """Join what is not empty: the kind and its name by one space, the rest by two."""
    text = Text()
    for part in parts:
        content, style = part if isinstance(part, tuple) else (part, "")
        if not content:
            continue
        if text and not text.plain.endswith(" "):
            text.append("  ")
        text.append(content, style=style)
    return text
