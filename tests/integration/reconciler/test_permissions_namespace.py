"""Roles in the one namespace of its clusters, and those without optional rights, are enough for the provider."""

from __future__ import annotations

import pytest

from caphv.api.object import SECRETS, Obj
from caphv.runtime.errors import Forbidden
from sandbox import manifests
from sandbox.processes import children
from tests.support.permissions import asked, in_namespace
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.restricted import ACCOUNT, BASE, Restricted, manager, provider
from tests.support.reconciler.uses import live, may_give_cloud_configs

pytestmark = pytest.mark.integration

LIMITED = "system:serviceaccount:caphv-system:limited"
REDUCED = "system:serviceaccount:caphv-system:reduced"


@pytest.mark.usefixtures("runner")
async def test_roles_in_one_namespace_are_enough_for_its_clusters(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.install(monkeypatch)
    (port,) = children.free_ports(1)
    management = restricted.management
    case = Case(restricted, 1, "limited")
    await case.open()
    try:
        await manifests.apply(case.management, limited_to(case.name))
        await may_give_cloud_configs(case, ACCOUNT)
        async with provider(management, port, account=LIMITED, namespace=case.name):
            await live(case)
            await elsewhere(case)
            assert await case.remove() == []
    finally:
        await case.close()
    assert asked(management, LIMITED, "forbid") == set()
    client = manager(management, LIMITED)
    with pytest.raises(Forbidden):
        await client.list(SECRETS, "kube-system")
    await client.close()


@pytest.mark.usefixtures("runner")
async def test_without_the_optional_right_only_the_finalizer_of_identities_is_missing(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.install(monkeypatch)
    (port,) = children.free_ports(1)
    case = Case(restricted, 4, "reduced")
    await case.open()
    try:
        await manifests.apply(case.management, without_identity_rights(limited_to(case.name, REDUCED)))
        async with provider(restricted.management, port, account=REDUCED, namespace=case.name):
            await case.ready_cluster()
            found = await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
            assert "may not patch Secrets" in condition_of(found, "IdentityUpToDate")["message"]
            assert is_true("IdentityUpToDate")(found)
            assert await case.remove() == []
    finally:
        await case.close()


def without_identity_rights(roles: list[Obj]) -> list[Obj]:
    """Roles without the optional rights for the finalizer of identities."""
    for role in roles:
        for rule in role.get("rules") or ():
            if rule.get("resources") == ["secrets"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != "patch"]
        if "rules" in role:
            new = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}
            role["rules"] = [rule for rule in role["rules"] if rule != new]
    return roles


async def elsewhere(case: Case) -> None:
    """The identity is in another namespace for a while, which is reported and not tried."""
    for namespace in ("somewhere", case.name):
        reference = {"name": "identity", "namespace": namespace}
        await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"identitySecret": reference}})
        message = f"reads Secrets in namespace {case.name} only"
        wrong = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", message)
        await case.until(HARVESTER_CLUSTERS, case.name, wrong if namespace == "somewhere" else is_ready)


def limited_to(namespace: str, account: str = LIMITED) -> list[Obj]:
    """The shipped rights as component `one-namespace` has them, bound to an account of their own."""
    found = in_namespace(BASE, namespace)
    for obj in found:
        if "subjects" in obj and obj["metadata"].get("namespace") != namespace:
            obj["metadata"]["name"] += f"-{account.rpartition(':')[2]}"
        for subject in obj.get("subjects", ()):
            subject["name"] = account.rpartition(":")[2]
    return found
