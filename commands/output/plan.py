"""Show a plan: objects, machines and their needs, with the marks of terraform."""

from __future__ import annotations

from rich.console import Console

from caphv.api.counting import counted, name_some
from caphv.api.quantity import readable
from commands.output.overview import console
from commands.output.text import Text
from operations.capacity.machinechanges import Action, Field, PoolEffect
from operations.capacity.needs import Need
from operations.change.plan.model import ClusterPlan, Plan, Shortcoming

_MARKS = {
    Action.CREATE: ("+", "green"),
    Action.CHANGE: ("~", "yellow"),
    Action.REPLACE: ("±", "magenta"),
    Action.DELETE: ("-", "red"),
    Action.REFUSED: ("✗", "bold red"),
}
_MAX_FIELDS = 8
_MAX_PLACES = 3


def show(plan: Plan) -> None:
    """Write a plan, from objects to Harvester, with a summary."""
    out = console()
    if not plan.changes:
        out.print(Text("Nothing to do: everything is up to date"))
        return
    if plan.objects:
        out.print(Text("Management cluster", style="bold"))
    for change in plan.objects:
        out.print(_line(change.action, change.object, change.error), soft_wrap=True)
        _fields(out, change.fields)
    for cluster in plan.clusters:
        _show_cluster(out, cluster)
    _summary(out, plan)


def _show_cluster(out: Console, cluster: ClusterPlan) -> None:
    """Write the effect on a cluster, and what it needs of Harvester."""
    out.print(Text(f"Cluster {cluster.cluster}", style="bold"))
    for reason in cluster.unknown:
        out.print(
            Text(f"  ! its machines cannot be predicted: {reason}", style="yellow"), soft_wrap=True
        )
    if cluster.infrastructure:
        out.print(_line(Action.CHANGE, "HarvesterCluster", ""))
        _fields(out, cluster.infrastructure)

    for pool in cluster.pools:
        for action, text in _pool(pool):
            out.print(_line(action, text, ""), soft_wrap=True)
        _fields(out, pool.reasons)
        for why in pool.why_replaced[:_MAX_FIELDS]:
            out.print(Text(f"      not in place: {why}", style="dim"), soft_wrap=True)

    if cluster.vms_created or cluster.vms_deleted:
        created = counted(cluster.vms_created, "VM is", "VMs are")
        deleted = counted(cluster.vms_deleted, "is", "are")
        out.print(Text(f"  Harvester: {created} created, {deleted} deleted, with their disks"))
    for shortcoming in cluster.shortcomings:
        out.print(_shortcoming(shortcoming), soft_wrap=True)
    for need in cluster.needs:
        out.print(_need(need), soft_wrap=True)
    if cluster.services:
        out.print(Text(f"  Guest: {cluster.services}"), soft_wrap=True)


def _pool(pool: PoolEffect) -> list[tuple[Action, str]]:
    """Return the effects on the machines of a pool as sentences."""
    name = pool.pool if pool.pool == "control plane" else f"worker pool {pool.pool}"
    effects = []
    if pool.replaced:
        extra = (
            f", {pool.surge} more at a time"
            if pool.surge
            else ", each deleted before its successor is created"
        )
        number = counted(pool.replaced, "machine is", "machines are")
        effects.append((Action.REPLACE, f"{name}: {number} replaced{extra}"))

    if pool.updated:
        number = counted(pool.updated, "machine is", "machines are")
        how = "updated in place, one after another, if Cluster API has gate InPlaceUpdates"
        effects.append((Action.CHANGE, f"{name}: {number} {how}"))

    change = pool.after - pool.before
    if change:
        action, verb = (Action.CREATE, "created") if change > 0 else (Action.DELETE, "deleted")
        number = counted(abs(change), "machine is", "machines are")
        effects.append((action, f"{name}: {number} {verb} ({pool.before} → {pool.after})"))
    return effects


def _shortcoming(shortcoming: Shortcoming) -> Text:
    mark, style = ("!", "yellow") if shortcoming.advice else ("✗", "bold red")
    where = shortcoming.where or name_some(shortcoming.fields, _MAX_PLACES)
    return Text.assemble(
        (f"  {mark} ", style), f"{shortcoming.value}: {shortcoming.message} ({where})"
    )


def _need(need: Need) -> Text:
    """Return a need with its free amount; unknown amounts differ from sufficient ones."""
    note = f" ({need.note})" if need.note else ""
    free = "; how much is free is not known"
    if need.free is not None:
        at_most = "at most " if need.partial and not need.short else ""
        free = f", {at_most}{readable(need.free, need.unit)} free"

    if need.short:
        mark = "✗"
        style = "bold red"
    elif need.partial:
        mark = "?"
        style = "yellow"
    elif need.free is None:
        mark = "-"
        style = "dim"
    else:
        mark = "✓"
        style = "green"
    text = f"{need.what}: {readable(need.needed, need.unit)} more at most{free}{note}"
    return Text.assemble((f"  {mark} ", style), text)


def _line(action: Action, text: str, error: str) -> Text:
    mark, style = _MARKS[action]
    line = Text.assemble((f"  {mark} ", style), text)
    return line.append(f": {error}") if error else line


def _fields(out: Console, fields: tuple[Field, ...]) -> None:
    for field in fields[:_MAX_FIELDS]:
        out.print(Text(f"      {field}", style="dim"), soft_wrap=True)
    if len(fields) > _MAX_FIELDS:
        out.print(
            Text(f"      and {counted(len(fields) - _MAX_FIELDS, 'more field')}", style="dim")
        )


def _summary(out: Console, plan: Plan) -> None:
    """Write the numbers of changed objects and machines."""
    actions = [change.action for change in plan.objects]
    counts = [f"{actions.count(action)} to {action}" for action in (Action.CREATE, Action.CHANGE)]
    refused = actions.count(Action.REFUSED)
    more = f", {refused} refused" if refused else ""

    pools = [pool for cluster in plan.clusters for pool in cluster.pools]
    new = sum(max(0, pool.after - pool.before) for pool in pools)
    replaced = sum(pool.replaced for pool in pools)
    deleted = sum(max(0, pool.before - pool.after) for pool in pools)
    updated = sum(pool.updated for pool in pools)
    in_place = f"{updated} updated in place, " if updated else ""
    machines = f"{new} created, {in_place}{replaced} replaced, {deleted} deleted"
    out.print(Text(f"Plan: objects {', '.join(counts)}{more}; machines {machines}", style="bold"))
