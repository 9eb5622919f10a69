"""Commands on servers in memory: each connection leads to the server of its name."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.runtime import client as client_module
from caphv.runtime import clientconfig
from caphv.runtime.kubeconfig import Kubeconfig
from commands.main import cli
from tests.support.clusters import Builder
from tests.support.memoryserver import MemoryServer
from tests.support.overview import KINDS
from tests.support.tokenserver import TokenServer


class Servers:
    """A management cluster, a Harvester and a workload cluster for commands of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.management = MemoryServer(server="https://management:6443")
        served = [("kubevirt.io/v1", "VirtualMachine")]
        self.harvester = TokenServer(served=served, server="https://harvester:6443")
        self.workload = MemoryServer(server="https://workload:6443")
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"}))
        self._folder = folder
        self._opened: Counter[str] = Counter()
        monkeypatch.setattr(clientconfig, "own_configuration", self._configuration)
        monkeypatch.setattr(client_module, "ApiClient", self._client)
        monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: self._open(self.harvester))
        monkeypatch.chdir(folder)

    def caphv(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run a command; `HARVESTER` stands for the option with Harvester's kubeconfig.

        Its connections have to be closed at its end.
        """
        given = [argument for each in arguments for argument in self._expanded(each)]
        self._opened.clear()
        servers = (self.management, self.harvester, self.workload)
        before = [server.closings for server in servers]
        result = CliRunner().invoke(cli, given, prog_name="caphv", input=stdin)
        for server, closings in zip(servers, before, strict=True):
            assert server.closings - closings >= self._opened[server.server], f"a connection to {server.server} is open"
        return result

    def put(self, builder: Builder) -> None:
        """Store all objects of a cluster on the management cluster, as they are now."""
        for kind, resource in KINDS.items():
            self.management.serve(resource.api_version, kind)
        objects = builder.objects()
        lists = (objects.clusters, objects.machines, objects.machine_deployments, objects.control_planes)
        for obj in (obj for objs in (*lists, objects.harvester_clusters, objects.harvester_machines) for obj in objs):
            self.management.put({"apiVersion": KINDS[obj["kind"]].api_version, **obj})

    def data(self, *arguments: str) -> Any:
        """Run a command that succeeds, and return the items of its JSON."""
        result = self.caphv(*arguments, "-o", "json")
        assert result.exit_code in (0, 1, 3), result.output
        return json.loads(result.stdout)["items"]

    def item(self, *arguments: str) -> Any:
        """Run a command that succeeds, and return the only item of its JSON."""
        (item,) = self.data(*arguments)
        return item

    def _expanded(self, argument: str) -> list[str]:
        return ["--harvester-kubeconfig", str(self.kubeconfig)] if argument == "HARVESTER" else [argument]

    async def _configuration(self, *_: object) -> Any:
        return SimpleNamespace(tls=SimpleNamespace(get_ca_certs=lambda **_: []))

    def _client(self, connection: object, *, name: str, **_: object) -> MemoryServer:
        assert not inspect.iscoroutine(connection), "a connection that was not awaited"
        servers = {"management": self.management, "harvester": self.harvester, "workload": self.workload}
        return self._open(servers[name])

    def _open(self, server: MemoryServer) -> MemoryServer:
        self._opened[server.server] += 1
        return server
