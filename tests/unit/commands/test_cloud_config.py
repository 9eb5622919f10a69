"""`caphv cloud-config`: an account for a cloud provider is created once, renewed without a gap, and revoked."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import CLUSTER_ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, Obj
from caphv.runtime.errors import Forbidden, Unreachable
from reconciler.harvester.guestaccount import SECRET_KEYS
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

SHOP = ("shop", "-n", "vms", "HARVESTER")
KUBE_VIP: Obj = {"apiVersion": "v1", "kind": "Service"}
KUBE_VIP["metadata"] = {"name": "ingress-expose", "namespace": "kube-system"}
KUBE_VIP["metadata"]["annotations"] = {"kube-vip.io/loadbalancerIPs": "192.0.2.7"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    return Servers(monkeypatch, tmp_path)


def kinds(servers: Servers) -> dict[str, list[str]]:
    """Names on Harvester by kind."""
    found = (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS)
    return {kind.kind: [obj["metadata"]["name"] for obj in servers.harvester.stored(kind)] for kind in found}


def create(servers: Servers, *more: str) -> Any:
    result = servers.caphv("cloud-config", "create", *SHOP, "--yes", *more)
    assert result.exit_code == 0, result.output
    return result


def config_of(text: str) -> dict[str, Any]:
    """Return server, token and namespace of a kubeconfig."""
    config = yaml.safe_load(text)
    return {
        "server": config["clusters"][0]["cluster"]["server"],
        "token": config["users"][0]["user"]["token"],
        "namespace": config["contexts"][0]["context"]["namespace"],
    }


WHOLE = {
    "ServiceAccount": ["shop"],
    "ClusterRoleBinding": ["shop"],
    "Secret": ["shop-cloud-config-1"],
}


def test_account_is_created_once_and_its_cloud_config_printed(servers: Servers) -> None:
    first = create(servers, "-o", "kubeconfig")
    assert kinds(servers) == WHOLE
    assert servers.harvester.find("Namespace", "vms") is not None
    assert config_of(first.stdout) == {
        "server": "https://harvester:6443",
        "token": "token of shop-cloud-config-1",
        "namespace": "vms",
    }
    before = list(servers.harvester.requests)
    assert servers.harvester.probes == 1, "it was tested"
    # Nothing has to be confirmed the second time.
    second = servers.caphv("cloud-config", "create", *SHOP, "-o", "kubeconfig")
    assert (second.exit_code, second.stdout) == (0, first.stdout)
    assert servers.harvester.requests == before


def test_creation_needs_a_confirmation(servers: Servers) -> None:
    assert servers.caphv("cloud-config", "create", *SHOP).exit_code != 0
    assert servers.harvester.requests == []


def test_dry_run_creates_nothing(servers: Servers) -> None:
    found = servers.item("cloud-config", "create", *SHOP, "--dry-run")
    assert len(found["changes"]) == 3
    assert found["applied"] is False
    assert "kubeconfig" not in found
    assert servers.harvester.requests == []
    create(servers)
    assert servers.item("cloud-config", "create", *SHOP, "--dry-run")["changes"] == []


def test_guests_reach_harvester_at_its_virtual_address_or_where_the_user_says(servers: Servers) -> None:
    servers.harvester.put(KUBE_VIP)
    assert config_of(create(servers, "-o", "kubeconfig").stdout)["server"] == "https://192.0.2.7:6443"
    there = create(servers, "-o", "kubeconfig", "--server", "https://other:6443").stdout
    assert config_of(there)["server"] == "https://other:6443"


def test_token_that_expires_is_new_at_each_call_and_leaves_no_secret(servers: Servers) -> None:
    tokens = [config_of(create(servers, "-o", "kubeconfig", "--expires-in", "2").stdout)["token"] for _ in range(2)]
    assert tokens == ["expiring-1", "expiring-2"]
    assert servers.harvester.issued == [("/api/v1/namespaces/vms/serviceaccounts/shop/token", 2 * 24 * 3600)] * 2
    assert kinds(servers)["Secret"] == []


@pytest.mark.parametrize("output", ["cloud-init", "secret", "kubeconfig"])
def test_file_is_the_owners_alone_in_each_form(servers: Servers, output: str, tmp_path: Path) -> None:
    result = create(servers, "-o", output, "--file", "out.yaml")
    assert result.stdout == ""
    written = tmp_path / "out.yaml"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    found = yaml.safe_load(written.read_text())
    if output == "cloud-init":
        assert {entry["permissions"] for entry in found["write_files"]} == {"0600"}
        texts = [base64.b64decode(entry["content"]).decode() for entry in found["write_files"]]
    elif output == "secret":
        assert found["metadata"] == {"name": "harvester-cloud-config", "namespace": "kube-system"}
        texts = [base64.b64decode(value).decode() for value in found["data"].values()]
    else:
        texts = [written.read_text()] * 2
    assert len(texts) == 2
    assert {config_of(text)["token"] for text in texts} == {"token of shop-cloud-config-1"}


def test_data_has_the_cloud_config_and_what_was_done(servers: Servers) -> None:
    found = servers.item("cloud-config", "create", *SHOP, "--yes")
    assert (found["account"], found["applied"], found["server"]) == ("vms/shop", True, "https://harvester:6443")
    assert config_of(found["kubeconfig"])["namespace"] == "vms"
    assert found["expires"] is None


@pytest.mark.parametrize(
    "taken",
    [
        {"kind": "ServiceAccount", "metadata": {"annotations": {"caphv.io/owner": "HarvesterCluster/team/shop"}}},
        {"kind": "ClusterRoleBinding", "roleRef": {"name": "cluster-admin"}, "metadata": {}},
    ],
    ids=["account of the provider", "binding of another role"],
)
def test_objects_of_others_are_left_alone(servers: Servers, taken: Obj) -> None:
    account = taken["kind"] == "ServiceAccount"
    metadata = {"name": "shop", **taken["metadata"], **({"namespace": "vms"} if account else {})}
    version = "v1" if account else "rbac.authorization.k8s.io/v1"
    servers.harvester.put({"apiVersion": version, **taken, "metadata": metadata})
    assert servers.caphv("cloud-config", "create", *SHOP, "--yes").exit_code == 1
    assert servers.caphv("cloud-config", "renew", *SHOP, "--yes").exit_code == 1
    assert servers.harvester.requests == []
    servers.caphv("cloud-config", "revoke", *SHOP, "--yes")
    assert servers.harvester.find(taken["kind"], "shop", "vms" if account else "") is not None


def test_harvester_that_refuses_or_is_silent_is_a_failure(servers: Servers) -> None:
    servers.harvester.errors["create ServiceAccount"] = Forbidden(403, "Forbidden", "no")
    assert servers.caphv("cloud-config", "create", *SHOP, "--yes").exit_code == 2
    servers.harvester.errors = {"list Secret": Unreachable("no answer")}
    assert servers.caphv("cloud-config", "create", *SHOP, "--yes").exit_code == 2
    assert servers.harvester.closed


# Renewal


def renew(servers: Servers, *more: str) -> Any:
    return servers.caphv("cloud-config", "renew", *SHOP, "--yes", *more)


def test_there_is_nothing_to_renew_without_an_account(servers: Servers) -> None:
    assert renew(servers).exit_code == 1
    assert servers.harvester.requests == []


def test_without_a_delivery_both_tokens_are_valid_until_the_former_is_revoked(servers: Servers) -> None:
    create(servers)
    result = renew(servers, "-o", "kubeconfig")
    assert result.exit_code == 0, result.output
    assert config_of(result.stdout)["token"] == "token of shop-cloud-config-2"
    assert kinds(servers)["Secret"] == ["shop-cloud-config-1", "shop-cloud-config-2"]
    dry = servers.item("cloud-config", "revoke", *SHOP, "--former", "--dry-run")
    assert (len(dry["changes"]), dry["applied"]) == (1, False)
    assert kinds(servers)["Secret"] == ["shop-cloud-config-1", "shop-cloud-config-2"]
    assert servers.item("cloud-config", "revoke", *SHOP, "--former", "--yes")["applied"]
    assert kinds(servers) == {**WHOLE, "Secret": ["shop-cloud-config-2"]}
    again = servers.item("cloud-config", "revoke", *SHOP, "--former", "--yes")
    assert (again["changes"], again["applied"]) == ([], False)


@pytest.mark.parametrize("expires", [False, True])
def test_delivered_token_ends_the_former_ones(servers: Servers, expires: bool) -> None:
    create(servers)
    more = ("--expires-in", "7") if expires else ()
    result = renew(servers, "--workload-kubeconfig", str(servers.kubeconfig), *more)
    assert result.exit_code == 0, result.output
    assert result.stdout == "", "a delivered cloud config is not shown"
    secret = servers.workload.find("Secret", "harvester-cloud-config", "kube-system")
    assert secret is not None
    token = "expiring-1" if expires else "token of shop-cloud-config-2"
    assert {config_of(base64.b64decode(value).decode())["token"] for value in secret["data"].values()} == {token}
    assert kinds(servers)["Secret"] == ([] if expires else ["shop-cloud-config-2"])


def test_data_of_a_delivery_has_no_token(servers: Servers) -> None:
    create(servers)
    found = servers.item("cloud-config", "renew", *SHOP, "--yes", "--workload-kubeconfig", str(servers.kubeconfig))
    assert found["applied"]
    assert "kubeconfig" not in found
    assert len(found["changes"]) == 2


def test_the_cloud_config_of_another_cluster_is_not_replaced(servers: Servers) -> None:
    content = yaml.safe_load(create(servers, "-o", "kubeconfig").stdout)
    claims = base64.urlsafe_b64encode(b'{"sub": "system:serviceaccount:vms:other"}').decode().rstrip("=")
    content["users"][0]["user"]["token"] = f"a.{claims}.c"
    encoded = base64.b64encode(yaml.safe_dump(content).encode()).decode()
    metadata = {"name": "harvester-cloud-config", "namespace": "kube-system"}
    data = dict.fromkeys(SECRET_KEYS, encoded)
    servers.workload.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    result = renew(servers, "--workload-kubeconfig", str(servers.kubeconfig))

    assert result.exit_code == 1
    assert "belongs to ServiceAccount vms/other, not to" in result.output
    secret = servers.workload.find("Secret", "harvester-cloud-config", "kube-system")
    assert secret is not None
    assert secret["data"] == data
    assert "shop-cloud-config-1" in kinds(servers)["Secret"], "the former token stays valid"


def test_former_token_stays_valid_when_the_new_one_cannot_be_delivered(servers: Servers) -> None:
    create(servers)
    servers.workload.errors["apply Secret"] = Unreachable("no answer")
    assert renew(servers, "--workload-kubeconfig", str(servers.kubeconfig)).exit_code == 1
    assert "shop-cloud-config-1" in kinds(servers)["Secret"]
    assert servers.workload.closed


def test_dry_run_of_a_renewal_issues_nothing(servers: Servers) -> None:
    create(servers)
    found = servers.item("cloud-config", "renew", *SHOP, "--dry-run")
    assert (len(found["changes"]), found["applied"]) == (1, False)
    assert kinds(servers)["Secret"] == ["shop-cloud-config-1"]


def test_secret_of_another_with_the_next_name_is_no_token(servers: Servers) -> None:
    create(servers)
    servers.harvester.put(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shop-cloud-config-2", "namespace": "vms"}}
    )
    assert renew(servers).exit_code == 1


# Revocation


def test_revocation_deletes_all_of_it_the_binding_first(servers: Servers) -> None:
    create(servers)
    renew(servers)
    servers.harvester.requests.clear()
    dry = servers.item("cloud-config", "revoke", *SHOP, "--dry-run")
    assert (len(dry["changes"]), servers.harvester.requests) == (4, [])
    shown = servers.caphv("cloud-config", "revoke", *SHOP, "--dry-run").stderr
    assert all(change in shown for change in dry["changes"])
    assert servers.caphv("cloud-config", "revoke", *SHOP).exit_code != 0, "it needs a confirmation"
    assert servers.harvester.requests == []
    assert servers.item("cloud-config", "revoke", *SHOP, "--yes")["applied"]
    order = [request.split()[1] for request in servers.harvester.requests]
    assert order == ["ClusterRoleBinding", "Secret", "Secret", "ServiceAccount"]
    assert kinds(servers) == {"ServiceAccount": [], "ClusterRoleBinding": [], "Secret": []}
    again = servers.caphv("cloud-config", "revoke", *SHOP, "--yes")
    assert (again.exit_code, "Nothing to delete" in again.stderr) == (0, True)
