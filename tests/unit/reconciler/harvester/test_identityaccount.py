"""Rights of an account on Harvester: never more than its target namespaces need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import yaml

from caphv.api.names import CLOUD_PROVIDER_ROLE, GUESTS_PREFIX
from caphv.api.object import Obj
from reconciler.harvester.accountobjects import Account, account_objects
from reconciler.harvester.identityaccount import create, existing
from reconciler.harvester.kubeconfig import kubeconfig
from tests.support.tokenserver import TokenServer

pytestmark = pytest.mark.unit

RBAC = "rbac.authorization.k8s.io/v1"


def deletions(objs: list[Obj]) -> Iterator[tuple[str, list[str] | None]]:
    """Which ClusterRoleBindings a role may delete, by its name; None stands for all of them."""
    for obj in objs:
        for rule in obj.get("rules") or ():
            if "clusterrolebindings" in rule["resources"] and {"delete", "*"} & set(rule["verbs"]):
                yield obj["metadata"]["name"], rule.get("resourceNames") or None


@pytest.mark.parametrize("former", [None, {}, {"vms": []}, {"other": ["a"]}])
def test_without_former_bindings_an_account_may_delete_none(former: Mapping[str, list[str]] | None) -> None:
    """A rule without names is one for all of them."""
    assert list(deletions(account_objects(Account("caphv", "caphv-system", ("vms",)), former=former))) == []


def test_former_bindings_of_a_target_namespace_may_be_deleted_by_name() -> None:
    account = Account("caphv", "caphv-system", ("vms", "more"))
    found = account_objects(account, former={"vms": ["b", "a"], "other": ["c"]})
    assert list(deletions(found)) == [(f"{GUESTS_PREFIX}vms", ["a", "b"])]


def binding(name: str, *namespaces: str, role: str = CLOUD_PROVIDER_ROLE, kind: str = "ServiceAccount") -> Obj:
    subjects = [{"kind": kind, "name": name, "namespace": namespace} for namespace in namespaces]
    head = {"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    return {**head, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects}


async def test_only_bindings_of_single_guests_to_the_role_of_cloud_providers_are_former_ones() -> None:
    server = TokenServer(
        binding("guest", "vms"),
        binding("admin", "vms", role="cluster-admin"),
        binding("user", "vms", kind="User"),
        binding("two", "vms", "more"),
        binding("empty"),
        binding(f"{GUESTS_PREFIX}vms", "vms"),
        binding("elsewhere", "other"),
        server="https://harvester:6443",
    )
    account = Account("caphv", "caphv-system", ("vms",))
    content = await create(cast("Any", server), account, "https://harvester:6443", lasting_token=False)
    assert content == ""
    role = server.find("ClusterRole", f"{GUESTS_PREFIX}vms")
    assert role is not None
    assert list(deletions([role])) == [(f"{GUESTS_PREFIX}vms", ["guest"])]


async def test_account_is_found_among_thousands_of_bindings_and_secrets_of_others() -> None:
    server = TokenServer()
    account = Account("caphv", "caphv-system", ("vms", "more"))
    await create(cast("Any", server), account, "https://harvester:6443", lasting_token=False)
    for number in range(600):
        name = f"other-{number}"
        head = {"apiVersion": RBAC, "kind": "RoleBinding"}
        server.put({**head, "metadata": {"name": name, "namespace": "project"}})
        server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": account.namespace}})
    server.longest_page = 500
    found = await existing(cast("Any", server), account)
    assert found is not None
    assert found.targets == ("more", "vms")


def test_a_kubeconfig_lists_its_fields_in_the_order_of_others() -> None:
    text = kubeconfig(server="https://harvester:6443", ca="CA", token="t", namespace="vms")
    assert list(yaml.safe_load(text)) == [
        "apiVersion",
        "kind",
        "clusters",
        "users",
        "contexts",
        "current-context",
    ]
