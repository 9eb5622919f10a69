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
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from caphv import data
from caphv.api.object import Obj
from sandbox import clusterclass, manifests, rights, webhooks
from sandbox.capi import core, crds, manager, providers
from sandbox.processes import children, network, pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Etcd, Token, private_file
from sandbox.processes.children import Process
from sandbox.restart import PAGE, SIMULATOR_READY_FILE, START_SECONDS, answers, page_url, record, restart
from sandbox.state import STATE_FILE, SandboxSettings, State

# The kubeconfig of the simulation itself, which no fault affects.
DIRECT = "harvester-direct"
# Distinct ranges, so that addresses of the two clusters are not confused.
SERVICE_RANGES = {"management": "10.96.0.0/16", "harvester": "10.53.0.0/16"}

_T = TypeVar("_T")
# (component, seconds)
Progress = Callable[[str, float], None]


class SandboxError(Exception):
    """A sandbox cannot be started in this folder; the message says why and what to do."""


def default_folder(name: str = "default") -> Path:
    """Return the folder of a named sandbox, below `XDG_STATE_HOME` (default `~/.local/state`)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "caphv" / "sandbox" / name


class Sandbox:
    """One sandbox, identified by its `folder`, which has all its files."""

    def __init__(self, folder: Path, settings: SandboxSettings | None = None) -> None:
        self.folder = folder.resolve()
        self.settings = settings or SandboxSettings()

    def kubeconfig(self, server: str) -> Path:
        """Return the administrator's kubeconfig file of the API server `management` or `harvester`.

        `identity` is for identity Secrets. Like `harvester`, it leads through the fault proxy; `harvester-direct` does
        not.
        """
        return self.folder / f"{server}.kubeconfig"

    async def up(self, progress: Progress = lambda part, seconds: None, *, fresh: bool = False) -> list[str]:
        """Start all parts that are not running and wait until they work; returns their names.

        Parts of a broken sandbox start again with their data; with `fresh` everything is removed first. A sandbox whose
        first start did not complete is started afresh.

        Raises SandboxError, ProcessError, ApiError; after a failed first start only logs stay in the folder. Programs
        that have to be built block the event loop: call `binaries.prepare` before.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._locked():
            state = State.load(self.folder)
            if state is not None and state.ready and not fresh:
                return await self._restart(state, self._missing(state), progress)
            await self._clean()
            self.folder.chmod(0o700)
            try:
                return await self._start(progress)
            except BaseException:
                await children.stop_all(self.folder)
                raise

    async def restart(self, part: str) -> None:
        """Stop one part and start it again, with its data. Raises SandboxError, ProcessError."""
        async with self._locked():
            state = State.load(self.folder)
            if state is None or part not in state.processes:
                parts = ", ".join(state.processes if state else ()) or "none"
                raise SandboxError(f"the sandbox has no part {part!r}; its parts: {parts}")
            await self._restart(state, [part], lambda _part, _seconds: None)

    def log(self, part: str) -> Path:
        """Return the log of a part. Raises SandboxError if there is none."""
        file = children.log_file(self.folder, part)
        if not file.is_file():
            names = ", ".join(sorted(path.stem for path in file.parent.glob("*.log"))) or "none"
            raise SandboxError(f"no log of {part!r}; existing: {names}")
        return file

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
        missing = self._missing(state)
        parts = [
            {"name": name, "pid": part.pid, "running": name not in missing} for name, part in state.processes.items()
        ]
        found["status"] = "running" if state.ready and not missing else "broken"
        found |= {"created": state.created, "network": state.network, "processes": parts}
        if PAGE in state.processes:
            found["page"] = page_url(state.processes[PAGE].command)
        found["settings"] = dataclasses.asdict(state.settings)
        found["servers"] = [
            {"name": name, "url": url, "kubeconfig": str(self.kubeconfig(name))} for name, url in state.servers.items()
        ]
        return found

    def page(self) -> str:
        """Address of the live page, empty without one."""
        state = State.load(self.folder)
        part = state.processes.get(PAGE) if state else None
        return page_url(part.command) if part else ""

    def missing(self) -> list[str]:
        """Names of the recorded parts that are not running, in the order of their start."""
        state = State.load(self.folder)
        return self._missing(state) if state else []

    def _missing(self, state: State) -> list[str]:
        alive = {process.pid for process in children.find(self.folder)}
        return [name for name, part in state.processes.items() if part.pid not in alive]

    async def _restart(self, state: State, names: list[str], progress: Progress) -> list[str]:
        for name in names:
            try:
                state = await _timed(progress, name, restart(self.folder, state, name))
            except network.NoNetworkError as error:
                raise SandboxError(
                    f"{error}: stop that one, or start this one with --fresh, which removes it"
                ) from None
        return names

    async def _start(self, progress: Progress) -> list[str]:
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        state = State(self.settings, core.api_version(), created=created)
        state.save(self.folder)
        etcd = Etcd(self.folder)
        with network.claim() as (claimed, holder):
            await _timed(progress, "etcd", etcd.start(pass_fds=[holder.fileno()]))
        # Bearer tokens, because the fault proxy cannot forward client certificates.
        issued = {
            "identity": Token.new(rights.IDENTITY),
            "harvester": Token.new(*ADMIN),
        }
        management_users = [Token.new(*manager.USER), Token.new(rights.PROVIDER, rights.PROVIDER_GROUPS)]
        tokens = {"management": management_users, "harvester": list(issued.values())}
        servers = {
            name: ApiServer(
                self.folder, name, service_range=service_range, audit=self.settings.audit, tokens=tokens[name]
            )
            for name, service_range in SERVICE_RANGES.items()
        }
        await asyncio.gather(*(_timed(progress, f"{name} API", server.start()) for name, server in servers.items()))
        for name, kubeconfig in _kubeconfigs(servers["management"], servers["harvester"], issued).items():
            private_file(self.kubeconfig(name), pki.to_yaml(kubeconfig))
        state = dataclasses.replace(
            state, network=str(claimed), servers={name: server.url for name, server in servers.items()}
        )
        # The simulator reads this file.
        state.save(self.folder)
        management = servers["management"]
        started = [part for part in (etcd.process, *(server.process for server in servers.values())) if part]
        async with servers["harvester"].client() as client:
            await manifests.apply(client, rights.of_identity())
        started += await asyncio.gather(
            _timed(progress, "Cluster API core", self._core(management, state.core)),
            *([_timed(progress, "simulated Harvester", self._simulator())] if _exists("sandbox.simulate") else []),
        )
        started += await self._cluster_api_providers(management, state.core, progress)
        if self.settings.provider:
            started.append(await _timed(progress, "provider", self._provider(management)))
        if self.settings.page:
            started.append(await _timed(progress, "live page", self._page()))
        parts = {process.name: record(process) for process in started}
        dataclasses.replace(state, ready=True, processes=parts).save(self.folder)
        return list(parts)

    async def _core(self, management: ApiServer, version: str) -> Process:
        async with management.client() as client:
            ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
            simulated = crds.custom_resource_definitions(version, without=providers.real_distributions(self.settings))
            older = self.settings.older_versions
            kinds = manifests.movable([*ours, *simulated])
            kinds = [crd if older else manager.stored_version_only(crd) for crd in kinds]
            await manifests.apply(client, [*kinds, *rights.of_provider()])
            return await core.start(self.folder, management, older_versions=older)

    async def _cluster_api_providers(self, management: ApiServer, version: str, progress: Progress) -> list[Process]:
        """Start the real providers, and then make the ClusterClasses, which their webhooks admit."""
        older = self.settings.older_versions
        started = await asyncio.gather(
            *(
                _timed(
                    progress,
                    found.name,
                    manager.start(self.folder, management, found, manager.is_ready, older_versions=older),
                )
                for found in providers.managers(self.settings)
            )
        )
        async with management.client() as client:
            await manifests.apply(client, clusterclass.shipped("default", version))
        return started

    async def _simulator(self) -> Process:
        ready = self.folder / SIMULATOR_READY_FILE
        process = self._python("simulator", "sandbox.simulate", f"--dir={self.folder}")

        async def probe() -> bool:
            return ready.exists()

        await children.wait_ready(process, probe, START_SECONDS["simulator"])
        return process

    async def _provider(self, management: ApiServer) -> Process:
        kubeconfig = self.folder / "provider.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(management.kubeconfig(rights.PROVIDER, rights.PROVIDER_GROUPS)))
        metrics, health = children.free_ports(2)
        process = self._python(
            "provider",
            "caphv",
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--allow-harvester-cidr=127.0.0.0/8",
            "--leader-elect",
            *(webhooks.provider_options(self.folder) if self.settings.webhooks else []),
        )
        await children.wait_ready(
            process, lambda: answers(f"http://127.0.0.1:{health}/readyz"), START_SECONDS["provider"]
        )
        return process

    async def _page(self) -> Process:
        (port,) = children.free_ports(1)
        where = f"--kubeconfig={self.kubeconfig('management')}"
        token = self.folder / "page.token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(24), encoding="utf-8")
        place = (f"--bind-address=127.0.0.1:{port}", f"--token-file={token}")
        options = ("status", "--all-namespaces", "--serve", where, *place)
        process = self._python(PAGE, "caphv", *options)
        await children.wait_ready(process, lambda: answers(page_url(process.command)), START_SECONDS[PAGE])
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


def _kubeconfigs(management: ApiServer, harvester: ApiServer, tokens: dict[str, Token]) -> dict[str, Obj]:
    """All kubeconfigs by name; those with tokens lead through the fault proxy, which has the server's certificate."""
    (port,) = children.free_ports(1)
    proxied = {
        name: pki.kubeconfig(
            f"https://{harvester.address}:{port}",
            harvester.ca.certificate,
            name="harvester",
            user=token.user,
            credentials={"token": token.value},
        )
        for name, token in tokens.items()
    }
    return {"management": management.kubeconfig(), DIRECT: harvester.kubeconfig(), **proxied}


async def _timed(progress: Progress, part: str, work: Awaitable[_T]) -> _T:
    started = time.monotonic()
    result = await work
    progress(part, time.monotonic() - started)
    return result


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
