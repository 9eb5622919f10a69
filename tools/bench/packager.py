"""Measure the packager: `python -m tools.bench.packager --help`.

The remote is a bare repository on the same disk, so the figures include Git's own work and no
network. Before the clock starts, the benchmark compiles the templates and publishes three clusters
elsewhere. CPU figures include this process and Git. On a machine with other load, they are more
reliable than the elapsed time.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from packager.addons.facts import ClusterFacts
from packager.contents.folders import compare_folders
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.pruning import Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.planning.commitplan import log_result
from packager.rendering.bundler import Folders
from packager.rendering.renderer import Renderer
from packager.tree import CLUSTER_ROOT, Tree
from tools.bench.clock import cpu_seconds, time_call


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--clusters", default=1000, help="Clusters in the repository, each with three bundles."
)
@click.option(
    "--rounds", default=11, help="How often a change and a check without one are measured."
)
@click.option(
    "--definitions", default=1000, help="ClusterDefinitions that are followed; 0 for none."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(clusters: int, rounds: int, definitions: int, output: str) -> None:
    """Measure the packager: all clusters from nothing, one changed setting, and nothing changed.

    Then the same for definitions of clusters that it follows, each of which becomes manifests and
    bundles.
    """
    with tempfile.TemporaryDirectory(prefix="caphv-bench-") as folder:
        figures = measure(Path(folder), clusters, rounds)
        if definitions:
            # Its modules are not part of the memory measured above.
            from tools.bench import definitions as definitions_bench

            figures |= definitions_bench.measure(Path(folder) / "definitions", definitions, rounds)
    if output == "json":
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:42} {value:10.3f}" if isinstance(value, float) else f"{name:42} {value:>10}")


def measure(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Run the workload; return its figures by name, in seconds and MiB."""
    with ExitStack() as stack:
        # Compile the templates before the clock starts.
        _publish_elsewhere(folder / "warm")
        facts = [facts_of(number) for number in range(count)]
        packager = Packager(stack.enter_context(_create_repository(folder / "measured")))

        cpu = cpu_seconds()
        seconds, first = time_call(lambda: packager.publish(facts))
        cpu = cpu_seconds() - cpu
        figures: dict[str, Any] = {
            "clusters": count,
            "files": len(first.plan.write),
            "all, s (aim 5)": seconds,
            "  CPU": cpu,
            "  of which rendering": packager.rendering,
            "  of which pushing": first.push_seconds,
        }

        # The packager reads the records of its own commit for the first time.
        packager.publish(facts)
        changed = []
        pushing = []
        files = set()
        idle = []
        idle_cpu = []
        for number in range(rounds):
            facts[number % count] = facts_of(number % count, mtu=1400 + number)
            seconds, result = time_call(lambda: packager.publish(facts))
            changed.append(seconds)
            pushing.append(result.push_seconds)
            files.add(len(result.plan.write))
            if not result.commit:
                sys.exit("a changed setting made no commit")

            before = _modification_times(folder)
            # The first check after a commit is not measured, because it reads more than later ones.
            packager.publish(facts)
            cpu = cpu_seconds()
            seconds, result = time_call(lambda: packager.publish(facts))
            idle.append(seconds)
            idle_cpu.append(cpu_seconds() - cpu)
            if result.commit or _modification_times(folder) != before:
                sys.exit("nothing changed, and yet something was written")

        return figures | {
            "one changed, median s (aim 0.3)": statistics.median(changed),
            "one changed, slowest s": max(changed),
            "  of which pushing, median": statistics.median(pushing),
            "  files": max(files),
            "nothing changed, median s (aim 0.05)": statistics.median(idle),
            "nothing changed, slowest s": max(idle),
            "  CPU, median": statistics.median(idle_cpu),
            "peak memory, MiB (aim 150)": (
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            ),
        }


class Packager:
    """The packager's work for all clusters: render those that changed, and publish."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.renderer = Renderer()
        self.folders = Folders()
        self.rendering = 0.0

    def publish(self, facts: list[ClusterFacts]) -> Result:
        """Render the clusters and commit the changed files."""

        def plan(snapshot: Snapshot) -> Plan:
            self.rendering, trees = time_call(lambda: self._render(facts, snapshot))
            folders = {CLUSTER_ROOT: self.folders.of(trees)}
            return compare_folders(snapshot, folders, Pruning(complete=True, budget=0))

        return log_result(self.repository.commit(plan, Reason("A benchmark.")))

    def _render(self, facts: list[ClusterFacts], snapshot: Snapshot) -> dict[str, Tree]:
        results = self.renderer.render(facts, snapshot.tree)
        faults = [finding for result in results if not result.ok for finding in result.findings]
        if faults:
            sys.exit(f"cannot be rendered: {faults[0]}")
        return {
            f"{result.cluster.namespace}/{result.cluster.name}": result.tree for result in results
        }


def facts_of(number: int, mtu: int = 1450) -> ClusterFacts:
    """Build a cluster whose settings depend on its number."""
    cni = ("calico", "canal", "cilium")[number % 3]
    values = {"cni": {"name": cni, "mtu": mtu}}
    metadata = {"name": f"cluster-{number:04}", "namespace": f"team-{number % 10}"}

    cluster = {
        "metadata": {
            **metadata,
            "labels": {"team": metadata["namespace"]},
            "annotations": {"addons.caphv.io/values": json.dumps(values)},
        },
        "spec": {
            "clusterNetwork": {
                "pods": {"cidrBlocks": ["10.42.0.0/16"]},
                "services": {"cidrBlocks": ["10.43.0.0/16"]},
            },
            "topology": {"version": "v1.36.2+rke2r1"},
        },
    }
    infrastructure = {
        "metadata": metadata,
        "spec": {"targetNamespace": metadata["namespace"]},
    }
    control_plane = {
        "kind": "RKE2ControlPlane",
        "spec": {"replicas": 3, "version": "v1.36.2+rke2r1"},
    }
    return ClusterFacts(cluster, infrastructure, control_plane)


def _publish_elsewhere(folder: Path) -> None:
    with _create_repository(folder) as repository:
        Packager(repository).publish([facts_of(number) for number in range(3)])


def _create_repository(folder: Path) -> Repository:
    origin = folder / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(origin)], check=True)
    return Repository(Remote(f"file://{origin}"), folder / "cache")


def _modification_times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
