"""Measure the webhook server: `python -m tools.bench.webhook --help`.

Separate processes send the reviews over raw TLS connections, which stay open like the connections
of an API server. Each client sends a review when it has the answer to the previous one. Clients
check each verdict, so that a server that answers quickly and wrongly does not count.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import multiprocessing
import shutil
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click
import orjson
import psutil

from caphv.api.names import GROUP
from caphv.runtime import eventloop
from sandbox.processes import children, pki
from webhooks.handler import API_VERSION, path_of

CHECKOUT = Path(__file__).parents[2]
MIB = 1024 * 1024


@dataclass(frozen=True)
class Question:
    """A request as it is sent, and the part of the answer that says whether it is allowed."""

    request: bytes
    allowed: bytes


@dataclass(frozen=True)
class Server:
    """A running `caphv webhook`."""

    port: int
    authority: str
    process: psutil.Process

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def memory(self) -> float:
        return self.process.memory_info().rss / MIB


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  python -m tools.bench.webhook
  python -m tools.bench.webhook --clients 8 --reviews 100000
  python -m tools.bench.webhook --invalid 50 --soak 0
  python -m tools.bench.webhook -o json > webhook.json
""",
)
@click.option(
    "--clients",
    multiple=True,
    default=(1, 8, 64),
    help="Connections at a time; repeat it for several.",
)
@click.option("--reviews", default=10_000, help="Reviews for each number of clients.")
@click.option(
    "--soak", default=100_000, help="Reviews for the growth of memory, with 8 clients; 0 for none."
)
@click.option(
    "--invalid",
    type=click.IntRange(0, 100),
    default=10,
    help="Percentage of reviews that are refused.",
)
@click.option(
    "--generators",
    default=1,
    help="Processes that send; more than one only where there are cores for them.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(
    clients: tuple[int, ...], reviews: int, soak: int, invalid: int, generators: int, output: str
) -> None:
    """Measure the admission webhooks over TLS.

    The objects are those of a working cluster: mostly HarvesterMachines, created and changed. Every
    second one of those that are refused breaks the schema, the others a rule. CPU is that of the
    server's process alone.
    """
    figures: list[dict[str, Any]] = []
    with run_server() as server:
        # The first reviews are not measured, because the server compiles schemas and rules at them.
        send_reviews(server, 8, 2000, invalid, generators)
        for count in clients:
            figures.append(measure(server, count, reviews, invalid, generators))
            if output == "text":
                print_figures(figures[-1])
        if soak:
            figures.append(measure(server, 8, soak, invalid, generators) | {"soak": True})
            if output == "text":
                print_figures(figures[-1])

    if output == "json":
        print(json.dumps(figures, indent=2))


@contextmanager
def run_server() -> Iterator[Server]:
    """Run the server as users do, with a certificate of its own."""
    folder = Path(tempfile.mkdtemp(prefix="caphv-bench-"))
    try:
        ca = pki.CA.create("caphv-bench")
        pair = ca.server(["127.0.0.1"])
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)

        port, health = children.free_ports(2)
        command = [
            *(sys.executable, "-P", "-m", "caphv", "webhook"),
            f"--webhook-cert-dir={folder}",
            f"--webhook-bind-address=127.0.0.1:{port}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--metrics-bind-address=0",
            "--log-level=warning",
        ]
        process = children.start(folder, "webhook", command, env={"PYTHONPATH": str(CHECKOUT)})
        asyncio.run(children.wait_ready(process, lambda: _is_ready(health), 60))
        yield Server(port, ca.certificate.decode(), psutil.Process(process.pid))
    finally:
        asyncio.run(children.stop_all(folder))
        shutil.rmtree(folder, ignore_errors=True)


