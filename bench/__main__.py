"""Run the workloads and print what they measured: `python -m bench --help`."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import click
import uvloop

from bench import scale
from bench.environment import Bench, Requests, environment
from bench.machines import Watcher, create_clusters, create_machine, create_machines, delete_machines
from bench.times import Times, spread
from sandbox.processes import binaries

# Clusters, machines in each, accounts on Harvester, and target namespaces there (0: one for each cluster).
WORKLOADS: dict[str, tuple[int, int, int, int]] = {
    "A": (20, 10, 1, 0),
    "B": (1, 50, 1, 0),
    "S": (20, 10, 1, 0),
    "L": (50, 20, 1, 0),
    "I1": (60, 3, 1, 10),
    "I": (60, 3, 60, 10),
}
_RATE = 5.0
_TIMEOUT = 300.0


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  python -m bench
  python -m bench A S --idle-seconds 0
  python -m bench A -o json > a.json
""",
)
@click.argument("workloads", nargs=-1, type=click.Choice([*WORKLOADS, scale.NAME]))
@click.option("--idle-seconds", default=60.0, help="How long to count requests when nothing changes; 0 for not at all.")
@click.option("--workload-servers", default=4, help="API servers of workload clusters, shared by the clusters.")
@click.option("--boot-seconds", default=2.0, help="How long a VM boots, give or take a quarter.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(workloads: tuple[str, ...], output: str, **settings: Any) -> None:
    """Measure the provider.

    A: 20 clusters with 10 machines each, at once. B: one cluster with 50. S: 200 machines over 20 clusters, five a
    second. L: 50 clusters with 20 each. I: 60 clusters with three each and 60 accounts in ten target namespaces of one
    Harvester; I1 is the same with one account, to compare with. Each runs on servers and a provider of its own;
    afterwards its machines are deleted. Nodes register one second after the boot.

    X: 250 clusters with 20 each, on 10 Harvesters with 50 accounts, and then single machines. One process stands in for
    all API servers.
    """
    binaries.prepare(binaries.plain_report(lambda name, step, *_: print(f"{name}: {step}", file=sys.stderr)))
    results = {}
    for name in workloads or ("A", "B", "S", "I1", "I"):
        print(f"workload {name} …", file=sys.stderr)
        run = scale.measure(settings["idle_seconds"]) if name == scale.NAME else measure(name, **settings)
        results[name] = uvloop.run(run)
        if output == "table":
            print_table(name, results[name])
    if output == "json":
        print(json.dumps(results, indent=2))


async def measure(name: str, idle_seconds: float, workload_servers: int, boot_seconds: float) -> dict[str, Any]:
    """Run one workload; answers its figures by name."""
    clusters, each, accounts, targets = WORKLOADS[name]
    servers = min(clusters, workload_servers)
    async with environment(workloads=servers, boot_seconds=boot_seconds, boot_spread=0.25) as bench:
        watcher = Watcher(bench)
        watches = watcher.start()
        await bench.start_provider()
        descriptors: list[int] = []
        sampling = asyncio.create_task(bench.sample_descriptors(descriptors))
        started = time.monotonic()
        names = await create_clusters(bench, watcher, f"{name.lower()}-", clusters, accounts, targets)
        connected = time.monotonic() - started
        pairs = [(cluster, f"{cluster}-m{number}") for number in range(each) for cluster in names]
        await asyncio.sleep(2)  # what the clusters cause is not the machines'
        try:
            figures = await _measure(bench, watcher, pairs, steady=name == "S", idle_seconds=idle_seconds)
            return {"clusters ready after s": round(connected, 2), **figures, "open files, most": max(descriptors)}
        finally:
            sampling.cancel()
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def _measure(
    bench: Bench, watcher: Watcher, pairs: list[tuple[str, str]], *, steady: bool, idle_seconds: float
) -> dict[str, Any]:
    count = len(pairs)
    requests, (cpu, _), parts = bench.requests(), bench.provider_usage(), bench.cpu_by_part()
    started = time.monotonic()
    await (_steadily(bench, pairs) if steady else create_machines(bench, pairs))
    times = watcher.times
    await watcher.until(
        f"{count} machines are ready", lambda: all(times.get(n, Times()).done for _, n in pairs), _TIMEOUT
    )
    found = [times[name] for _, name in pairs]
    await asyncio.sleep(1)
    figures: dict[str, Any] = {
        "machines": count,
        "all ready after s": round(max(item.done for item in found) - started, 2),
        "ready after s (each)": spread(item.done - item.created for item in found),
        "added: machine created → VM created, s": spread(item.vm - item.created for item in found),
        "added: address seen → Ready, s": spread(item.ready - item.address for item in found),
        "added: node seen → initialized, s": spread(item.initialized - item.node for item in found),
        "requests a machine until ready": _requests(bench.requests().minus(requests), count),
    }
    cpu_ready, _ = bench.provider_usage()
    figures["CPU a machine until ready, ms"] = round((cpu_ready - cpu) / count * 1000, 1)
    figures["  of everything that runs"] = _each(bench.cpu_by_part() - parts, count)
    if idle_seconds:
        figures |= await _idle(bench, idle_seconds)
    figures |= await _delete(bench, watcher, pairs)
    cpu_end, peak = bench.provider_usage()
    figures["peak memory, MiB"] = round(peak, 1)
    figures["CPU in all, s"] = round(cpu_end, 1)
    return figures


async def _steadily(bench: Bench, pairs: list[tuple[str, str]]) -> None:
    tasks = []
    for cluster, name in random.sample(pairs, len(pairs)):
        tasks.append(asyncio.create_task(create_machine(bench, cluster, name)))
        await asyncio.sleep(1 / _RATE)
    await asyncio.gather(*tasks)


async def _idle(bench: Bench, seconds: float) -> dict[str, Any]:
    await asyncio.sleep(3)
    before, (cpu, _) = bench.requests(), bench.provider_usage()
    await asyncio.sleep(seconds)
    after, (cpu_after, _) = bench.requests(), bench.provider_usage()
    verbs = {server: dict(verbs) for server, verbs in after.minus(before).by_verb.items() if verbs}
    return {
        f"requests in {seconds:.0f} idle s": verbs,
        f"CPU in {seconds:.0f} idle s": round(cpu_after - cpu, 2),
    }


async def _delete(bench: Bench, watcher: Watcher, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    requests, (cpu, _), parts = bench.requests(), bench.provider_usage(), bench.cpu_by_part()
    started = time.monotonic()
    await delete_machines(bench, pairs)
    await watcher.until("all machines are deleted", lambda: all(watcher.times[n].gone for _, n in pairs), _TIMEOUT)
    seconds = max(watcher.times[name].gone for _, name in pairs) - started
    await asyncio.sleep(1)
    after, (cpu_after, _) = bench.requests(), bench.provider_usage()
    return {
        "all deleted after s": round(seconds, 2),
        "requests a machine for its deletion": _requests(after.minus(requests), len(pairs)),
        "CPU a machine for its deletion, ms": round((cpu_after - cpu) / len(pairs) * 1000, 1),
        "  of everything that runs ": _each(bench.cpu_by_part() - parts, len(pairs)),
    }


def _each(counted: Counter[str], machines: int) -> dict[str, float]:
    return {name: round(count / machines, 1) for name, count in counted.most_common()}


def _requests(requests: Requests, machines: int) -> dict[str, Any]:
    detail = {
        f"{server} {verb}": round(count / machines, 2)
        for server, verbs in requests.by_verb.items()
        for verb, count in sorted(verbs.items())
        if verb not in ("watch", "lease")
    }
    lease = sum(verbs["lease"] for verbs in requests.by_verb.values())
    return {"total": round((requests.total - lease) / machines, 2), **detail}


def print_table(name: str, figures: dict[str, Any]) -> None:
    """Figures of one workload for people."""
    print(f"{name}")
    for title, value in figures.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        print(f"  {title:<42} {text}")


if __name__ == "__main__":
    main()
