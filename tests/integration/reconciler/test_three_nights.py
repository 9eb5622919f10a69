"""The page of three nights consists of commands, which run here as they are written there."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import NAMESPACES, Obj, key_of, uid_of
from commands.main import cli
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support import doccommands
from tests.support.paths import CHECKOUT
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready
from tests.support.reconciler.environment import Environment, elsewhere

pytestmark = pytest.mark.integration

PAGE = (CHECKOUT / "docs" / "tasks" / "three-nights.md").read_text(encoding="utf-8")


@pytest.fixture
def sides(environment: Environment) -> Iterator[tuple[Environment, Environment]]:
    """A management cluster to lose in the last night, with its provider, and one on which none runs yet."""
    with elsewhere(environment, "substituted") as lost, elsewhere(environment, "substitute") as substitute:
        asyncio.run(lost.provider.start())
        yield lost, substitute


class Night:
    """The commands of one night, run one by one with the names of a case."""

    def __init__(self, title: str, case: Case, folder: Path, pool: str = "") -> None:
        (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
        blocks = re.findall(r"^```sh\n(.*?)^```", section, re.S | re.M)
        called = (words for block in blocks for words in doccommands.commands(block))
        self.left = [words[1:] for words in called if words[0] == "caphv"]
        self._names = {
            "team-a/production": f"{case.name}/{case.name}",
            "team-a/harvester-identity": f"{case.name}/identity",
            "team-a": case.name,
            "machines": pool,
            "harvester.yaml": str(folder / "harvester.yaml"),
            "backups/substituted": str(folder / "backup"),
            "backups/2026-11-22": str(folder / "backup"),
        }
        self._folder = folder
        private_file(folder / "harvester.yaml", pki.to_yaml(case.environment.harvester.kubeconfig()))
        self.use(case.environment.management)

    def use(self, management: ApiServer) -> None:
        """Have the next commands run on this management cluster."""
        private_file(self._folder / "management.yaml", pki.to_yaml(management.kubeconfig()))

    async def next(self, *begin: str) -> Result:
        """Run the next command, which begins with these words."""
        words = self.left.pop(0)
        assert tuple(words[: len(begin)]) == begin, words
        words = [self._names.get(word, word) for word in words]
        return await asyncio.to_thread(
            CliRunner().invoke, cli, [*words, "--kubeconfig", str(self._folder / "management.yaml")]
        )


async def test_the_pool_is_exhausted(case: Case, tmp_path: Path) -> None:
    pool = await case.pool("machines", 1, 1)
    night = Night("The pool is exhausted", case, tmp_path, pool)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    us = uid_of(await case.management.get(NAMESPACES, "kube-system"))[:8]
    await case.reserve(pool, f"{case.subnet}.1", f"{case.name}/gone")
    marks = {"metadata": {"annotations": {f"addresses.caphv.io/{case.subnet}.1": us}}}
    await case.harvester.patch(kinds.IP_POOLS, pool, "", marks)
    await case.create_machine("waiting")
    await case.until(HARVESTER_MACHINES, "waiting", is_false("VMIPAllocated", "VMIPPoolExhausted"))

    result = await night.next("status")
    assert (result.exit_code, "caphv pools audit" in result.output) == (1, True), result.output
    result = await night.next("pools", "audit")
    assert (result.exit_code, f"{case.name}/gone" in result.output) == (1, True), result.output
    result = await night.next("pools", "release")
    assert (result.exit_code, f"release {case.subnet}.1" in result.output) == (0, True), result.output
    assert (await night.next("pools", "release")).exit_code == 0
    await case.until(HARVESTER_MACHINES, "waiting", is_ready)
    assert "caphv pools audit" not in (await night.next("status")).output
    assert night.left == []


async def test_the_token_expired_on_a_friday(case: Case, tmp_path: Path) -> None:
    night = Night("The token expired on a Friday", case, tmp_path)
    options = ["--name", case.name, "--target-namespace", case.target, "-o", "kubeconfig"]
    words = ["identity", "create", "--harvester-kubeconfig", str(tmp_path / "harvester.yaml"), *options]
    made = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert made.exit_code == 0, made.output
    await case.cluster()
    await case.identity(made.stdout)
    await case.ready()
    await case.ready_machine("before")
    await case.identity(expired(made.stdout))
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed")
    )

    result = await night.next("identity", "list")
    assert (result.exit_code, "expired" in result.output) == (1, True), result.output
    assert (await night.next("identity", "rotate")).exit_code == 0
    result = await night.next("identity", "rotate")
    assert (result.exit_code, "the new token works" in result.output) == (0, True), result.output
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    assert (await night.next("identity", "list")).exit_code == 0
    assert "IdentityExpired" not in (await night.next("status")).output
    await case.ready_machine("after")
    assert night.left == []
    await case.identity()


async def test_the_management_cluster_is_lost(
    environment: Environment, sides: tuple[Environment, Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, there = sides
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", "correct horse battery")
    old = Case(lost, environment.next_case())
    await old.open()
    night = Night("The management cluster is lost", old, tmp_path)
    await old.ready_cluster()
    await old.ready_machine("kept")
    before = await running_vms(old)
    result = await night.next("backup")
    assert result.exit_code == 0, result.output
    await old.close()
    await lost.provider.kill()
    await lost.management.stop()

    night.use(there.management)
    result = await night.next("restore")
    assert result.exit_code == 0, result.output
    result = await night.next("restore")
    assert (result.exit_code, "Restored" in result.output) == (0, True), result.output
    await there.provider.start()
    new = old.on(there)
    await new.open(create_namespace=False)
    await new.ready()  # the core's part
    await new.until(HARVESTER_MACHINES, "kept", is_ready)
    assert await running_vms(new) == before
    assert f"{new.name}" in (await night.next("status")).output
    assert night.left == []
    assert await new.remove() == []
    await new.close()


async def running_vms(case: Case) -> dict[str, str]:
    """VMs and their running instances, by what changes when one is replaced or restarted."""
    found: dict[str, str] = {}
    for resource in (kinds.VIRTUAL_MACHINES, kinds.INSTANCES):
        objs: list[Obj] = (await case.harvester.list(resource, case.target))["items"]
        found |= {f"{resource.kind} {key_of(obj)}": uid_of(obj) for obj in objs}
    return found


def expired(kubeconfig: str) -> str:
    """The kubeconfig with a token of the same account whose time is over."""
    config = yaml.safe_load(kubeconfig)
    user = config["users"][0]["user"]
    head, payload, signature = user["token"].split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    claims |= {"iat": 1_700_000_000, "exp": 1_700_003_600}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    user["token"] = f"{head}.{payload}.{signature}"
    return str(yaml.safe_dump(config))
