"""The account for the provider on Harvester: what would be applied, without a Harvester."""

from pathlib import Path
from typing import cast

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from commands.identity import identity
from reconciler.harvester.accountobjects import Account, account_objects
from reconciler.harvester.identityaccount import create
from reconciler.harvester.identitysecrets import identity_secret
from reconciler.harvester.kubeconfig import api_server

pytestmark = pytest.mark.unit


def bindings(account: Account) -> set[tuple[str, str, str]]:
    """Kind, namespace and role of all bindings."""
    found = [obj for obj in account_objects(account) if obj["kind"].endswith("Binding") and obj.get("subjects")]
    assert all(obj["subjects"][0]["name"] == account.name for obj in found)
    return {(obj["kind"], obj["metadata"].get("namespace", ""), obj["roleRef"]["name"]) for obj in found}


def test_without_target_namespaces_the_rights_to_machines_hold_everywhere() -> None:
    assert bindings(Account("caphv", "caphv-system")) == {
        ("ClusterRoleBinding", "", "caphv-account"),
        ("ClusterRoleBinding", "", "caphv-account-namespace"),
        ("RoleBinding", "caphv-system", "caphv-account:caphv"),
        ("RoleBinding", "harvester-system", "caphv-identity"),
    }


def test_with_target_namespaces_machines_are_touched_there_only() -> None:
    account = Account("caphv", "caphv-system", ("a", "b"))
    for role in ("caphv-account-namespace", "caphv-account-guests"):
        assert {place for _, place, found in bindings(account) if found == role} == {"a", "b"}
    assert {found for kind, _, found in bindings(account) if kind == "ClusterRoleBinding"} == {
        "caphv-account",
        "caphv-guests:a",
        "caphv-guests:b",
    }
    assert {obj["metadata"]["name"] for obj in account_objects(account) if obj["kind"] == "Namespace"} == {
        "caphv-system",
        "a",
        "b",
    }


@pytest.mark.parametrize("targets", [(), ("a", "b")])
def test_cluster_wide_rights_delete_nothing_and_issue_no_tokens(targets: tuple[str, ...]) -> None:
    """But for IPPools on request, and what an account for all namespaces needs for machines."""
    account = Account("caphv", "caphv-system", targets)
    for role, rule in bound(account, "ClusterRoleBinding"):
        assert "serviceaccounts/token" not in rule["resources"], role
        if "clusterrolebindings" in rule["resources"] and not {"patch", "delete"}.isdisjoint(rule["verbs"]):
            assert rule["resourceNames"], role
        if "delete" in rule["verbs"]:
            assert role == "caphv-account-namespace", role
            assert not targets, role
    pools = Account("caphv", "caphv-system", targets, pools=True)
    assert ("ClusterRoleBinding", "", "caphv-account-pools") in bindings(pools)


@pytest.mark.parametrize("targets", [(), ("a", "b")])
def test_images_are_imported_into_named_namespaces_only(targets: tuple[str, ...]) -> None:
    def places(account: Account) -> list[tuple[str, str]]:
        return [(kind, place) for kind, place, role in bindings(account) if role == "caphv-account-images"]

    assert places(Account("caphv", "caphv-system", targets)) == []
    images = Account("caphv", "caphv-system", targets, images=("default", "images"))
    assert sorted(places(images)) == [("RoleBinding", "default"), ("RoleBinding", "images")]
    rules = [rule for role, rule in bound(images, "RoleBinding") if role == "caphv-account-images"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"create"}


@pytest.mark.parametrize(("targets", "places"), [((), [""]), (("a", "b"), ["a", "b"])])
def test_vms_are_backed_up_on_request_where_the_account_may_change_them(
    targets: tuple[str, ...], places: list[str]
) -> None:
    def backups(account: Account) -> list[str]:
        return sorted(place for _, place, role in bindings(account) if role == "caphv-account-backups")

    assert backups(Account("caphv", "caphv-system", targets)) == []
    assert backups(Account("caphv", "caphv-system", targets, backups=True)) == places


def test_tokens_are_issued_in_target_namespaces_or_for_the_account_itself() -> None:
    for targets in ((), ("a", "b")):
        found = [
            (place, rule.get("resourceNames"))
            for place, rule in bound(Account("caphv", "caphv-system", targets), "RoleBinding", place=True)
            if "serviceaccounts/token" in rule["resources"]
        ]
        assert found == ([(name, None) for name in targets] or [("caphv-system", ["caphv"])])


class Harvester:
    """Bindings that exist, and what is applied."""

    budget = None

    def __init__(self, *bindings: Obj) -> None:
        self.bindings = list(bindings)
        self.applied: list[Obj] = []

    async def list(self, *_: object, **__: object) -> Obj:
        return {"metadata": {}, "items": self.bindings}

    async def apply(self, _resource: object, obj: Obj, *, manager: str) -> None:
        assert manager
        self.applied.append(obj)


def deletable(applied: list[Obj], namespace: str) -> list[str]:
    """Return the bindings that the account may delete for the guests of a namespace."""
    of_guests = ("ClusterRole", f"caphv-guests:{namespace}")
    (role,) = [obj for obj in applied if (obj["kind"], obj["metadata"]["name"]) == of_guests]
    return [name for rule in role["rules"] if "delete" in rule["verbs"] for name in rule["resourceNames"]]


