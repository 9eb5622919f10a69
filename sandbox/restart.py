"""Start single parts of a sandbox again, with the commands that `up` recorded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import psutil

from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.capi import core, manager, providers
from sandbox.guest.workload import DISK
from sandbox.processes import apiserver, children, network
from sandbox.processes.children import Process
from sandbox.state import ProcessRecord, State

SIMULATOR_READY_FILE = "simulator.ready"
PAGE = "page"
_ETCD_SOCKET = apiserver.ETCD_ENDPOINT.removeprefix("unix://")
# The time to start each part of our own. The other parts are servers written in Go.
START_SECONDS = {"provider": 30.0, "simulator": 60.0, PAGE: 30.0}
MAX_START_SECONDS = 90.0
# A simulator that was killed leaves API servers with this argument. The next one starts its own.
_WORKLOAD_SERVER = "--etcd-prefix=/workload-"

Probe = Callable[[], Awaitable[bool]]


async def restart(folder: Path, state: State, name: str) -> State:
    """Stop a part if it is running, start it again, and record its new pid.

    Raises `ProcessError`, `NoNetworkError`.
    """
    part = state.processes[name]
    await _stop(folder, name, part)

    # etcd holds the socket that claims the sandbox's network.
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(network.reclaim(state.network))] if name == "etcd" else []
        process = children.start(
            folder,
            name,
            part.command,
            env=part.env,
            pass_fds=[holder.fileno() for holder in holders],
            timer_slack=0.0 if name in START_SECONDS else children.TIMER_SLACK_SECONDS,
        )
    await children.wait_ready(
        process, probe_of(folder, state, name), START_SECONDS.get(name, MAX_START_SECONDS)
    )

    state = dataclasses.replace(state, processes={**state.processes, name: process_record(process)})
    state.save(folder)
    return state


def process_record(process: Process) -> ProcessRecord:
    """Return the record of a process in `sandbox.json`."""
    return ProcessRecord(process.pid, list(process.command), dict(process.env))


def probe_of(folder: Path, state: State, name: str) -> Probe:
    """Return the probe that checks whether a part works."""
    if name in state.servers:
        ca = (folder / name / "ca.crt").read_bytes()
        return lambda: apiserver.is_ready(state.servers[name], ca)
    if name == "core":
        return lambda: _core_is_ready(folder, older_versions=state.settings.older_versions)
    if name in providers.NAMES:
        port = int(_value(state.processes[name].command, "--health-addr=127.0.0.1:"))
        return lambda: manager.is_ready(port)
    if name == "provider":
        address = _value(state.processes[name].command, "--health-probe-bind-address=")
        return lambda: answers(f"http://{address}/readyz")
    if name == PAGE:
        return lambda: answers(page_url(state.processes[name].command))
    return lambda: _exists(folder / (SIMULATOR_READY_FILE if name == "simulator" else _ETCD_SOCKET))


async def answers(url: str) -> bool:
    """Return whether a URL answers with status 200."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(url) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _stop(folder: Path, name: str, part: ProcessRecord) -> None:
    processes = [process for process in children.find(folder) if process.pid == part.pid]
    if name == "simulator":
        (folder / SIMULATOR_READY_FILE).unlink(missing_ok=True)
        # A simulator that ends normally stops its API servers.
        await children.stop(processes)
        processes = [process for process in children.find(folder) if _is_of_guest(process, folder)]
    await children.stop(processes, grace=5)
    if name == "etcd":
        # An etcd that was killed leaves its socket, which would pass for that of the next etcd.
        (folder / _ETCD_SOCKET).unlink(missing_ok=True)


def _is_of_guest(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process is a workload API server, or an etcd with data on a guest's disk."""
    # With the whole path, because the sandbox's own path may have a folder with such a name.
    disk = str(folder / DISK)
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return any(word.startswith(_WORKLOAD_SERVER) or disk in word for word in words)
    return False


async def _core_is_ready(folder: Path, *, older_versions: bool) -> bool:
    kubeconfig = parse_kubeconfig((folder / "management.kubeconfig").read_bytes())
    client = kubeconfig.client(name="management", user_agent="caphv-sandbox")
    try:
        return await core.admits(client, older_versions=older_versions)
    finally:
        await client.close()


def page_url(command: Sequence[str]) -> str:
    """Return the address of the live page, from the command that serves it."""
    token = Path(_value(command, "--token-file=")).read_text(encoding="utf-8")
    return f"http://{_value(command, '--bind-address=')}/{token}/"


def _value(command: Sequence[str], option: str) -> str:
    (value,) = (word.removeprefix(option) for word in command if word.startswith(option))
    return value


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - a probe has this form
