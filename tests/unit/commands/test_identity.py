"""`caphv identity`: accounts on Harvester that keep what they have, identities that expire, and finalizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api import identities
from caphv.api.names import LEASE, identity_finalizer
from caphv.api.object import ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, Key, Obj
from caphv.runtime.errors import Forbidden, NotFound, Unreachable
from tests.support.commandservers import Servers
from tests.support.tokenserver import CA, encoded
from webhooks.crossobject import check

pytestmark = pytest.mark.unit

CREATE = ("identity", "create", "HARVESTER")
FINALIZER = identity_finalizer()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.harvester.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    return found


def token_of(text: str) -> str:
    """Return the token in a printed identity Secret."""
    secret = yaml.safe_load(text)
    assert secret["metadata"]["labels"] == {"clusterctl.cluster.x-k8s.io/move": ""}
    config = yaml.safe_load(secret["stringData"]["kubeconfig"])
    return str(config["users"][0]["user"]["token"])


def create(servers: Servers, *more: str, exit_code: int = 0) -> Any:
    result = servers.caphv(*CREATE, *more)
    assert result.exit_code == exit_code, result.output
    return result


def targets(servers: Servers, role: str = "caphv-account-namespace") -> set[str]:
    """Namespaces in which the account has a role."""
    found = servers.harvester.stored(ROLE_BINDINGS)
    return {obj["metadata"]["namespace"] for obj in found if obj["roleRef"]["name"] == role}


def test_account_is_created_with_a_lasting_token_that_stays(servers: Servers) -> None:
    first = create(servers, "--target-namespace", "vms")
    assert token_of(first.stdout) == "token of caphv-token"
    assert yaml.safe_load(first.stdout)["metadata"]["name"] == "harvester-identity"
    assert [*yaml.safe_load(first.stdout)] == ["apiVersion", "kind", "metadata", "type", "stringData"]
    assert targets(servers) == targets(servers, "caphv-account-guests") == {"vms"}
    assert servers.harvester.find("ServiceAccount", "caphv", "caphv-system") is not None
    assert create(servers, "--target-namespace", "vms").stdout == first.stdout
    assert servers.harvester.closed


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_wide_account_gets_a_warning_outside_the_output(servers: Servers, more: tuple[str, ...]) -> None:
    result = create(servers, *more)
    assert "delete VMs in all namespaces" in result.stderr
    assert "delete VMs" not in result.stdout
    assert "delete VMs" not in create(servers, "--target-namespace", "vms", *more).stderr


@pytest.mark.parametrize("option", ["--name", "--namespace", "--target-namespace"])
@pytest.mark.parametrize("name", ["Team", "team_a", "team.a", "täm", ""])
def test_names_that_harvester_would_refuse_are_refused(servers: Servers, option: str, name: str) -> None:
    result = create(servers, option, name, exit_code=2)
    assert f"{name!r}: must consist of lower case letters" in result.stderr
    assert servers.harvester.requests == []


def test_existing_account_keeps_its_target_namespaces(servers: Servers) -> None:
    create(servers, "--target-namespace", "a", "--target-namespace", "b")
    result = create(servers)
    assert "keeps its target namespaces (a, b)" in result.stderr
    assert "keeps" not in result.stdout
    assert targets(servers) == {"a", "b"}
    assert servers.harvester.find("ClusterRoleBinding", "caphv-account-namespace:caphv-system:caphv") is None
    create(servers, "--target-namespace", "c")
    assert targets(servers) == {"a", "b", "c"}
    create(servers, "--all-namespaces")
    assert servers.harvester.find("ClusterRoleBinding", "caphv-account-namespace:caphv-system:caphv") is not None


def test_secret_of_a_lasting_token_keeps_its_name(servers: Servers) -> None:
    create(servers)
    (token,) = servers.harvester.stored(SECRETS)
    rotated = {
        **token,
        "metadata": {**token["metadata"], "name": "caphv-token-2"},
        "data": {"token": encoded("second")},
    }
    rotated["data"]["ca.crt"] = encoded(CA)
    former = servers.harvester.find("Secret", "caphv-token", "caphv-system")
    assert former is not None
    former["metadata"]["name"] = "another"
    former["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "another"}
    servers.harvester.put(rotated)
    # Only the Secret that was renamed by hand is in the way, and is not the account's.
    assert token_of(create(servers).stdout).startswith("token of caphv-token")


def test_account_without_a_lasting_token_gets_one_on_request_only(servers: Servers) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "caphv", "namespace": "caphv-system"}}
    servers.harvester.put(account)
    result = create(servers, "--target-namespace", "vms")
    assert result.stdout == ""
    assert servers.harvester.stored(SECRETS) == []
    assert targets(servers) == {"vms"}
    assert "has no lasting token: add --expires-in DAYS" in result.stderr
    create(servers, "--target-namespace", "vms", "--file", "identity.yaml", exit_code=1)
    assert token_of(create(servers, "--lasting-token").stdout) == "token of caphv-token"


def test_token_that_expires_is_issued_at_each_call(servers: Servers) -> None:
    tokens = [token_of(create(servers, "--expires-in", "90").stdout) for _ in range(2)]
    assert tokens == ["expiring-1", "expiring-2"]
    assert [seconds for _, seconds in servers.harvester.issued] == [90 * 24 * 3600] * 2
    assert servers.harvester.stored(SECRETS) == []


@pytest.mark.parametrize("published", [True, False])
def test_identity_trusts_the_ca_that_harvester_publishes(servers: Servers, published: bool) -> None:
    if published:
        metadata = {"name": "kube-root-ca.crt", "namespace": "caphv-system"}
        servers.harvester.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": CA}})
    config = yaml.safe_load(create(servers, "--expires-in", "1", "-o", "kubeconfig").stdout)
    cluster = config["clusters"][0]["cluster"]
    assert cluster.get("certificate-authority-data", "") == (encoded(CA) if published else "")


def test_server_is_that_of_harvester_or_the_one_that_is_given(servers: Servers) -> None:
    servers.harvester.server = "https://rancher.example.com/k8s/clusters/local"
    config = yaml.safe_load(create(servers, "-o", "kubeconfig").stdout)
    assert config["clusters"][0]["cluster"]["server"] == "https://rancher.example.com:6443"
    config = yaml.safe_load(create(servers, "-o", "kubeconfig", "--server", "https://other:6443").stdout)
    assert config["clusters"][0]["cluster"]["server"] == "https://other:6443"


def test_dry_run_prints_the_objects_and_asks_no_harvester(servers: Servers) -> None:
    servers.harvester.errors["list RoleBinding"] = Unreachable("asked")
    result = create(servers, "--dry-run", "--target-namespace", "vms", "--create-ip-pools")
    objs = [obj for obj in yaml.safe_load_all(result.stdout) if obj]
    assert {"ServiceAccount", "Secret", "ClusterRole"} <= {obj["kind"] for obj in objs}
    assert [*objs[0]][:2] == ["apiVersion", "kind"], "manifests begin as people write them"
    assert servers.harvester.requests == []
    result = create(servers, "--dry-run", "--expires-in", "3")
    assert "Secret" not in {obj["kind"] for obj in yaml.safe_load_all(result.stdout)}


@pytest.mark.parametrize(
    "arguments", [("--all-namespaces", "--target-namespace", "vms"), ("--lasting-token", "--expires-in", "3")]
)
def test_options_that_exclude_each_other_are_refused(servers: Servers, arguments: tuple[str, ...]) -> None:
    create(servers, *arguments, exit_code=2)
    assert servers.harvester.requests == []


def test_refused_account_is_an_error(servers: Servers) -> None:
    servers.harvester.errors["apply ServiceAccount"] = Forbidden(403, "Forbidden", "no")
    create(servers, exit_code=1)
    assert servers.harvester.stored(SERVICE_ACCOUNTS) == []


# Finalizers


def secret(name: str, *finalizers: str, namespace: str = "team") -> Obj:
    metadata = {"name": name, "namespace": namespace, "finalizers": list(finalizers)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def lease(seconds: float, holder: str = "caphv-0", name: str = LEASE) -> Obj:
    renewed = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**head, "metadata": {"name": name, "namespace": "caphv-system"}, "spec": spec}


REMOVE = ("identity", "remove-finalizers", "-A")


def finalizers(servers: Servers) -> dict[str, list[str]]:
    found = servers.management.stored(SECRETS)
    return {obj["metadata"]["name"]: obj["metadata"]["finalizers"] for obj in found}


def test_finalizers_of_all_providers_are_removed_and_no_others(servers: Servers) -> None:
    for obj in (
        secret("one", FINALIZER, "example.com/keep"),
        secret("two", identity_finalizer("blue")),
        secret("three", "example.com/keep"),
    ):
        servers.management.put(obj)
    before = finalizers(servers)
    assert servers.caphv(*REMOVE, "--dry-run").exit_code == 0
    assert servers.caphv(*REMOVE).exit_code == 2, "it needs a confirmation"
    assert finalizers(servers) == before
    done = servers.caphv(*REMOVE, "--yes")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "removed the finalizers of 2 Secrets")
    assert finalizers(servers) == {"one": ["example.com/keep"], "two": [], "three": ["example.com/keep"]}
    assert servers.management.requests == ["patch Secret one", "patch Secret two"]


def test_only_secrets_of_a_namespace_are_changed_when_it_is_given(servers: Servers) -> None:
    servers.management.put(secret("one", FINALIZER))
    servers.management.put(secret("two", FINALIZER, namespace="other"))
    assert servers.caphv("identity", "remove-finalizers", "-n", "other", "--yes").exit_code == 0
    assert finalizers(servers) == {"one": [FINALIZER], "two": []}


@pytest.mark.parametrize(
    ("error", "exit_code"), [(Forbidden(403, "Forbidden", "no"), 1), (NotFound(404, "NotFound", "deleted"), 0)]
)
def test_secret_that_cannot_be_changed_is_an_error_unless_it_was_deleted(
    servers: Servers, error: Forbidden | NotFound, exit_code: int
) -> None:
    servers.management.put(secret("one", FINALIZER))
    servers.management.put(secret("two", FINALIZER))
    servers.management.errors["patch Secret one"] = error
    result = servers.caphv(*REMOVE, "--yes", "-o", "json")
    assert result.exit_code == exit_code
    assert finalizers(servers)["two"] == []
    applied = [item["applied"] for item in json.loads(result.stdout)["items"]]
    assert applied == [exit_code == 0, True]


def test_nothing_to_remove_is_fine(servers: Servers) -> None:
    servers.management.put(secret("three", "example.com/keep"))
    assert servers.caphv(*REMOVE).exit_code == 0


@pytest.mark.parametrize(
    ("found", "runs"),
    [
        (lambda: lease(1), True),
        (lambda: lease(1, name=f"blue-{LEASE}"), True),
        (lambda: lease(60), False),
        (lambda: lease(1, holder=""), False),
        (lambda: lease(1, name="another"), False),
        (lambda: {**lease(1), "spec": {"holderIdentity": "a", "renewTime": "soon", "leaseDurationSeconds": 15}}, False),
        (lambda: {**lease(1), "spec": None}, False),
    ],
    ids=["held", "of a watch filter", "expired", "released", "of another", "unreadable", "empty"],
)
def test_provider_that_runs_is_named_because_it_sets_the_finalizers_again(
    servers: Servers, found: Callable[[], Obj], runs: bool
) -> None:
    servers.management.put(secret("one", FINALIZER))
    servers.management.put(found())
    result = servers.caphv(*REMOVE, "--dry-run")
    assert ("a provider is running" in result.stderr) is runs


# Identities


def harvester_cluster(name: str, identity: str) -> Obj:
    spec = {"identitySecret": {"namespace": "team", "name": identity}, "targetNamespace": "vms"}
    metadata = {"name": name, "namespace": "team"}
    return {
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "HarvesterCluster",
        "metadata": metadata,
    } | {"spec": spec}


def test_identities_are_listed_and_a_missing_one_is_wrong(servers: Servers) -> None:
    config = yaml.safe_load(create(servers, "-o", "kubeconfig").stdout)
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    content = yaml.safe_dump(config)
    found = {**secret("good"), "data": {"kubeconfig": encoded(content)}}
    servers.management.put(found)
    servers.management.put(harvester_cluster("shop", "good"))
    result = servers.caphv("identity", "list", "-A", "-o", "json")
    assert result.exit_code == 0, result.output
    (row,) = yaml.safe_load(result.stdout)["items"]
    assert (row["secret"], row["clusters"], row["wrong"]) == ("team/good", ["team/shop"], False)
    servers.management.put(harvester_cluster("other", "gone"))
    result = servers.caphv("identity", "list", "-A", "-o", "json")
    assert result.exit_code == 1
    assert "does not exist: create it with key kubeconfig, or correct the name" in result.stdout
    assert [row["wrong"] for row in yaml.safe_load(result.stdout)["items"]] == [True, False] or result.stdout.count(
        "true"
    ) == 1
    assert servers.caphv("identity", "list", "-n", "elsewhere", "-o", "json").exit_code == 0


def test_an_identity_that_does_not_verify_its_server_is_not_valid(servers: Servers) -> None:
    """The provider and the other commands refuse it, too, unless they have the same flag."""
    config = yaml.safe_load(create(servers, "-o", "kubeconfig").stdout)
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["insecure-skip-tls-verify"] = True
    servers.management.put({**secret("open"), "data": {"kubeconfig": encoded(yaml.safe_dump(config))}})
    servers.management.put(harvester_cluster("shop", "open"))

    result = servers.caphv("identity", "list", "-A", "-o", "json")
    (row,) = yaml.safe_load(result.stdout)["items"]
    assert (result.exit_code, row["state"], row["clusters"]) == (1, "unusable", ["team/shop"])
    assert row["error"].startswith("insecure-skip-tls-verify: credentials are not sent to ")

    result = servers.caphv("identity", "list", "-A", "-o", "json", "--allow-insecure-identities")
    (row,) = yaml.safe_load(result.stdout)["items"]
    assert (result.exit_code, row["state"]) == (0, "valid")


def cluster_identity(name: str, secret: str, namespace: str = "team") -> Obj:
    spec = {"secretRef": {"namespace": namespace, "name": secret}, "allowedNamespaces": {"list": ["team-a"]}}
    return {
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "HarvesterClusterIdentity",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_shared_identities_that_no_cluster_uses_are_listed(servers: Servers) -> None:
    config = yaml.safe_load(create(servers, "-o", "kubeconfig").stdout)
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    shared = {**secret("account"), "type": "Opaque", "data": {"kubeconfig": encoded(yaml.safe_dump(config))}}
    servers.management.put(shared)
    servers.management.serve("infrastructure.cluster.x-k8s.io/v1beta1", "HarvesterCluster")
    servers.management.put(cluster_identity("spare", "account"))
    servers.management.put(cluster_identity("broken", "missing"))
    servers.management.put(cluster_identity("elsewhere", "account", namespace="other"))

    def listed(*selection: str) -> dict[str, str]:
        result = servers.caphv("identity", "list", *selection, "-o", "json")
        assert result.exit_code == 0, result.output
        return {item["secret"]: item["state"] for item in yaml.safe_load(result.stdout)["items"]}

    kind = "HarvesterClusterIdentity"
    own = {f"{kind}/spare": "unused", f"{kind}/broken": "unusable"}
    assert listed("-A") == {**own, f"{kind}/elsewhere": "unusable"}
    assert listed("-n", "team") == own
    # A cluster in a namespace that is not asked for uses it.
    user = harvester_cluster("shop", "") | {"spec": {"identityRef": {"name": "spare"}, "targetNamespace": "vms"}}
    user["metadata"]["namespace"] = "team-a"
    servers.management.put(user)
    assert listed("-n", "team") == {f"{kind}/broken": "unusable"}
    # Who may not list Secrets sees the identities all the same.
    servers.management.errors["list Secret"] = Forbidden(403, "Forbidden", "no")
    assert listed("-n", "team") == {f"{kind}/broken": "unusable"}


def test_shared_credentials_come_with_their_identity(servers: Servers) -> None:
    words = ("--secret-name", "shared", "--share-with", "team-a", "--share-with", "*")
    secret, identity = yaml.safe_load_all(create(servers, *words).stdout)
    assert secret["metadata"] == {"name": "shared", "namespace": "caphv-system"}, "no label that moves and deletes it"
    assert check(identity) == []
    assert identity["metadata"] == {"name": "shared"}
    assert identities.resolve("shared", identity, "team-a", None, "caphv-system") == Key("caphv-system", "shared")
    assert identity["spec"]["allowedNamespaces"] == {"list": ["team-a", "*"]}
    elsewhere = create(servers, *words, "--secret-namespace", "other").stdout
    assert {obj["spec"]["secretRef"]["namespace"] for obj in yaml.safe_load_all(elsewhere) if "spec" in obj} == {
        "other"
    }
    assert "are mutually exclusive" in create(servers, *words, "-o", "kubeconfig", exit_code=2).output
    assert "must consist of" in create(servers, "--share-with", "Team", exit_code=2).output
