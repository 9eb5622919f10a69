"""What the doctor checks with the shipped roles, and with the role of its page besides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caphv.api import resources
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj
from caphv.runtime.text import load_yaml_all
from commands.main import cli
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox import manifests
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.paths import CHECKOUT
from tests.support.reconciler.case import Case

pytestmark = pytest.mark.integration

SETTINGS: dict[str, Any] = {
    "http-proxy": {"httpProxy": "http://user:hunter2@proxy:3128"},
    "auto-rotate-rke2-certs": {"enable": False, "expiringInHours": 240},
    "harvester-csi-ccm-versions": {"harvester-cloud-provider": "<0.1.0"},
}


def crd() -> Obj:
    """The kind of Harvester's settings, which have their value at the top."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    names = {"kind": "Setting", "listKind": "SettingList", "plural": "settings", "singular": "setting"}
    spec = {"group": "harvesterhci.io", "scope": "Cluster", "names": names, "versions": [version]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**head, "metadata": {"name": "settings.harvesterhci.io"}, "spec": spec}


def rights_of_all() -> list[Obj]:
    """The role that Harvester v1.8.0 binds to all accounts: pkg/data/rbac.go."""
    group, name = "rbac.authorization.k8s.io", "harvester-authenticated"
    allowed = ["server-version", "default-storage-class", "harvester-csi-ccm-versions"]
    rule = {"apiGroups": ["harvesterhci.io"], "resources": ["settings"], "resourceNames": allowed, "verbs": ["get"]}
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    subject = {"apiGroup": group, "kind": "Group", "name": "system:authenticated"}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    return [
        {**head, "kind": "ClusterRole", "rules": [rule]},
        {**head, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


def documented_rights(account: str) -> list[Obj]:
    page = (CHECKOUT / "docs" / "tasks" / "doctor.md").read_text(encoding="utf-8")
    role, binding = load_yaml_all(page.partition("```yaml\n")[2].partition("```")[0])
    (subject,) = binding["subjects"]
    return [role, {**binding, "subjects": [{**subject, "name": account}]}]


async def add_settings(case: Case) -> None:
    """Create settings on Harvester, and the right that everybody has there."""
    await manifests.apply(case.harvester, [crd(), *rights_of_all()])
    for name, value in SETTINGS.items():
        obj = kinds.typed(resources.HARVESTER_SETTINGS, {"metadata": {"name": name}, "value": json.dumps(value)})
        await case.harvester.create(resources.HARVESTER_SETTINGS, obj)


@pytest.fixture
def settings(case: Case, runner: asyncio.Runner) -> Iterator[None]:
    runner.run(add_settings(case))
    yield
    # Other tests of this server find no settings.
    runner.run(case.harvester.delete(CUSTOM_RESOURCE_DEFINITIONS, "settings.harvesterhci.io"))


async def checks_of(case: Case, folder: Path) -> dict[str, Obj]:
    """The doctor's checks of the Harvester and the cluster, by id; of several the worst."""
    kubeconfig = folder / "management.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(case.environment.management.kubeconfig()))
    command = ["doctor", f"{case.name}/{case.name}", "-o", "json", "--kubeconfig", str(kubeconfig)]
    content = (await asyncio.to_thread(CliRunner().invoke, cli, command)).stdout
    assert "hunter2" not in content, "the password of the proxy"
    order = ["ok", "skipped", "warning", "error"]
    items = [item for item in json.loads(content)["items"] if item["subject"].startswith(("Harvester", "Cluster "))]
    return {item["id"]: item for item in sorted(items, key=lambda item: order.index(item["result"]))}


@pytest.mark.usefixtures("settings")
async def test_a_missing_right_is_named_and_the_documented_role_grants_it(case: Case, tmp_path: Path) -> None:
    await case.ready_cluster()
    account = Account(case.name, "caphv-system", (case.target,))
    kubeconfig = await identityaccount.create(case.harvester, account, case.environment.harvester.url)
    await case.identity(kubeconfig)

    checks = await checks_of(case, tmp_path)
    assert checks["access"]["result"] == "skipped"
    assert checks["access"]["message"] == (
        "not checked, because the account may not get settings http-proxy, auto-rotate-rke2-certs, overcommit-config, "
        "csi-driver-config, storage-network, rwx-network; list storageclasses.storage.k8s.io"
    )
    assert "proxy" not in checks

    await manifests.apply(case.harvester, documented_rights(case.name))
    checks = await checks_of(case, tmp_path)
    assert "access" not in checks
    assert {name: checks[name]["result"] for name in ("proxy", "certificate-rotation")} == {
        "proxy": "warning",
        "certificate-rotation": "ok",
    }
    await case.identity()