def bound_guest(name: str, *subjects: Obj | None, role: str = "harvesterhci.io:cloudprovider") -> Obj:
    account = {"kind": "ServiceAccount", "name": name, "namespace": "a"}
    return {"metadata": {"name": name}, "roleRef": {"name": role}, "subjects": list(subjects or (account,))}


async def test_account_may_delete_the_bindings_of_single_guests_that_exist() -> None:
    elsewhere = {"kind": "ServiceAccount", "name": "x", "namespace": "elsewhere"}
    harvester = Harvester(
        bound_guest("production"),
        bound_guest("demo"),
        bound_guest("far", elsewhere),
        bound_guest("two", elsewhere, elsewhere),
        bound_guest("person", {"kind": "User", "name": "x"}),
        bound_guest("admins", role="cluster-admin"),
        bound_guest("caphv-guests:a"),
        {**bound_guest("without a subject"), "subjects": None},
    )
    account = Account("caphv", "caphv-system", ("a", "b"))
    assert await create(cast("ApiClient", harvester), account, "https://h", lasting_token=False) == ""
    assert deletable(harvester.applied, "a") == ["demo", "production"]
    assert deletable(harvester.applied, "b") == []
    # Without a token that never expires, no Secret is made for one.
    assert not [obj for obj in harvester.applied if obj["kind"] == "Secret"]


def test_former_bindings_of_guests_may_be_deleted_by_name() -> None:
    account = Account("caphv", "caphv-system", ("a", "b"))
    former = {"a": ["production", "demo"], "elsewhere": ["other"]}
    (role,) = [
        obj
        for obj in account_objects(account, former=former)
        if (obj["kind"], obj["metadata"]["name"]) == ("ClusterRole", "caphv-guests:a")
    ]
    names = {verb: rule["resourceNames"] for rule in role["rules"] for verb in rule["verbs"]}
    assert names == {
        "patch": ["caphv-guests:a"],
        "bind": ["harvesterhci.io:cloudprovider"],
        "delete": ["demo", "production"],
    }


def bound(account: Account, kind: str, *, place: bool = False) -> list[tuple[str, Obj]]:
    """Rules of the roles that bindings of a kind refer to, each with its role, or with the namespace of the binding."""
    found = [obj for obj in account_objects(account) if obj["kind"] == kind]
    # The binding of guests is not the account's.
    found = [obj for obj in found if obj.get("subjects")]
    roles = {(obj["kind"], obj["metadata"]["name"]): obj for obj in account_objects(account) if "rules" in obj}
    return [
        (obj["metadata"]["namespace"] if place else obj["roleRef"]["name"], rule)
        for obj in found
        for rule in roles[obj["roleRef"]["kind"], obj["roleRef"]["name"]]["rules"]
    ]


def test_no_role_grants_everything_of_anything() -> None:
    roles = [obj for obj in account_objects(Account("caphv", "caphv-system")) if obj["kind"] in ("ClusterRole", "Role")]
    assert len(roles) == 8
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://192.0.2.1:6443", "https://192.0.2.1:6443"),
        ("https://192.0.2.1/k8s/clusters/local", "https://192.0.2.1:6443"),
        ("https://harvester.example.com:443/k8s/clusters/local/", "https://harvester.example.com:6443"),
        ("https://[2001:db8::1]/k8s/clusters/local", "https://[2001:db8::1]:6443"),
    ],
)
def test_server_of_the_identity_is_the_api_server_itself(url: str, expected: str) -> None:
    assert api_server(url) == expected


def test_identity_secret_moves_with_its_clusters() -> None:
    secret = identity_secret("harvester-identity", "team-a", "apiVersion: v1\n")
    assert secret["metadata"]["labels"] == {"clusterctl.cluster.x-k8s.io/move": ""}
    assert secret["stringData"] == {"kubeconfig": "apiVersion: v1\n"}


def test_dry_run_prints_what_would_be_applied(tmp_path: Path) -> None:
    (tmp_path / "admin.yaml").write_text("{}")
    arguments = [
        "create",
        "--harvester-kubeconfig",
        str(tmp_path / "admin.yaml"),
        "--dry-run",
        "--target-namespace",
        "a",
    ]
    result = CliRunner().invoke(identity, arguments)
    assert result.exit_code == 0
    assert list(yaml.safe_load_all(result.output)) == account_objects(Account("caphv", "caphv-system", ("a",)))


@pytest.mark.parametrize("name", ["Team", "../a", "a b", ""])
def test_wrong_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "admin.yaml").write_text("{}")
    arguments = [
        "create",
        "--harvester-kubeconfig",
        str(tmp_path / "admin.yaml"),
        "--dry-run",
        "--target-namespace",
        name,
    ]
    assert CliRunner().invoke(identity, arguments).exit_code == 2


def test_unreadable_kubeconfig_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "admin.yaml").write_text("{}")
    result = CliRunner().invoke(identity, ["create", "--harvester-kubeconfig", str(tmp_path / "admin.yaml")])
    assert result.exit_code == 1
    assert "cannot read the kubeconfig" in result.output
