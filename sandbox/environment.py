"""A sandbox in one folder: etcd, API servers, Cluster API core, simulated Harvester and the provider.

Its processes outlive the command that started them. Later commands find them by the folder's `sandbox.json` and a
variable in the processes' environment.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from caphv import data
from caphv.api.object import Obj
from sandbox import clusterclass, manifests, webhooks
from sandbox.capi import core
from sandbox.capi import crds as providers
from sandbox.processes import children, network, pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Etcd, Token, private_file
from sandbox.processes.children import Process

STATE_FILE = "sandbox.json"
SIMULATOR_READY_FILE = "simulator.ready"
SIMULATOR_SECONDS = 60.0
PROVIDER_SECONDS = 30.0
# Distinct ranges, so that addresses of the two clusters are not confused.
SERVICE_RANGES = {"management": "10.96.0.0/16", "harvester": "10.53.0.0/16"}

_T = TypeVar("_T")
# (component, seconds)
Progress = Callable[[str, float], None]


class SandboxError(Exception):
    """A sandbox cannot be started in this folder; the message says why and what to do."""


@dataclass(frozen=True)
class Settings:
    """Settings of a sandbox.

    A simulated VM boots in `boot_seconds`, varied by up to the fraction `boot_spread`, and its Node registers
    `register_seconds` later. `audit` enables audit logs of the management and Harvester API servers. Without
    `provider`, only its CRDs are installed, to run a provider by hand; with `webhooks`, the provider serves its
    admission webhooks.
    """

    provider: bool = True
    webhooks: bool = False
    audit: bool = False
    boot_seconds: float = 2.0
    boot_spread: float = 0.25
    register_seconds: float = 1.0


@dataclass(frozen=True)
class State:
    """Content of `sandbox.json`; `ready` is set when `up` has completed.

    `network` is the loopback network for VM addresses; `servers` has the URL of each API server, `processes` the pids.
    """

    settings: Settings
    network: str = ""
    created: str = ""
    ready: bool = False
    servers: dict[str, str] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "State | None":
        """Read the state of a folder; None if missing or invalid."""
        try:
            raw: dict[str, Any] = json.loads((folder / STATE_FILE).read_bytes())
            return cls(**{**raw, "settings": Settings(**raw["settings"])})
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None

    def save(self, folder: Path) -> None:
        """Write the state of a folder."""
        private_file(folder / STATE_FILE, json.dumps(dataclasses.asdict(self), indent=2).encode())


def default_folder(name: str = "default") -> Path:
    """Return the folder of a named sandbox, below `XDG_STATE_HOME` (default `~/.local/state`)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "caphv" / "sandbox" / name


