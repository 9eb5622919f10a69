"""`caphv sandbox demo`: the whole way of a cluster, shown while it happens."""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.main import CONTEXT_SETTINGS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sandbox.scenario.lifecycle import Scenario
    from sandbox.scenario.view import Step

_MARKS = {True: "✗", False: "✓"}


@click.command(
    short_help="Watch the whole life of a cluster.",
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv sandbox demo
  caphv sandbox demo --keep          then look around with kubectl
  caphv sandbox demo | cat           plain lines, for a log
""",
)
@click.option("--keep", is_flag=True, help="Leave the sandbox running at the end, to look around.")
@click.option(
    "--boot-seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="How long a virtual machine boots."
)
def demo(*, keep: bool, boot_seconds: float) -> None:
    """Bring a cluster up on a simulated Harvester, break it, scale it and take it down.

    Starts a sandbox of its own with the real Cluster API core and the provider, then pushes a ClusterDefinition to a
    Git repository, which becomes a Cluster of the ClusterClass harvester-rke2 and the bundles of its add-ons: three
    control planes and two workers with two disks each, over three zones and two address pools. A changed MTU becomes
    one small commit. The VMs of a worker and of a control plane are destroyed and replaced; workers and control plane
    are scaled; a new version of Kubernetes is rolled out; the cluster is deleted, and Harvester is searched for
    leftovers.
    Exit status 1 when any of that does not come out.
    """
    from commands.sandbox.common import build_report, failures, print_part
    from sandbox.environment import Sandbox, Settings
    from sandbox.processes import binaries

    # Unix sockets below the folder limit how long its name may be.
    folder = Path(tempfile.mkdtemp(prefix="caphv-demo-"))
    box = Sandbox(folder, Settings(boot_seconds=boot_seconds))
    with failures():
        with build_report() as report:
            binaries.prepare(report)
        click.echo(f"Starting a sandbox in {folder}")
        started = time.monotonic()
        told = asyncio.run(_demo(box, print_part, keep=keep))
    if not told:
        click.echo(f"FAILED after {time.monotonic() - started:.0f} s; logs are in {folder}, remove it with:")
        click.echo(f"  caphv sandbox down --dir {folder}")
        sys.exit(1)
    click.echo(told.replace("SECONDS", f"{time.monotonic() - started:.0f} s"))
    if keep:
        click.echo(f"  export KUBECONFIG=$(caphv sandbox kubeconfig --dir {folder} --path)")
        click.echo(f"  caphv sandbox down --dir {folder}")


async def _demo(box: Any, progress: Any, *, keep: bool) -> str:
    """Run the story; answers the line that sums it up, empty when it failed."""
    from sandbox.cluster import ClusterSpec
    from sandbox.scenario.lifecycle import Scenario, ScenarioError, in_network

    await box.up(progress)
    failed = False
    try:
        spec = in_network(ClusterSpec(), box.status()["network"])
        story = Scenario(box.folder, spec)
        with _showing(story):
            try:
                async with story.watching():
                    await story.run()
            except ScenarioError:
                failed = True
        return "" if failed else _summary(story)
    finally:
        if not keep and not failed:
            await box.down()


def _summary(story: "Scenario") -> str:
    counted = len([step for step in story.view.steps if not step.failed])
    return (
        f"OK: {counted} of {len(story.view.steps)} steps in SECONDS\n"
        "A cluster from a definition in Git: lost machines replaced, scaled, upgraded,\n"
        "deleted; nothing is left on Harvester"
    )


@contextlib.contextmanager
def _showing(story: "Scenario") -> Iterator[None]:
    """A live tree on a terminal; elsewhere a line for each thing that happened."""
    if not sys.stdout.isatty():
        with _lines(story):
            yield
        return
    from rich.console import Console
    from rich.live import Live

    # What is done scrolls away, so that the present fits into a small window.
    with Live(get_renderable=lambda: tree(story), console=Console(), refresh_per_second=8, transient=True) as live:
        told = 0

        def changed() -> None:
            nonlocal told
            done = [step for step in story.view.steps if step.seconds is not None]
            for step in done[told:]:
                if step.failed:
                    live.console.print(tree(story))
                live.console.print(_step_line(step), style="red" if step.failed else "green", markup=False)
            told = len(done)

        story.on_change = changed
        yield


@contextlib.contextmanager
def _lines(story: "Scenario") -> Iterator[None]:
    seen: dict[str, str] = {}
    machines: set[str] = set()

    def changed() -> None:
        for step in story.view.steps:
            _say(seen, step.title, _step_line(step))
        lines = dict(_machine_lines(story))
        for name, line in lines.items():
            _say(seen, name, line)
        for name in machines - lines.keys():
            _say(seen, name, f"    {name}: gone")
        machines.update(lines)

    story.on_change = changed
    yield
    changed()


def _say(seen: dict[str, str], key: str, line: str) -> None:
    if seen.get(key) != line:
        seen[key] = line
        click.echo(line)


def _step_line(step: "Step") -> str:
    if step.seconds is None:
        return f"▸ {step.title}"
    return f"{_MARKS[step.failed]} {step.title} ({step.seconds:.1f} s): {step.outcome}"


def _machine_lines(story: "Scenario") -> Iterator[tuple[str, str]]:
    for name, row in story.view.machine_rows():
        address, zone, host, state = row
        place = " ".join(part for part in (address, zone, host) if part)
        yield name, f"    {name}: {state}{f' ({place})' if place else ''}"


def tree(story: "Scenario") -> "RenderableType":
    """Everything that stands now, as a tree, with the step that goes on below it."""
    from rich.console import Group
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"Cluster {story.spec.namespace}/{story.spec.name}", style="bold"))
    infrastructure = story.view.harvester_cluster()
    if infrastructure:
        ready = bool((infrastructure.get("status") or {}).get("ready"))
        root.add(Text(f"HarvesterCluster  {story.view.endpoint()}", style="green" if ready else "yellow"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, (address, zone, host, state) in story.view.machine_rows():
        style = "green" if state == "Running" else "red" if "gone" in state or "Fail" in state else "yellow"
        table.add_row(name, address, zone, host, Text(state, style=style))
    if table.row_count:
        root.add(table)
    return Group(root, *(Spinner("dots", text=step.title) for step in story.view.steps if step.seconds is None))
