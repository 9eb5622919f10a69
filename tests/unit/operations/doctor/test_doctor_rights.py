"""Which rights an account needs on Harvester, and which of them it lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest

from caphv import data
from caphv.runtime.client import ApiClient
from operations.doctor.rights import Right, describe, find_denied, needed_rights, optional_flags

CREATE_VM = Right("vms", "kubevirt.io", "virtualmachines", "create")
VM_STATE = Right("vms", "subresources.kubevirt.io", "virtualmachines/start", "update")
PATCH_BINDING = Right("", "rbac.authorization.k8s.io", "clusterrolebindings", "patch", "caphv-guests:vms")


class Harvester:
    """Grants the rights to create VMs, and remembers what it was asked."""

    def __init__(self) -> None:
        self.attributes: list[dict[str, str]] = []

    async def create(self, _: Any, review: Any) -> Any:
        asked = review["spec"]["resourceAttributes"]
        self.attributes.append({name: value for name, value in asked.items() if value})
        return {"status": {"allowed": asked["resource"] == "virtualmachines" and asked["verb"] == "create"}}


async def test_rights_that_harvester_does_not_grant_are_denied() -> None:
    client = Harvester()
    assert await find_denied(cast(ApiClient, client), [CREATE_VM, VM_STATE, PATCH_BINDING]) == [VM_STATE, PATCH_BINDING]
    assert client.attributes == [
        {"namespace": "vms", "group": "kubevirt.io", "resource": "virtualmachines", "verb": "create"},
        {
            "namespace": "vms",
            "group": "subresources.kubevirt.io",
            "resource": "virtualmachines",
            "subresource": "start",
            "verb": "update",
        },
        {
            "group": "rbac.authorization.k8s.io",
            "resource": "clusterrolebindings",
            "verb": "patch",
            "name": "caphv-guests:vms",
        },
    ]


def test_verbs_on_one_resource_are_described_together() -> None:
    delete = Right("vms", "kubevirt.io", "virtualmachines", "delete")
    secrets = Right("vms", "", "secrets", "get")
    assert list(describe([delete, CREATE_VM, secrets, PATCH_BINDING])) == [
        "patch clusterrolebindings.rbac.authorization.k8s.io caphv-guests:vms in all namespaces",
        "get secrets in namespace vms",
        "create, delete virtualmachines.kubevirt.io in namespace vms",
    ]


@pytest.mark.parametrize("field", ["cloudConfig", "updateCloudProviderConfig"])
def test_accounts_of_guests_are_needed_for_every_kind_of_cloud_config(field: str) -> None:
    assert PATCH_BINDING in needed_rights([{"spec": {"targetNamespace": "vms", field: {"secretName": "c"}}}])
    assert PATCH_BINDING not in needed_rights([{"spec": {"targetNamespace": "vms"}}])


def test_a_cluster_without_a_spec_needs_what_all_need() -> None:
    assert needed_rights([{}]) == needed_rights([])


def test_what_the_shipped_role_calls_optional_is_not_needed() -> None:
    text = (data.folder("deploy/harvester") / "clusterroles.yaml").read_text(encoding="utf-8")
    optional = re.findall(r"# Optional:.*\n- apiGroups: \[(.*)\]\n  resources: \[(.*)\]\n", text)
    assert len(optional) >= 3
    needed = {(right.group, right.resource) for right in needed_rights([])}
    assert needed.isdisjoint(optional)


IMPORT = Right("pictures", "harvesterhci.io", "virtualmachineimages", "create")
BACK_UP = Right("vms", "harvesterhci.io", "virtualmachinebackups", "create")


@pytest.mark.parametrize(
    ("rights", "flags"),
    [
        ([], ""),
        ([IMPORT, replace(IMPORT, verb="get")], " --import-images pictures"),
        ([replace(IMPORT, namespace="vms"), IMPORT], " --import-images pictures --import-images vms"),
        ([BACK_UP], " --back-up-vms"),
        ([IMPORT, BACK_UP], " --import-images pictures --back-up-vms"),
        ([replace(IMPORT, group="g", resource="ippools"), BACK_UP], " --create-ip-pools --back-up-vms"),
        ([replace(IMPORT, group="g", resource="ippools", verb="patch")], ""),
    ],
)
def test_a_remedy_grants_only_the_optional_rights_that_are_missing(rights: list[Right], flags: str) -> None:
    assert optional_flags(rights) == flags