class Sandbox:
    """One sandbox, identified by its `folder`, which has all its files."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.folder = folder.resolve()
        self.settings = settings or Settings()

    def kubeconfig(self, server: str) -> Path:
        """Return the administrator's kubeconfig file of the API server `management` or `harvester`.

        `identity` is for identity Secrets: a token for Harvester, through the fault proxy.
        """
        return self.folder / f"{server}.kubeconfig"

    async def up(self, progress: Progress = lambda part, seconds: None) -> bool:
        """Start all parts and wait until they work; False when they run already.

        What a killed sandbox left in the folder is removed first. Raises SandboxError, ProcessError, ApiError; logs
        then stay in the folder, processes do not. Programs that have to be built block the event loop: call
        `binaries.prepare` before.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._locked():
            if self.status()["status"] == "running":
                return False
            await self._clean()
            self.folder.chmod(0o700)
            try:
                await self._start(progress)
            except BaseException:
                await children.stop_all(self.folder)
                raise
            return True

    async def down(self) -> bool:
        """Stop all processes and remove the folder; False when there was no sandbox. Raises SandboxError."""
        if not self.folder.exists() and not children.find(self.folder):
            return False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._locked():
            await self._clean()
            self.folder.rmdir()
        return True

    def status(self) -> Obj:
        """Describe it: `status` is `absent`, `running` or `broken` (parts of it are missing or still starting)."""
        state = State.load(self.folder)
        found: Obj = {"name": self.folder.name, "folder": str(self.folder), "status": "absent"}
        if state is None:
            return found
        alive = {process.pid for process in children.find(self.folder)}
        parts = [{"name": name, "pid": pid, "running": pid in alive} for name, pid in state.processes.items()]
        found["status"] = "running" if state.ready and all(part["running"] for part in parts) else "broken"
        found |= {"created": state.created, "network": state.network, "processes": parts}
        found["settings"] = dataclasses.asdict(state.settings)
        found["servers"] = [
            {"name": name, "url": url, "kubeconfig": str(self.kubeconfig(name))} for name, url in state.servers.items()
        ]
        return found

    async def _start(self, progress: Progress) -> None:
        state = State(self.settings, created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
        state.save(self.folder)
        etcd = Etcd(self.folder)
        with network.claim() as (claimed, holder):
            await _timed(progress, "etcd", etcd.start(pass_fds=[holder.fileno()]))
        token = Token(secrets.token_urlsafe(24), "caphv-identity", ADMIN[1])
        tokens = {"management": (), "harvester": (token,)}
        servers = {
            name: ApiServer(
                self.folder, name, service_range=service_range, audit=self.settings.audit, tokens=tokens[name]
            )
            for name, service_range in SERVICE_RANGES.items()
        }
        await asyncio.gather(*(_timed(progress, f"{name} API", server.start()) for name, server in servers.items()))
        for name, server in servers.items():
            private_file(self.kubeconfig(name), pki.to_yaml(server.kubeconfig()))
        private_file(self.kubeconfig("identity"), pki.to_yaml(_identity(servers["harvester"], token)))
        state = dataclasses.replace(
            state, network=str(claimed), servers={name: server.url for name, server in servers.items()}
        )
        # The simulator reads this file.
        state.save(self.folder)
        management = servers["management"]
        started = [part for part in (etcd.process, *(server.process for server in servers.values())) if part]
        started += await asyncio.gather(
            _timed(progress, "Cluster API core", self._core(management)),
            *([_timed(progress, "simulated Harvester", self._simulator())] if _exists("sandbox.simulate") else []),
        )
        if self.settings.provider:
            started.append(await _timed(progress, "provider", self._provider(management)))
        dataclasses.replace(state, ready=True, processes={part.name: part.pid for part in started}).save(self.folder)

    async def _core(self, management: ApiServer) -> Process:
        async with management.client() as client:
            crds = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
            await manifests.apply(client, [*crds, *providers.custom_resource_definitions()])
            process = await core.start(self.folder, management)
            await manifests.apply(
                client, [obj for name in clusterclass.NAMES for obj in clusterclass.objects("default", name)]
            )
        return process

    async def _simulator(self) -> Process:
        ready = self.folder / SIMULATOR_READY_FILE
        process = self._python("simulator", "sandbox.simulate", f"--dir={self.folder}")

        async def probe() -> bool:
            return ready.exists()

        await children.wait_ready(process, probe, SIMULATOR_SECONDS)
        return process

    async def _provider(self, management: ApiServer) -> Process:
        kubeconfig = self.folder / "provider.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(management.kubeconfig("caphv", ["system:masters"])))
        metrics, health = children.free_ports(2)
        process = self._python(
            "provider",
            "caphv",
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            *(webhooks.provider_options(self.folder) if self.settings.webhooks else []),
        )
        await children.wait_ready(process, lambda: _answers(f"http://127.0.0.1:{health}/readyz"), PROVIDER_SECONDS)
        return process

    def _python(self, name: str, module: str, *arguments: str) -> Process:
        """Start one of our modules, installed or not; -P keeps the sandbox's folder off sys.path."""
        path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-P", "-m", module, *arguments]
        return children.start(self.folder, name, command, env={"PYTHONPATH": path})

    async def _clean(self) -> None:
        if any(self.folder.iterdir()) and not (self.folder / STATE_FILE).exists():
            raise SandboxError(f"{self.folder} is not the folder of a sandbox: choose an empty or new folder")
        await children.stop_all(self.folder)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == STATE_FILE):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Lock the folder against other commands; the lock is on the folder itself and leaves no file."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(0.1)
            if not self.folder.exists() or not os.path.samestat(os.fstat(handle), self.folder.stat()):
                raise SandboxError(f"{self.folder} was removed by another command: try again")
            yield
        finally:
            os.close(handle)


def _identity(harvester: ApiServer, token: Token) -> Obj:
    """The kubeconfig of the fault proxy, which uses the API server's certificate on a port of its own."""
    (port,) = children.free_ports(1)
    return pki.kubeconfig(
        f"https://{harvester.address}:{port}",
        harvester.ca.certificate,
        name="harvester",
        user=token.user,
        credentials={"token": token.value},
    )


async def _timed(progress: Progress, part: str, work: Awaitable[_T]) -> _T:
    started = time.monotonic()
    result = await work
    progress(part, time.monotonic() - started)
    return result


async def _answers(url: str) -> bool:
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session, session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
