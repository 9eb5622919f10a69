"""A sandbox in one folder, with etcd, API servers, Cluster API core, Harvester and the provider.

Its processes outlive the command that started them. Later commands find them by the folder's
`sandbox.json` and a variable in the processes' environment.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import fcntl
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from caphv import data
from caphv.api.names import SANDBOX_ANNOTATION
from caphv.api.object import Obj
from sandbox import clusterclass, manifests, rights, webhooks
from sandbox.capi import core, crds, manager, providers
from sandbox.guest import kubelet, rancher, workload
from sandbox.processes import children, network, pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Etcd, Token, private_file
from sandbox.processes.children import Process
from sandbox.restart import (
    PAGE,
    SIMULATOR_READY_FILE,
    START_SECONDS,
    answers,
    page_url,
    process_record,
    restart,
)
from sandbox.state import STATE_FILE, SandboxSettings, State

# The name of the simulation's own kubeconfig, which no fault affects.
DIRECT = "harvester-direct"
# The ranges are distinct, so that the addresses of the two clusters are not confused.
SERVICE_RANGES = {"management": "10.96.0.0/16", "harvester": "10.53.0.0/16"}
# The ports on which control plane guests of the shipped classes listen.
GUEST_PORTS = (workload.PORT, rancher.RKE2_PORT, kubelet.PORT)

_T = TypeVar("_T")
# (component, seconds)
Progress = Callable[[str, float], None]


class SandboxError(Exception):
    """A sandbox cannot be started in this folder. The message has the reason and advice."""


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

        `identity` is for identity Secrets. Like `harvester`, it connects through the fault proxy.
        `harvester-direct` bypasses the proxy.
        """
        return self.folder / f"{server}.kubeconfig"

    async def up(
        self, progress: Progress = lambda part, seconds: None, *, fresh: bool = False
    ) -> list[str]:
        """Start all parts that are not running, and wait until they work; return their names.

        Parts of a broken sandbox start again with their data. With `fresh`, everything is removed
        first, as in a sandbox whose first start did not complete.

        Raises `SandboxError`, `NoNetworkError`, `ProcessError`, `ApiError`. After a failed first
        start, nothing runs, and the folder stays for its logs. Call `binaries.prepare` first,
        because building a program blocks the event loop.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._lock():
            state = State.load(self.folder)
            if state is not None and state.ready and not fresh:
                return await self._restart(state, self._missing(state), progress)

            if state is None and State.exists(self.folder) and not fresh:
                raise SandboxError(
                    f"{self.folder / STATE_FILE} comes from another release of caphv: use that "
                    "release, or start with --fresh, which removes the sandbox"
                )
            await self._clean()
            self.folder.chmod(0o700)
            try:
                return await self._start(progress)
            except BaseException:
                await children.stop_all(self.folder)
                raise

    async def restart(self, part: str) -> None:
        """Restart one part with its data. Raises `SandboxError`, `ProcessError`."""
        async with self._lock():
            state = State.load(self.folder)
            if state is None or part not in state.processes:
                parts = ", ".join(state.processes if state else ()) or "none"
                raise SandboxError(f"the sandbox has no part {part!r}; its parts: {parts}")
            await self._restart(state, [part], lambda _part, _seconds: None)

    def log(self, part: str) -> Path:
        """Return the log of a part. Raises `SandboxError` if there is none."""
        file = children.log_file(self.folder, part)
        if not file.is_file():
            names = ", ".join(sorted(path.stem for path in file.parent.glob("*.log"))) or "none"
            raise SandboxError(f"no log of {part!r}; existing: {names}")
        return file

    async def down(self) -> bool:
        """Stop all processes and remove the folder; return False if there is no sandbox.

        Raises `SandboxError`.
        """
        if not self.folder.exists() and not children.find(self.folder):
            return False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._lock():
            await self._clean()
            self.folder.rmdir()
        return True

    def status(self) -> Obj:
        """Describe the sandbox.

        `status` is `absent`, `running`, or `broken` if parts are missing or still starting.
        """
        state = State.load(self.folder)
        description: Obj = {
            "name": self.folder.name,
            "folder": str(self.folder),
            "status": "absent",
        }
        if state is None:
            return description

        missing = self._missing(state)
        parts = [
            {"name": name, "pid": part.pid, "running": name not in missing}
            for name, part in state.processes.items()
        ]
        description["status"] = "running" if state.ready and not missing else "broken"
        description |= {"created": state.created, "network": state.network, "processes": parts}

        if PAGE in state.processes:
            description["page"] = page_url(state.processes[PAGE].command)
        description["settings"] = dataclasses.asdict(state.settings)
        description["servers"] = [
            {"name": name, "url": url, "kubeconfig": str(self.kubeconfig(name))}
            for name, url in state.servers.items()
        ]
        return description

    def page(self) -> str:
        """Return the address of the live page, empty without one."""
        state = State.load(self.folder)
        part = state.processes.get(PAGE) if state else None
        return page_url(part.command) if part else ""

    def missing(self) -> list[str]:
        """Return the recorded parts that are not running, in the order of their start."""
        state = State.load(self.folder)
        return self._missing(state) if state else []

    def _missing(self, state: State) -> list[str]:
        alive = {process.pid for process in children.find(self.folder)}
        return [name for name, part in state.processes.items() if part.pid not in alive]

    async def _restart(self, state: State, names: list[str], progress: Progress) -> list[str]:
        for name in names:
            try:
                state = await _report_time(progress, name, restart(self.folder, state, name))
            except network.NoNetworkError as error:
                raise SandboxError(
                    f"{error}: stop that one, or start this one with --fresh, which removes it"
                ) from None
        return names

    async def _start(self, progress: Progress) -> list[str]:
        # Write the state first, because `_clean` refuses a folder without it after a failed start.
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        state = State(self.settings, core.api_version(), created=created)
        state.save(self.folder)

        etcd = Etcd(self.folder)
        with network.claim(GUEST_PORTS) as (loopback, holder):
            await _report_time(progress, "etcd", etcd.start(pass_fds=[holder.fileno()]))
        servers = await self._start_servers(progress)
        state = dataclasses.replace(
            state,
            network=str(loopback),
            servers={name: server.url for name, server in servers.items()},
        )
        # The simulator reads this file.
        state.save(self.folder)

        management = servers["management"]
        harvester = servers["harvester"]
        async with harvester.client() as client:
            await manifests.apply(client, rights.identity_objects())
        started = [etcd.process, *(server.process for server in servers.values())]
        started += await asyncio.gather(
            _report_time(progress, "Cluster API core", self._start_core(management, state)),
            _report_time(progress, "simulated Harvester", self._start_simulator()),
        )
        started += await self._start_cluster_api_providers(management, progress)
        await self._create_cluster_classes(management, state.core)

        if self.settings.provider:
            work = self._start_provider(management)
            started.append(await _report_time(progress, "provider", work))
        if self.settings.page:
            started.append(await _report_time(progress, "live page", self._start_page()))

        parts = {process.name: process_record(process) for process in started if process}
        dataclasses.replace(state, ready=True, processes=parts).save(self.folder)
        return list(parts)

    async def _start_servers(self, progress: Progress) -> dict[str, ApiServer]:
        """Start the API servers and write all kubeconfigs."""
        # Use bearer tokens, because the fault proxy cannot forward client certificates.
        harvester_tokens = {
            "identity": Token.new(rights.IDENTITY),
            "harvester": Token.new(*ADMIN),
        }
        tokens = {
            "management": [
                Token.new(*manager.USER),
                Token.new(rights.PROVIDER, rights.PROVIDER_GROUPS),
            ],
            "harvester": list(harvester_tokens.values()),
        }

        servers = {
            name: ApiServer(
                self.folder,
                name,
                service_range=service_range,
                audit=self.settings.audit,
                tokens=tokens[name],
            )
            for name, service_range in SERVICE_RANGES.items()
        }
        await asyncio.gather(
            *(
                _report_time(progress, f"{name} API", server.start())
                for name, server in servers.items()
            )
        )

        # A server chooses its port when it starts.
        kubeconfigs = _kubeconfigs(servers["management"], servers["harvester"], harvester_tokens)
        for name, kubeconfig in kubeconfigs.items():
            private_file(self.kubeconfig(name), pki.to_yaml(kubeconfig))
        return servers

    async def _start_core(self, management: ApiServer, state: State) -> Process:
        """Apply all CRDs, then start the core, which needs them."""
        older = self.settings.older_versions
        ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
        simulated = crds.custom_resource_definitions(
            state.core, without=providers.real_distributions(self.settings)
        )
        kinds = manifests.with_move_label([*ours, *simulated])
        kinds = [crd if older else manager.stored_version_only(crd) for crd in kinds]

        async with management.client() as client:
            await manifests.apply(client, [*kinds, *self._provider_objects()])
            return await core.start(self.folder, management, older_versions=older)

    def _provider_objects(self) -> list[Obj]:
        """Return the objects of the provider; remedies know by its namespace who runs it."""
        objects = rights.provider_objects()
        for obj in objects:
            if obj["kind"] == "Namespace" and self.settings.provider:
                annotations = obj["metadata"].setdefault("annotations", {})
                annotations[SANDBOX_ANNOTATION] = str(self.folder)
        return objects

    async def _start_cluster_api_providers(
        self, management: ApiServer, progress: Progress
    ) -> list[Process]:
        """Start the real bootstrap and control plane providers."""
        older = self.settings.older_versions
        return await asyncio.gather(
            *(
                _report_time(
                    progress,
                    provider.name,
                    manager.start(
                        self.folder, management, provider, manager.is_ready, older_versions=older
                    ),
                )
                for provider in providers.managers(self.settings)
            )
        )

    async def _create_cluster_classes(self, management: ApiServer, version: str) -> None:
        # Create the classes after the real providers, whose webhooks must admit the templates.
        async with management.client() as client:
            await manifests.apply(client, clusterclass.shipped_objects(version))

    async def _start_simulator(self) -> Process:
        ready = self.folder / SIMULATOR_READY_FILE
        process = self._python("simulator", "sandbox.simulate", f"--dir={self.folder}")

        async def probe() -> bool:
            return ready.exists()

        await children.wait_ready(process, probe, START_SECONDS["simulator"])
        return process

    async def _start_provider(self, management: ApiServer) -> Process:
        kubeconfig = self.folder / "provider.kubeconfig"
        private_file(
            kubeconfig, pki.to_yaml(management.kubeconfig(rights.PROVIDER, rights.PROVIDER_GROUPS))
        )

        metrics, health = children.free_ports(2)
        process = self._python(
            "provider",
            "sandbox.provider",
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--allow-harvester-cidr=127.0.0.0/8",
            "--leader-elect",
            *(webhooks.provider_options(self.folder) if self.settings.webhooks else []),
        )

        await children.wait_ready(
            process,
            lambda: answers(f"http://127.0.0.1:{health}/readyz"),
            START_SECONDS["provider"],
        )
        return process

    async def _start_page(self) -> Process:
        token = self.folder / "page.token"
        # Set the mode first, because no other user may open the file before the token is in it.
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(24), encoding="utf-8")

        (port,) = children.free_ports(1)
        process = self._python(
            PAGE,
            "caphv",
            "status",
            "--all-namespaces",
            "--serve",
            f"--kubeconfig={self.kubeconfig('management')}",
            f"--bind-address=127.0.0.1:{port}",
            f"--token-file={token}",
        )
        await children.wait_ready(
            process, lambda: answers(page_url(process.command)), START_SECONDS[PAGE]
        )
        return process

    def _python(self, name: str, module: str, *arguments: str) -> Process:
        """Start one of our modules, installed or not."""
        path = os.pathsep.join(
            [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        # -P keeps the sandbox's folder off sys.path.
        command = [sys.executable, "-P", "-m", module, *arguments]
        return children.start(self.folder, name, command, env={"PYTHONPATH": path})

    async def _clean(self) -> None:
        if any(self.folder.iterdir()) and not State.exists(self.folder):
            raise SandboxError(
                f"{self.folder} is not the folder of a sandbox: choose an empty or new folder"
            )

        await children.stop_all(self.folder)
        # If this is interrupted, the next start must not repair what is left. A full disk is no
        # reason to keep the files.
        if state := State.load(self.folder):
            with contextlib.suppress(OSError):
                dataclasses.replace(state, ready=False, processes={}).save(self.folder)
        # Remove the state last, because a folder without it is refused and cannot be cleaned again.
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == STATE_FILE):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    @contextlib.asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        """Lock the folder against other commands."""
        # Lock the folder itself, because `down` would remove a lock file with the folder.
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(0.1)

            # Another command may have removed the folder while this one waited.
            if not self.folder.exists() or not os.path.samestat(
                os.fstat(handle), self.folder.stat()
            ):
                raise SandboxError(f"{self.folder} was removed by another command: try again")
            yield
        finally:
            os.close(handle)


def _kubeconfigs(
    management: ApiServer, harvester: ApiServer, tokens: dict[str, Token]
) -> dict[str, Obj]:
    """Build all kubeconfigs by name.

    Kubeconfigs with tokens connect through the fault proxy, which has the certificate of
    Harvester's server.
    """
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


async def _report_time(progress: Progress, part: str, work: Awaitable[_T]) -> _T:
    started = time.monotonic()
    result = await work
    progress(part, time.monotonic() - started)
    return result
