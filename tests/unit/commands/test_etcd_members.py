"""`caphv etcd` with an etcd in memory: which members it names and removes, and which Machines it releases."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.names import RKE2_HOOK
from caphv.api.object import Obj
from caphv.runtime import etcd
from caphv.runtime.errors import Forbidden, Unreachable
from caphv.runtime.etcd import Member
from caphv.runtime.exec import ExecError
from tests.support import kubeconfigs
from tests.support.clusters import Builder, ago, condition
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

LIVE, STALE = Member(0xA1, "cp-1-00000001", "https://10.0.0.1:2380"), Member(0xB2, "cp-2-00000002")


class Etcd:
    """Members as the Pods tell them; those of `silent` do not answer, and what is removed no longer exists."""

    def __init__(self) -> None:
        self.members = [LIVE, STALE]
        self.pods = ["etcd-1", "etcd-2"]
        self.silent: dict[str, Exception] = {}
        self.asked: list[str] = []
        self.refuses: Exception | None = None

    async def find_pods(self, _client: object) -> list[Obj]:
        return [{"metadata": {"name": name}} for name in self.pods]

    async def list_members(self, _client: object, pod: Obj) -> list[Member]:
        name = pod["metadata"]["name"]
        self.asked.append(name)
        if error := self.silent.get(name):
            raise error
        return list(self.members)

    async def remove_member(self, _client: object, _pod: Obj, member: Member) -> None:
        if self.refuses:
            raise self.refuses
        self.members.remove(member)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Etcd:
    found = Etcd()
    for name in ("find_pods", "list_members", "remove_member"):
        monkeypatch.setattr(etcd, name, getattr(found, name))
    return found


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, members: Etcd) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.put(Builder(workers=1))
    value = base64.b64encode(yaml.safe_dump(kubeconfigs.valid()).encode()).decode()
    metadata = {"name": "shop-kubeconfig", "namespace": "team"}
    found.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": value}})
    return found


def call(servers: Servers, verb: str, *words: str) -> Any:
    return servers.caphv("etcd", verb, "team/shop", *words)


def test_members_are_listed_with_their_machines(servers: Servers, members: Etcd) -> None:
    found = json.loads(call(servers, "members", "-o", "json").stdout)["items"]
    assert [(each["id"], each["state"], each.get("machine", "")) for each in found] == [
        ("a1", "healthy", "cp-1"),
        ("b2", "stale", ""),
    ]
    assert call(servers, "members").exit_code == 1
    members.members = [LIVE]
    healthy = call(servers, "members")
    assert (healthy.exit_code, "cp-1-00000001" in healthy.stdout) == (0, True)


def test_a_pod_that_does_not_answer_is_passed_over(servers: Servers, members: Etcd) -> None:
    members.silent = {"etcd-1": ExecError("etcdctl: no such file")}
    assert call(servers, "members").exit_code == 1
    assert members.asked == ["etcd-1", "etcd-2"]
    members.asked.clear()
    members.silent = {"etcd-2": Unreachable("no answer")}
    call(servers, "members")
    assert members.asked == ["etcd-1"], "the first answer is enough"


def test_an_etcd_that_does_not_answer_is_an_error_with_all_reasons(servers: Servers, members: Etcd) -> None:
    members.silent = {"etcd-1": ExecError("no such file"), "etcd-2": Unreachable("no answer")}
    result = call(servers, "members")
    assert (result.exit_code, "Pod etcd-1: no such file; Pod etcd-2: no answer" in result.output) == (2, True)
    members.pods = []
    result = call(servers, "members")
    assert (result.exit_code, "K3s and Talos run etcd outside of Pods" in result.output) == (2, True)
    assert servers.harvester.closed


def test_a_workload_cluster_that_cannot_be_queried_is_an_error(servers: Servers, members: Etcd) -> None:
    servers.management.errors["get Secret shop-kubeconfig"] = Forbidden(403, "Forbidden", "cannot get Secret")
    result = call(servers, "members")
    assert (result.exit_code, "the workload cluster cannot be read: cannot get Secret" in result.output) == (2, True)


def test_a_cluster_that_does_not_exist_is_an_error(servers: Servers) -> None:
    result = servers.caphv("etcd", "members", "team/gone")
    assert (result.exit_code, "team/gone" in result.output) == (2, True)


def test_stale_members_are_removed(servers: Servers, members: Etcd) -> None:
    result = call(servers, "remove", "--yes")
    assert (result.exit_code, members.members) == (0, [LIVE]), result.output
    assert "removed member cp-2-00000002 (b2)" in result.stdout
    again = call(servers, "remove")
    assert (again.exit_code, "Nothing to remove" in again.stdout) == (0, True)


def test_removals_need_a_confirmation_and_a_dry_run_none(servers: Servers, members: Etcd) -> None:
    assert call(servers, "remove").exit_code == 2
    (dry,) = json.loads(call(servers, "remove", "--dry-run", "-o", "json").stdout)["items"]
    assert ([each["name"] for each in dry["remove"]], dry["applied"]) == (["cp-2-00000002"], False)
    assert members.members == [LIVE, STALE]
    applied = call(servers, "remove", "--yes", "-o", "json")
    assert json.loads(applied.stdout)["items"][0]["applied"] is True
    assert "removed member" in applied.stderr


def test_a_member_of_a_machine_is_removed_by_force_only(servers: Servers, members: Etcd) -> None:
    members.members = [LIVE, Member(0xC3, "cp-1-00000003"), Member(0xD4, "cp-1-00000004")]
    for words in (("a1",), ("cp-1-00000001",)):
        result = call(servers, "remove", *words, "--yes")
        assert (result.exit_code, "Nothing was changed: a check failed" in result.stderr) == (1, True)
    assert len(members.members) == 3
    result = call(servers, "remove", "a1", "--yes", "--force")
    assert (result.exit_code, len(members.members)) == (0, 2)


def test_a_member_that_does_not_exist_is_wrong_usage(servers: Servers) -> None:
    result = call(servers, "remove", "other", "--yes")
    assert (result.exit_code, "etcd has no member other" in result.output) == (2, True)


def test_a_member_that_etcd_does_not_remove_is_named(servers: Servers, members: Etcd) -> None:
    members.refuses = ExecError("etcdserver: unhealthy cluster")
    result = call(servers, "remove", "--yes")
    text = "member cp-2-00000002 was not removed: etcdserver: unhealthy cluster"
    assert (result.exit_code, text in result.output) == (1, True)


# Machines that RKE2's provider does not release


def waiting() -> Builder:
    """A control plane whose second machine is deleted, and waits for a member of etcd that does not exist."""
    builder = Builder(workers=0)
    labels = builder.machines["cp-1"]["metadata"]["labels"]
    machine = json.loads(json.dumps(builder.machines["cp-1"]))
    machine["metadata"] |= {"name": "cp-3", "uid": "uid-cp-3", "labels": labels, "annotations": {RKE2_HOOK: ""}}
    machine["metadata"] |= {"deletionTimestamp": ago(hours=1), "finalizers": ["core"]}
    machine["status"] |= {"nodeRef": {"name": "cp-3"}}
    machine["status"]["conditions"] = [condition("Deleting", "True", "WaitingForPreTerminateHook")]
    machine["spec"]["infrastructureRef"]["name"] = "cp-3"
    builder.machines["cp-3"] = machine
    return builder


def hooks(servers: Servers) -> dict[str, str]:
    machine = servers.management.find("Machine", "cp-3", "team")
    assert machine is not None
    return dict(machine["metadata"].get("annotations") or {})


def test_a_machine_whose_node_and_member_were_deleted_is_released(servers: Servers, members: Etcd) -> None:
    servers.put(waiting())
    members.members = [LIVE]
    result = call(servers, "remove", "--dry-run")
    assert "release Machine cp-3" in result.stdout
    assert RKE2_HOOK in hooks(servers)
    result = call(servers, "remove", "--yes")
    assert (result.exit_code, "released Machine cp-3" in result.stdout) == (0, True), result.output
    assert hooks(servers) == {}


@pytest.mark.parametrize("there", ["Node", "member"])
def test_a_machine_whose_node_or_member_exists_keeps_its_hook(servers: Servers, members: Etcd, there: str) -> None:
    servers.put(waiting())
    members.members = [LIVE]
    if there == "Node":
        servers.harvester.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cp-3"}})
    else:
        members.members = [LIVE, Member(0xC3, "cp-3-00000003")]
    result = call(servers, "remove", "--yes")
    assert result.exit_code == 0, result.output
    assert RKE2_HOOK in hooks(servers)


@pytest.mark.parametrize(
    ("stale", "released", "question"),
    [
        (1, False, "Remove 1 member from etcd of cluster team/shop?"),
        (2, True, "Remove 2 members from etcd and release 1 Machine of cluster team/shop?"),
        (0, True, "Release 1 Machine of cluster team/shop?"),
    ],
)
def test_the_question_counts_members_and_machines(
    servers: Servers, members: Etcd, monkeypatch: pytest.MonkeyPatch, stale: int, released: bool, question: str
) -> None:
    questions: list[str] = []
    monkeypatch.setattr("commands.etcd.confirm", lambda _flags, text: questions.append(text))
    servers.put(waiting() if released else Builder(workers=0))
    members.members = [LIVE, *(Member(0xB0 + number, f"gone-0000000{number}") for number in range(stale))]
    call(servers, "remove", "--force")
    assert questions == [question]


def test_what_was_removed_or_released_meanwhile_is_passed_over(
    servers: Servers, members: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agree(*_: object) -> None:
        members.members = [LIVE, Member(0xC3, "cp-3-00000003")]

    monkeypatch.setattr("commands.etcd.confirm", agree)
    servers.put(waiting())
    result = call(servers, "remove")
    assert (result.exit_code, members.members[0]) == (0, LIVE), result.output
    assert not {"removed", "released"} & {line.split()[0] for line in result.output.splitlines()}
    assert RKE2_HOOK in hooks(servers)


@pytest.mark.parametrize("verb", ["members", "remove"])
def test_machines_that_may_not_be_read_would_make_all_members_stale(servers: Servers, members: Etcd, verb: str) -> None:
    servers.management.errors["list Machine"] = Forbidden(403, "Forbidden", "cannot list")
    result = call(servers, verb)
    assert (result.exit_code, "the machines of the cluster cannot be read" in result.output) == (2, True)
    assert members.members == [LIVE, STALE]


def test_a_failed_check_is_data_too(servers: Servers, members: Etcd) -> None:
    members.members = [LIVE, Member(0xC3, "cp-1-00000003"), Member(0xD4, "cp-1-00000004")]
    result = call(servers, "remove", "a1", "--yes", "-o", "json")
    (content,) = json.loads(result.stdout)["items"]
    assert (result.exit_code, content["applied"], [each["id"] for each in content["remove"]]) == (1, False, ["a1"])
    assert any(check["result"] == "error" for check in content["checks"])
    members.members = [LIVE]
    (content,) = json.loads(call(servers, "remove", "-o", "json").stdout)["items"]
    assert content == {"cluster": "team/shop", "remove": [], "release": [], "checks": [], "applied": False}
