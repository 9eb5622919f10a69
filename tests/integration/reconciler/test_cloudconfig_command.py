"""`caphv cloud-config`: an account for a cluster outside Cluster API, its renewal and its end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CONFIG_MAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from caphv.api.resources import VIRTUAL_MACHINES
from caphv.runtime.errors import AlreadyExists, Forbidden, NotFound, Unauthorized
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.main import cli
from reconciler.harvester.guestaccount import CLUSTER_ROLE
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.reconciler.case import Case
from tests.support.waiting import until

pytestmark = pytest.mark.integration

RULES = [{"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"], "verbs": ["get", "list", "watch"]}]


@pytest.fixture
def outside(case: Case, tmp_path: Path, runner: asyncio.Runner) -> Iterator[Case]:
    """A case without a cluster of Cluster API; its files are kubeconfigs. Its account is deleted at the end."""

    async def prepare() -> None:
        with contextlib.suppress(AlreadyExists):
            await case.harvester.create(CLUSTER_ROLES, {"metadata": {"name": CLUSTER_ROLE}, "rules": RULES})
        for name, server in (("harvester", case.environment.harvester), ("workload", case.environment.workload)):
            private_file(tmp_path / f"{name}.yaml", pki.to_yaml(server.kubeconfig()))
        # The workload cluster is shared: another test may have left its Secret there.
        with contextlib.suppress(NotFound):
            await case.workload.delete(SECRETS, "harvester-cloud-config", "kube-system")

    runner.run(prepare())
    yield case
    runner.run(caphv(case, tmp_path, "revoke", "--yes"))


async def caphv(case: Case, folder: Path, command: str, *options: str) -> Result:
    words = ["--harvester-kubeconfig", str(folder / "harvester.yaml"), "-n", case.target, *options]
    return await asyncio.to_thread(CliRunner().invoke, cli, ["cloud-config", command, case.name, *words])


async def created(case: Case, folder: Path, *options: str) -> str:
    result = await caphv(case, folder, "create", "--yes", *options)
    assert result.exit_code == 0, result.output
    return result.stdout


async def works(case: Case, kubeconfig: str) -> bool:
    """Whether a cloud config is valid and lets its bearer read VMs."""
    client = parse_kubeconfig(kubeconfig).client(name="test")
    try:
        await client.list(VIRTUAL_MACHINES, case.target)
    except (Unauthorized, Forbidden):
        return False
    finally:
        await client.close()
    return True


async def until_ended(case: Case, kubeconfig: str) -> None:
    """Wait until a token is refused: the API server caches its verdict for some seconds."""

    async def ended() -> bool:
        return not await works(case, kubeconfig)

    await until(ended, "the token is still valid", seconds=30)


def with_server(kubeconfig: str, case: Case) -> str:
    """The virtual address leads nowhere in a test."""
    config: Any = yaml.safe_load(kubeconfig)
    config["clusters"][0]["cluster"]["server"] = case.environment.harvester.url
    return yaml.safe_dump(config)


async def test_user_data_has_the_cloud_config_for_both_charts(outside: Case, tmp_path: Path) -> None:
    text = await created(outside, tmp_path)
    assert text.startswith("#cloud-config\n")
    files = yaml.safe_load(text)["write_files"]
    assert [file["path"] for file in files] == ["/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config"]
    assert {(file["permissions"], file["owner"]) for file in files} == {("0600", "root:root")}
    kubeconfig = base64.b64decode(files[0]["content"]).decode()
    context = yaml.safe_load(kubeconfig)["contexts"][0]["context"]
    assert context["namespace"] == outside.target
    assert await works(outside, with_server(kubeconfig, outside))
    client = parse_kubeconfig(with_server(kubeconfig, outside)).client(name="test")
    with pytest.raises(Forbidden):
        await client.list(SECRETS, outside.target)
    await client.close()


async def test_a_second_call_prints_the_same(outside: Case, tmp_path: Path) -> None:
    first = await created(outside, tmp_path, "-o", "kubeconfig")
    assert await created(outside, tmp_path, "-o", "kubeconfig") == first
    file = tmp_path / "cloud.yaml"
    file.write_text("")
    file.chmod(0o644)
    result = await caphv(outside, tmp_path, "create", "-o", "kubeconfig", "--file", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert (file.read_text(), file.stat().st_mode & 0o777) == (first, 0o600)


async def test_a_dry_run_creates_nothing(outside: Case, tmp_path: Path) -> None:
    result = await caphv(outside, tmp_path, "create", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"creates ServiceAccount {outside.target}/{outside.name}" in result.stderr
    with pytest.raises(NotFound):
        await outside.harvester.get(SERVICE_ACCOUNTS, outside.name, outside.target)
    result = await caphv(outside, tmp_path, "create")
    assert (result.exit_code, "use --yes or --dry-run" in result.stderr) == (2, True)


async def test_a_renewal_is_delivered_before_the_former_token_ends(outside: Case, tmp_path: Path) -> None:
    before = with_server(await created(outside, tmp_path, "-o", "kubeconfig"), outside)
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text((tmp_path / "workload.yaml").read_text().replace("https://127.", "https://127.255."))
    result = await caphv(outside, tmp_path, "renew", "--yes", "--workload-kubeconfig", str(nowhere))
    assert (result.exit_code, "the former token stays valid" in result.stderr) == (1, True)
    assert await works(outside, before)
    result = await caphv(outside, tmp_path, "renew", "--yes", "--workload-kubeconfig", str(tmp_path / "workload.yaml"))
    assert result.exit_code == 0, result.output
    secret = await outside.workload.get(SECRETS, "harvester-cloud-config", "kube-system")
    contents = {base64.b64decode(value).decode() for value in secret["data"].values()}
    assert set(secret["data"]) == {"cloud-config", "cloud-provider-config"}
    assert len(contents) == 1
    await until_ended(outside, before)
    assert await works(outside, with_server(contents.pop(), outside))
    await outside.workload.delete(SECRETS, "harvester-cloud-config", "kube-system")


async def test_without_a_delivery_both_tokens_are_valid_until_the_former_is_revoked(
    outside: Case, tmp_path: Path
) -> None:
    before = with_server(await created(outside, tmp_path, "-o", "kubeconfig"), outside)
    result = await caphv(outside, tmp_path, "renew", "--yes", "-o", "kubeconfig")
    after = with_server(result.stdout, outside)
    assert (await works(outside, before), await works(outside, after)) == (True, True)
    assert (await caphv(outside, tmp_path, "revoke", "--former", "--yes")).exit_code == 0
    await until_ended(outside, before)
    assert await works(outside, after)
    assert (await caphv(outside, tmp_path, "revoke", "--yes")).exit_code == 0
    await until_ended(outside, after)
    with pytest.raises(NotFound):
        await outside.harvester.get(CLUSTER_ROLE_BINDINGS, outside.name)
    result = await caphv(outside, tmp_path, "revoke", "--yes")
    assert (result.exit_code, "Nothing to delete" in result.stderr) == (0, True)


async def test_scripts_read_what_is_done_as_data(outside: Case, tmp_path: Path) -> None:
    account = f"{outside.target}/{outside.name}"
    (planned,) = json.loads((await caphv(outside, tmp_path, "create", "--dry-run", "-o", "json")).stdout)["items"]
    assert (planned["account"], planned["applied"], "kubeconfig" in planned) == (account, False, False)
    assert planned["changes"][0] == f"creates ServiceAccount {account}"
    (made,) = json.loads(await created(outside, tmp_path, "-o", "json"))["items"]
    assert made["applied"]
    assert made["server"] == parse_kubeconfig(made["kubeconfig"]).server
    assert await works(outside, with_server(made["kubeconfig"], outside))
    # As kube-controller-manager publishes it in each namespace.
    published = {"ca.crt": outside.environment.harvester.ca.certificate.decode()}
    metadata = {"name": "kube-root-ca.crt", "namespace": outside.target}
    await outside.harvester.create(CONFIG_MAPS, {"metadata": metadata, "data": published})
    (ending,) = yaml.safe_load(await created(outside, tmp_path, "-o", "yaml", "--expires-in", "30"))["items"]
    left = datetime.fromisoformat(ending["expires"]) - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(days=30)
    assert made["expires"] is None or made["expires"] > ending["expires"]
    delivered = ("--workload-kubeconfig", str(tmp_path / "workload.yaml"))
    result = await caphv(outside, tmp_path, "renew", "--yes", "-o", "json", *delivered)
    assert result.exit_code == 0, result.output
    assert "kubeconfig" not in json.loads(result.stdout)["items"][0]
    (revoked,) = json.loads((await caphv(outside, tmp_path, "revoke", "--yes", "-o", "json")).stdout)["items"]
    assert revoked["applied"]
    assert f"deletes ServiceAccount {outside.name}" in revoked["changes"]
    (nothing,) = json.loads((await caphv(outside, tmp_path, "revoke", "--yes", "-o", "json")).stdout)["items"]
    assert nothing == {"account": account, "changes": [], "applied": False}
    await outside.workload.delete(SECRETS, "harvester-cloud-config", "kube-system")


async def test_objects_of_others_are_left_alone(outside: Case, tmp_path: Path) -> None:
    subject = {"kind": "ServiceAccount", "name": outside.name, "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    binding = {"metadata": {"name": outside.name}, "roleRef": role, "subjects": [subject]}
    await outside.harvester.create(CLUSTER_ROLE_BINDINGS, binding)
    result = await caphv(outside, tmp_path, "create", "--yes")
    assert (result.exit_code, "binds something else; choose another name" in result.stderr) == (1, True)
    await caphv(outside, tmp_path, "revoke", "--yes")
    assert (await outside.harvester.get(CLUSTER_ROLE_BINDINGS, outside.name))["roleRef"]["name"] == "view"
    await outside.harvester.delete(CLUSTER_ROLE_BINDINGS, outside.name)
    # The account of a cluster that the provider manages.
    note = {"caphv.io/owner": "HarvesterCluster/team/shop"}
    await outside.harvester.apply(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": outside.target}}, manager="test"
    )
    metadata = {"name": outside.name, "namespace": outside.target, "annotations": note}
    await outside.harvester.create(SERVICE_ACCOUNTS, {"metadata": metadata})
    result = await caphv(outside, tmp_path, "create", "--yes")
    assert result.exit_code == 1
    assert f"ServiceAccount {outside.name} belongs to HarvesterCluster/team/shop" in result.stderr
    await caphv(outside, tmp_path, "revoke", "--yes")
    await outside.harvester.delete(SERVICE_ACCOUNTS, outside.name, outside.target)
