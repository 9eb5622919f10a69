"""Run the workloads and print what they measured: `python -m tools.bench --help`."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import uvloop

from sandbox.processes import binaries
from tools.bench import scale
from tools.bench.environment import CHECKOUT, Bench, Requests, environment
from tools.bench.machines import (
    Watcher,
    create_clusters,
    create_machine,
    create_machines,
    delete_machines,
)
from tools.bench.times import Times, spread

# Each workload has a number of clusters, of machines per cluster, of accounts on Harvester, and of
# target namespaces on Harvester (0 means one for each cluster).
WORKLOADS: dict[str, tuple[int, int, int, int]] = {
    "A": (20, 10, 1, 0),
    "B": (1, 50, 1, 0),
    "S": (20, 10, 1, 0),
    "L": (50, 20, 1, 0),
    "I1": (60, 3, 1, 10),
    "I": (60, 3, 60, 10),
}
_MACHINES_PER_SECOND = 5.0
_TIMEOUT_SECONDS = 300.0


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  python -m tools.bench
  python -m tools.bench A S --idle-seconds 0
  python -m tools.bench A -o json > a.json
  python -m tools.bench A --provider ../earlier
""",
)
@click.argument("workloads", nargs=-1, type=click.Choice([*WORKLOADS, scale.NAME]))
@click.option(
    "--idle-seconds",
    default=60.0,
    help="How long to count requests when nothing changes; 0 for not at all.",
)
@click.option(
    "--workload-servers",
    default=4,
    help="API servers of workload clusters, shared by the clusters.",
)
@click.option("--boot-seconds", default=2.0, help="How long a VM boots, give or take a quarter.")
@click.option(
    "--provider",
    default=CHECKOUT,
    show_default="this one",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Checkout whose provider is measured, for example of an earlier version.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(
    workloads: tuple[str, ...],
    idle_seconds: float,
    workload_servers: int,
    boot_seconds: float,
    provider: Path,
    output: str,
) -> None:
    """Measure the provider.

    A: 20 clusters with 10 machines each, at once. B: one cluster with 50. S: 200 machines over 20
    clusters, five a second. L: 50 clusters with 20 each. I: 60 clusters with three each and 60
    accounts in ten target namespaces of one Harvester; I1 is the same with one account, to compare
    with. Each runs on servers and a provider of its own; afterwards its machines are deleted. Nodes
    register one second after the boot.

    X: 250 clusters with 20 each, on 10 Harvesters with 50 accounts, and then single machines. One
    process stands in for all API servers.
    """
    binaries.prepare(
        binaries.plain_report(lambda name, step, *_: print(f"{name}: {step}", file=sys.stderr))
    )

    results = {}
    for name in workloads or ("A", "B", "S", "I1", "I"):
        print(f"workload {name} …", file=sys.stderr)
        if name == scale.NAME:
            run = scale.measure(idle_seconds, provider)
        else:
            run = measure(name, idle_seconds, workload_servers, boot_seconds, provider)
        results[name] = uvloop.run(run)
        if output == "text":
            print_table(name, results[name])

    if output == "json":
        print(json.dumps(results, indent=2))


async def measure(
    name: str, idle_seconds: float, workload_servers: int, boot_seconds: float, provider: Path
) -> dict[str, Any]:
    """Run one workload with the provider of a checkout; return its figures by name."""
    clusters, machines, accounts, targets = WORKLOADS[name]
    servers = min(clusters, workload_servers)
    async with environment(workloads=servers, boot_seconds=boot_seconds) as bench:
        watcher = Watcher(bench)
        watches = watcher.start()
        await bench.start_provider(provider)
        descriptors: list[int] = []
        sampling = asyncio.create_task(bench.sample_descriptors(descriptors))

        started = time.monotonic()
        names = await create_clusters(
            bench, watcher, f"{name.lower()}-", clusters, accounts, targets
        )
        connected = time.monotonic() - started
        pairs = [
            (cluster, f"{cluster}-m{number}") for number in range(machines) for cluster in names
        ]

        # Requests that the new clusters cause must not count as the machines'.
        await asyncio.sleep(2)
        try:
            figures = await _measure_machines(
                bench, watcher, pairs, steady=name == "S", idle_seconds=idle_seconds
            )
            return {
                "clusters ready after s": round(connected, 2),
                **figures,
                "open files, most": max(descriptors),
            }
        finally:
            sampling.cancel()
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def _measure_machines(
    bench: Bench,
    watcher: Watcher,
    pairs: list[tuple[str, str]],
    *,
    steady: bool,
    idle_seconds: float,
) -> dict[str, Any]:
    """Create machines, wait until they are ready, let them idle, and delete them."""
    count = len(pairs)
    requests = bench.requests()
    cpu, _ = bench.provider_usage()
    parts = bench.cpu_by_part()
    started = time.monotonic()
    create = _create_steadily if steady else create_machines
    await create(bench, pairs)
    times = watcher.times
    await watcher.wait_until(
        f"{count} machines are ready",
        lambda: all(times.get(n, Times()).done for _, n in pairs),
        _TIMEOUT_SECONDS,
    )
    # Wait for the last writes of the provider about the last machine, so that they are counted.
    await asyncio.sleep(1)

    ready = [times[name] for _, name in pairs]
    figures: dict[str, Any] = {
        "machines": count,
        "all ready after s": round(max(item.done for item in ready) - started, 2),
        "ready after s (each)": spread(item.done - item.created for item in ready),
        "added: machine created → VM created, s": spread(item.vm - item.created for item in ready),
        "added: address seen → Ready, s": spread(item.ready - item.address for item in ready),
        "added: node seen → initialized, s": spread(item.initialized - item.node for item in ready),
        "requests a machine until ready": _requests_per_machine(
            bench.requests().subtract(requests), count
        ),
    }
    cpu_ready, _ = bench.provider_usage()
    figures["CPU a machine until ready, ms"] = round((cpu_ready - cpu) / count * 1000, 1)
    figures["  of everything that runs"] = _cpu_per_machine(bench.cpu_by_part() - parts, count)

    if idle_seconds:
        figures |= await _measure_idle(bench, idle_seconds)
    figures |= await _measure_deletion(bench, watcher, pairs)

    cpu_end, peak = bench.provider_usage()
    figures["peak memory, MiB"] = round(peak, 1)
    figures["CPU in all, s"] = round(cpu_end, 1)
    return figures


async def _create_steadily(bench: Bench, pairs: list[tuple[str, str]]) -> None:
    # Create machines in random order, so that consecutive ones belong to different clusters.
    tasks = []
    for cluster, name in random.sample(pairs, len(pairs)):
        tasks.append(asyncio.create_task(create_machine(bench, cluster, name)))
        await asyncio.sleep(1 / _MACHINES_PER_SECOND)
    await asyncio.gather(*tasks)


async def _measure_idle(bench: Bench, seconds: float) -> dict[str, Any]:
    # The provider still works on the last machines for a moment.
    await asyncio.sleep(3)
    before = bench.requests()
    cpu, _ = bench.provider_usage()
    await asyncio.sleep(seconds)
    after = bench.requests()
    cpu_after, _ = bench.provider_usage()
    verbs = {
        server: dict(verbs) for server, verbs in after.subtract(before).by_verb.items() if verbs
    }
    return {
        f"requests in {seconds:.0f} idle s": verbs,
        f"CPU in {seconds:.0f} idle s": round(cpu_after - cpu, 2),
    }


async def _measure_deletion(
    bench: Bench, watcher: Watcher, pairs: list[tuple[str, str]]
) -> dict[str, Any]:
    requests = bench.requests()
    cpu, _ = bench.provider_usage()
    parts = bench.cpu_by_part()
    started = time.monotonic()
    await delete_machines(bench, pairs)
    await watcher.wait_until(
        "all machines are deleted",
        lambda: all(watcher.times[n].gone for _, n in pairs),
        _TIMEOUT_SECONDS,
    )
    seconds = max(watcher.times[name].gone for _, name in pairs) - started

    # Wait for the last writes of the provider about the last deletion, so that they are counted.
    await asyncio.sleep(1)
    after = bench.requests()
    cpu_after, _ = bench.provider_usage()
    return {
        "all deleted after s": round(seconds, 2),
        "requests a machine for its deletion": _requests_per_machine(
            after.subtract(requests), len(pairs)
        ),
        "CPU a machine for its deletion, ms": round((cpu_after - cpu) / len(pairs) * 1000, 1),
        "  of everything that runs ": _cpu_per_machine(bench.cpu_by_part() - parts, len(pairs)),
    }


def _cpu_per_machine(total: Counter[str], machines: int) -> dict[str, float]:
    return {name: round(count / machines, 1) for name, count in total.most_common()}


def _requests_per_machine(requests: Requests, machines: int) -> dict[str, Any]:
    detail = {
        f"{server} {verb}": round(count / machines, 2)
        for server, verbs in requests.by_verb.items()
        for verb, count in sorted(verbs.items())
        if verb not in ("watch", "lease")
    }
    # The provider renews its lease independently of the number of machines.
    lease = sum(verbs["lease"] for verbs in requests.by_verb.values())
    return {"total": round((requests.total - lease) / machines, 2), **detail}


def print_table(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of one workload."""
    print(f"{name}")
    for title, value in figures.items():
        text = (
            ", ".join(f"{key} {item}" for key, item in value.items())
            if isinstance(value, dict)
            else value
        )
        print(f"  {title:<42} {text}")


if __name__ == "__main__":
    main()