async def _is_ready(port: int) -> bool:
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def measure(
    server: Server, clients: int, reviews: int, invalid: int, generators: int
) -> dict[str, Any]:
    """Send reviews; return the figures by name."""
    memory = server.memory()
    cpu = server.cpu()
    started = time.perf_counter()
    times = sorted(send_reviews(server, clients, reviews, invalid, generators))
    seconds = time.perf_counter() - started
    used = server.cpu() - cpu

    return {
        "clients": clients,
        "reviews": len(times),
        "invalid, %": invalid,
        "median, ms": round(statistics.median(times) * 1000, 2),
        "99th percentile, ms": round(times[int(len(times) * 0.99)] * 1000, 2),
        "longest, ms": round(times[-1] * 1000, 2),
        "reviews a second": round(len(times) / seconds),
        "reviews a second and core": round(len(times) / used),
        "CPU a review, ms": round(used / len(times) * 1000, 3),
        "memory before, MiB": round(memory, 1),
        "memory after, MiB": round(server.memory(), 1),
    }


def send_reviews(
    server: Server, clients: int, reviews: int, invalid: int, generators: int
) -> list[float]:
    """Send reviews from separate processes; return the seconds that each review took."""
    jobs = [
        (server.port, server.authority, client_count, review_count, invalid)
        for client_count, review_count in share_load(clients, reviews, generators)
    ]
    with multiprocessing.get_context("spawn").Pool(len(jobs)) as pool:
        return [seconds for part in pool.starmap(_send_share, jobs) for seconds in part]


def share_load(clients: int, reviews: int, generators: int) -> list[tuple[int, int]]:
    """Return the number of clients and of reviews for each process that sends."""
    # A process without a client would not send its share of the reviews.
    processes = min(clients, generators)
    client_counts = split_evenly(clients, processes)
    review_counts = split_evenly(reviews, processes)
    return list(zip(client_counts, review_counts, strict=True))


def split_evenly(total: int, parts: int) -> list[int]:
    """Split a number into parts that differ by at most one; the larger parts come first."""
    quotient, remainder = divmod(total, parts)
    return [quotient + 1] * remainder + [quotient] * (parts - remainder)


def _send_share(port: int, authority: str, clients: int, reviews: int, invalid: int) -> list[float]:
    times: list[float] = []

    async def run() -> None:
        context = ssl.create_default_context(cadata=authority)
        loop = asyncio.get_running_loop()
        questions = list(_questions(invalid))
        connections = []

        # Connect all before the first review, so that handshakes are not measured.
        for number, share in enumerate(split_evenly(reviews, clients)):
            _, client = await loop.create_connection(
                functools.partial(_Client, questions, number, share, times),
                "127.0.0.1",
                port,
                ssl=context,
                server_hostname="127.0.0.1",
            )
            connections.append(client)

        for client in connections:
            client.ask()
        await asyncio.gather(*(client.done for client in connections))

    eventloop.run(run())
    return times


class _Client(asyncio.Protocol):
    """A connection that sends `count` reviews, one after the other."""

    def __init__(
        self, questions: list[Question], first: int, count: int, times: list[float]
    ) -> None:
        self._questions = questions
        self._times = times
        self._next = first
        self._remaining = count
        self._transport: Any = None
        self._received = b""
        self._sent = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self) -> None:
        if not self._remaining:
            self._transport.close()
            self.done.set_result(None)
            return

        self._remaining -= 1
        self._next += 1
        self._question = self._questions[self._next % len(self._questions)]
        self._sent = time.perf_counter()
        self._transport.write(self._question.request)

    def data_received(self, data: bytes) -> None:
        # A client waits for each answer, so it never receives more than one at a time.
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return

        self._times.append(time.perf_counter() - self._sent)
        if not head.startswith(b"HTTP/1.1 200") or self._question.allowed not in body:
            self.done.set_exception(RuntimeError(f"unexpected answer: {self._received!r}"))
            return
        self._received = b""
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def _questions(invalid: int) -> Iterator[Question]:
    """Yield a hundred requests, of which `invalid` are refused.

    Of ten allowed ones, seven create a machine, two change one, and one creates a cluster.
    """
    allowed = [_question("HarvesterMachine", _machine(number)) for number in range(7)]
    for number in range(2):
        changed = _machine(number, labels={"changed": "yes"})
        changed["spec"]["providerID"] = "harvester://0c4f1a52-5f0e-4f0a-9d3c-2f6d1c1f7a10"
        allowed.append(_question("HarvesterMachine", changed, old=_machine(number)))
    allowed.append(_question("HarvesterCluster", _cluster()))

    # The first fault breaks a rule, the second one the schema.
    refused = []
    for fault in ({"cpu": 4000}, {"memory": "8 GB"}):
        machine = _machine(9)
        # The rule only warns about a machine that was cloned from a template, because that machine
        # is already stored.
        del machine["metadata"]["annotations"]
        machine["spec"] |= fault
        refused.append(_question("HarvesterMachine", machine, allowed=False))

    # Spread the refused requests evenly.
    allowed_cycle = itertools.cycle(allowed)
    refused_cycle = itertools.cycle(refused)
    for number in range(100):
        refused_before = number * invalid // 100
        refused_after = (number + 1) * invalid // 100
        if refused_after > refused_before:
            yield next(refused_cycle)
        else:
            yield next(allowed_cycle)


