"""`caphv identity rotate`: the clusters keep their connection, and the former token ends last."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import NAMESPACES, ROLE_BINDINGS, SECRETS
from caphv.runtime.errors import NotFound, Unauthorized
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.main import cli
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of
from tests.support.waiting import until

pytestmark = pytest.mark.integration


async def caphv(case: Case, folder: Path, *arguments: str) -> Result:
    """Run a command as an administrator of both clusters; `HARVESTER` names the kubeconfig of Harvester."""
    files = {"management": case.environment.management, "harvester": case.environment.harvester}
    for name, server in files.items():
        private_file(folder / f"{name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
    words = [str(folder / "harvester.kubeconfig") if word == "HARVESTER" else word for word in arguments]
    if words[1] != "create":
        words += ["--kubeconfig", str(folder / "management.kubeconfig")]
    return await asyncio.to_thread(CliRunner().invoke, cli, words)


async def with_account(case: Case, folder: Path, *options: str) -> str:
    """Have the cluster use an account of its own; answers its kubeconfig."""
    await case.harvester.apply(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": case.target}}, manager="test"
    )
    words = ("identity", "create", "--harvester-kubeconfig", "HARVESTER", "--name", case.name, "-o", "kubeconfig")
    result = await caphv(case, folder, *words, "--target-namespace", case.target, *options)
    assert result.exit_code == 0, result.output
    await case.cluster()
    await case.identity(result.stdout)
    await case.ready()
    return result.stdout


async def rotate(case: Case, folder: Path, *options: str) -> Result:
    words = ("identity", "rotate", f"{case.name}/identity", "--harvester-kubeconfig", "HARVESTER", *options)
    return await caphv(case, folder, *words)


async def stored(case: Case) -> str:
    secret = await case.management.get(SECRETS, "identity", case.name)
    return base64.b64decode(secret["data"]["kubeconfig"]).decode()


async def works(kubeconfig: str) -> bool:
    client = parse_kubeconfig(kubeconfig).client(name="test")
    try:
        await client.get(NAMESPACES, "kube-system")
    except Unauthorized:
        return False
    finally:
        await client.close()
    return True


async def until_ended(kubeconfig: str) -> None:
    """Wait until a token is refused: the API server caches its verdict for some seconds."""

    async def ended() -> bool:
        return not await works(kubeconfig)

    await until(ended, "the token is still valid", seconds=30)


async def tokens(case: Case) -> set[str]:
    """Names of the Secrets with tokens of the account."""
    found = (await case.harvester.list(SECRETS, "caphv-system"))["items"]
    return {obj["metadata"]["name"] for obj in found if obj["metadata"]["name"].startswith(f"{case.name}-token")}


async def test_a_rotation_replaces_the_token_and_ends_the_former_one(case: Case, tmp_path: Path) -> None:
    before = await with_account(case, tmp_path)
    since = condition_of(await case.get(HARVESTER_CLUSTERS, case.name), "HarvesterConnectionReady")
    result = await rotate(case, tmp_path, "--yes")
    assert result.exit_code == 0, result.output
    after = await stored(case)
    await until_ended(before)
    assert await works(after)
    assert await tokens(case) == {f"{case.name}-token-2"}
    # The cluster was connected all the time, and nothing but the token has changed.
    assert condition_of(await case.get(HARVESTER_CLUSTERS, case.name), "HarvesterConnectionReady") == since
    for text in (before, after):
        assert yaml.safe_load(text)["users"][0]["user"]["token"] not in result.output
    assert yaml.safe_load(before)["clusters"] == yaml.safe_load(after)["clusters"]
    await case.ready_machine("after")


async def test_an_interrupted_rotation_is_completed_and_not_repeated(case: Case, tmp_path: Path) -> None:
    before = await with_account(case, tmp_path)
    assert (await rotate(case, tmp_path, "--yes", "--keep-old")).exit_code == 0
    # As if the command had ended right after it wrote the Secret.
    note = {"metadata": {"annotations": {"caphv.io/previous-token": f"{case.name}-token"}}}
    await case.management.patch(SECRETS, "identity", case.name, note)
    middle = await stored(case)
    assert await works(before)
    result = await rotate(case, tmp_path, "--yes")
    assert result.exit_code == 0, result.output
    assert "completes an interrupted rotation" in result.output
    assert await stored(case) == middle
    await until_ended(before)
    secret = await case.management.get(SECRETS, "identity", case.name)
    assert "caphv.io/previous-token" not in (secret["metadata"].get("annotations") or {})


async def test_a_token_that_does_not_work_is_not_written(case: Case, tmp_path: Path) -> None:
    before = await with_account(case, tmp_path)
    binding = f"caphv-account-namespace:caphv-system:{case.name}"
    await case.harvester.delete(ROLE_BINDINGS, binding, case.target)
    result = await rotate(case, tmp_path, "--yes")
    assert result.exit_code == 1
    assert "the former token stays in use: the account may not" in result.output
    assert f"virtualmachines.kubevirt.io in namespace {case.target}" in result.output
    assert (await stored(case), await works(before)) == (before, True)
    await case.identity()  # with which the cluster can be deleted


async def test_a_dry_run_changes_nothing_and_says_all(case: Case, tmp_path: Path) -> None:
    before = await with_account(case, tmp_path)
    result = await rotate(case, tmp_path, "--dry-run", "-o", "json")
    (found,) = json.loads(result.stdout)["items"]
    assert (found["deletes"], found["applied"], found["seconds"]) == (f"{case.name}-token", False, 0)
    assert found["clusters"] == [f"{case.name}/{case.name}"]
    assert (await stored(case), await tokens(case)) == (before, {f"{case.name}-token"})
    result = await rotate(case, tmp_path)
    assert (result.exit_code, "use --yes or --dry-run" in result.output) == (2, True)


async def test_a_token_that_ends_is_followed_by_one_of_the_same_lifetime(case: Case, tmp_path: Path) -> None:
    before = await with_account(case, tmp_path, "--expires-in", "30")
    result = await rotate(case, tmp_path, "--yes")
    assert result.exit_code == 0, result.output
    assert "valid for 30 days" in result.output
    assert await stored(case) != before
    assert await works(await stored(case))
    assert await tokens(case) == set()


async def test_credentials_of_another_kind_name_the_way_to_an_account(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    result = await rotate(case, tmp_path, "--yes")
    assert result.exit_code == 2
    assert "caphv identity create --harvester-kubeconfig FILE --target-namespace NAMESPACE" in result.output
    assert f"--secret-namespace {case.name} --secret-name identity | kubectl apply -f -" in result.output
    with pytest.raises(NotFound):
        await case.management.get(SECRETS, "identity-2", case.name)