def _question(
    kind: str, obj: dict[str, Any], *, old: dict[str, Any] | None = None, allowed: bool = True
) -> Question:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
        "resource": {"group": GROUP, "version": "v1beta1", "resource": f"{kind.lower()}s"},
        "name": obj["metadata"]["name"],
        "namespace": obj["metadata"]["namespace"],
        "operation": "UPDATE" if old else "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:capi-system:capi-manager",
            "groups": ["system:authenticated"],
        },
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    body = orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request})

    # An API server sends a review in this form.
    path = path_of("validate", "v1beta1", kind)
    head = f"POST {path}?timeout=5s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
    head += f"Accept: application/json, */*\r\nContent-Length: {len(body)}\r\n\r\n"
    return Question(head.encode() + body, b'"allowed":true' if allowed else b'"allowed":false')


def _machine(number: int, labels: dict[str, str] | None = None) -> dict[str, Any]:
    image = {
        "volumeType": "image",
        "imageName": "default/ubuntu-24-04",
        "volumeSize": "40Gi",
        "bootOrder": 1,
    }
    disk = {
        "volumeType": "storageClass",
        "storageClass": "longhorn",
        "volumeSize": "100Gi",
        "bootOrder": 2,
    }

    return {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "HarvesterMachine",
        "metadata": {
            "name": f"prod-md-{number}",
            "namespace": "team-a",
            "uid": "0c4f1a52-5f0e-4f0a-9d3c-2f6d1c1f7a10",
            "labels": {"cluster.x-k8s.io/cluster-name": "prod", **(labels or {})},
            "annotations": {"cluster.x-k8s.io/cloned-from-name": "prod-md"},
        },
        "spec": {
            "cpu": 4,
            "memory": "8Gi",
            "sshUser": "ubuntu",
            "sshKeyPair": "default/ops",
            "networks": ["default/vlan100"],
            "volumes": [image, disk],
            "vmNetworkConfig": {
                "ipPoolRefs": ["pool-a", "pool-b"],
                "gateway": "172.16.0.1",
                "subnetMask": "255.255.0.0",
                "dnsServers": ["172.16.0.2"],
            },
        },
    }


def _cluster() -> dict[str, Any]:
    network = {"ipPoolRef": "pool-a", "gateway": "172.16.0.1", "subnetMask": "255.255.0.0"}

    return {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "HarvesterCluster",
        "metadata": {"name": "prod", "namespace": "team-a"},
        "spec": {
            "targetNamespace": "team-a",
            "identitySecret": {"name": "harvester", "namespace": "team-a"},
            "server": "https://harvester.example.com:6443",
            "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "lb-pool"},
            "vmNetworkConfig": network,
        },
    }


def print_figures(figures: dict[str, Any]) -> None:
    """Print a line for each figure."""
    for name, value in figures.items():
        print(f"{name:<28}{value}")
    print()


if __name__ == "__main__":
    main()
