"""`caphv leftovers`: exit statuses, questions and output, with servers in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, Resource
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import Forbidden, Unreachable
from commands import leftovers
from commands.main import cli
from commands.output import leftovers as out
from operations.capacity.addresspools import Verdict
from operations.leftovers.decision import LeftoverReport, OwnedObject
from operations.read.harvesterclient import HarvesterClient
from operations.read.objects import Unseen
from tests.support.clusters import NOW
from tests.support.memoryserver import MemoryServer
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

US = "management-us"
GONE = Owner("HarvesterMachine", "team", "gone", "gone-uid", US)
FOREIGN = Owner("HarvesterMachine", "team", "gone", "gone-uid", "management-others")
VMS = resources.VIRTUAL_MACHINES


def obj(resource: Resource, name: str, owner: Owner | None = GONE) -> Obj:
    metadata = {"namespace": "vms", "name": name, "annotations": record(owner) if owner else {}}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def harvester(*objs: Obj, number: int = 1) -> Any:
    kinds = (VMS, resources.VIRTUAL_MACHINE_INSTANCES, resources.LOAD_BALANCERS, resources.IP_POOLS)
    served = [(kind.api_version, kind.kind) for kind in kinds]
    return MemoryServer(*objs, served=served, server=f"https://harvester-{number}")


STOPPED = {**obj(VMS, "gone"), "status": {"printableStatus": "Stopped"}}
LEFT = (STOPPED, obj(PERSISTENT_VOLUME_CLAIMS, "gone-disk-0-abcde"), obj(SECRETS, "gone-cloud-init"))
OTHERS = (obj(VMS, "foreign", FOREIGN), obj(VMS, "by-hand", None))


@pytest.fixture
def management() -> Any:
    kube_system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": US}}
    served = [(kind.api_version, kind.kind) for kind in (resources.HARVESTER_MACHINES, resources.HARVESTER_CLUSTERS)]
    return MemoryServer(kube_system, served=served)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, management: Any) -> Any:
    """Run the command with these Harvesters."""

    def invoke(*arguments: str, of: tuple[Any, ...], hidden: tuple[Unseen, ...] = (), again: Any = None) -> Result:
        answers = [of, of if again is None else again]

        @asynccontextmanager
        async def one(_options: Any) -> AsyncIterator[Any]:
            yield management

        @asynccontextmanager
        async def several(_management: Any, _options: Any) -> AsyncIterator[Any]:
            yield [HarvesterClient(each, frozenset({"vms"})) for each in answers.pop(0)], list(hidden)

        monkeypatch.setattr(leftovers, "management_client", one)
        monkeypatch.setattr(leftovers, "harvester_clients", several)
        return CliRunner().invoke(cli, ["leftovers", *arguments])

    return invoke


def kept(server: Any) -> list[str]:
    return [each["metadata"]["name"] for each in server.stored(VMS)]


def test_what_is_left_over_is_listed_with_its_former_owner_and_what_others_made(call: Any) -> None:
    result = call(of=(harvester(*LEFT, *OTHERS),))
    assert result.exit_code == 1
    assert "Harvester https://harvester-1: 3 leaked, 1 foreign, 1 unrecorded" in result.output
    line = next(line for line in result.output.splitlines() if "VirtualMachine vms/gone" in line)
    assert "HarvesterMachine team/gone" in line
    assert {"vms/foreign", "vms/by-hand"} <= set(result.output.split())
    assert "foreign" not in call("--wrong", of=(harvester(*LEFT, *OTHERS),)).output.partition("\n")[2]


def test_without_anything_left_the_exit_status_is_0(call: Any) -> None:
    assert call(of=(harvester(*OTHERS),)).exit_code == 0
    nothing = call(of=(harvester(),))
    assert (nothing.exit_code, "every object has an owner" in nothing.output) == (0, True)
    deleted = call("--delete", of=(harvester(*OTHERS),))
    assert (deleted.exit_code, deleted.output) == (0, "No leftovers to delete\n")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_read_one_item_for_each_harvester(call: Any, output: str) -> None:
    result = call("-o", output, of=(harvester(*LEFT), harvester(number=2)))
    content = json.loads(result.stdout) if output == "json" else yaml.safe_load(result.stdout)
    first, second = content["items"]
    assert (first["harvester"], first["wrong"], second["wrong"]) == ("https://harvester-1", True, False)
    vm = first["objects"][0]
    assert {name: vm[name] for name in ("kind", "namespace", "name", "verdict", "owner", "managementCluster")} == {
        "kind": "VirtualMachine",
        "namespace": "vms",
        "name": "gone",
        "verdict": "leaked",
        "owner": "HarvesterMachine team/gone",
        "managementCluster": US,
    }


def test_what_is_not_seen_is_named_and_no_proof_that_nothing_is_left(call: Any, management: Any) -> None:
    hidden = (Unseen("identity Secret team/other", "no key kubeconfig"),)
    for arguments in ((), ("--delete",)):
        result = call(*arguments, of=(harvester(),), hidden=hidden)
        assert (result.exit_code, "not seen: identity Secret team/other" in result.stderr) == (2, True)
        assert "No leftovers to delete" not in result.output
    management.errors["get Namespace"] = Forbidden(403, "Forbidden", "may not get namespaces")
    unknown = call(of=(harvester(*LEFT),))
    assert (unknown.exit_code, "3 unknown" in unknown.output) == (2, True)


def test_a_harvester_that_does_not_answer_hides_no_other(call: Any) -> None:
    down = harvester(number=2)
    down.errors["list"] = Unreachable("https://harvester-2: connection refused")
    both = call(of=(down, harvester(*LEFT)))
    assert (both.exit_code, "not seen: Harvester https://harvester-2" in both.stderr) == (1, True)
    alone = call(of=(down,))
    assert (alone.exit_code, "--harvester-kubeconfig" in alone.output) == (2, True)


def test_a_deletion_reports_each_object_and_keeps_what_others_made(call: Any) -> None:
    server = harvester(*LEFT, *OTHERS)
    result = call("--delete", "--yes", of=(server,))
    assert result.exit_code == 0, result.output
    for name in (
        "VirtualMachine vms/gone",
        "PersistentVolumeClaim vms/gone-disk-0-abcde",
        "Secret vms/gone-cloud-init",
    ):
        assert f"{name}: deleted\n" in result.stdout
    assert kept(server) == ["by-hand", "foreign"]


def test_a_vm_at_work_is_shown_and_deleted_only_if_asked(call: Any) -> None:
    volumes = [
        {"name": "disk-0", "persistentVolumeClaim": {"claimName": "gone-disk-0-abcde"}},
        {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "gone-cloud-init"}}},
    ]
    state = {"status": {"printableStatus": "Running"}, "spec": {"template": {"spec": {"volumes": volumes}}}}
    server = harvester(obj(VMS, "gone") | state, *LEFT[1:])
    refused = call("--delete", "--yes", of=(server,))
    assert (refused.exit_code, kept(server)) == (0, ["gone"])
    assert "3 in use" in refused.output
    line = next(line for line in refused.output.splitlines() if "VirtualMachine vms/gone" in line)
    assert "in use" in line
    asked = call("--delete", "--running", "--yes", of=(server,))
    assert (asked.exit_code, kept(server)) == (0, [])


def test_programs_read_what_became_of_each_object(call: Any) -> None:
    server = harvester(*LEFT)
    server.errors["delete Secret"] = Forbidden(403, "Forbidden", "may not delete Secrets")
    result = call("--delete", "--yes", "-o", "json", of=(server,))
    assert result.exit_code == 1
    outcomes = {each["object"]: (each["outcome"], each.get("message")) for each in json.loads(result.stdout)["items"]}
    assert outcomes["VirtualMachine vms/gone"] == ("deleted", None)
    assert outcomes["Secret vms/gone-cloud-init"] == ("failed", "may not delete Secrets")


def test_nothing_is_deleted_without_a_yes(call: Any) -> None:
    server = harvester(*LEFT)
    refused = call("--delete", of=(server,))
    assert (refused.exit_code, "use --yes or --dry-run" in refused.output) == (2, True)
    shown = call("--delete", "--dry-run", of=(server,))
    assert (shown.exit_code, "vms/gone" in shown.output) == (0, True)
    for option in ("--yes", "--dry-run"):
        alone = call(option, of=(server,))
        assert (alone.exit_code, "need --delete" in alone.output) == (2, True)
    assert kept(server) == ["gone"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_the_question_counts_what_is_lost(call: Any, monkeypatch: pytest.MonkeyPatch, answer: str, status: int) -> None:
    questions: list[str] = []

    def confirm(_change: object, question: str) -> None:
        questions.append(question)
        if answer == "n":
            raise click.Abort

    monkeypatch.setattr(leftovers, "confirm", confirm)
    server = harvester(*LEFT)
    assert call("--delete", of=(server,)).exit_code == status
    assert questions == ["Delete 1 VM, 1 disk with its data, 1 other object on Harvester?"]
    assert kept(server) == ([] if answer == "y" else ["gone"])


def test_a_harvester_without_clusters_after_the_question_is_named(call: Any) -> None:
    first, second = harvester(*LEFT), harvester(*LEFT, number=2)
    result = call("--delete", "--yes", of=(first, second), again=(second,))
    assert result.exit_code == 1
    assert "Harvester https://harvester-1: failed: no cluster uses it any more" in result.stderr
    assert (kept(first), kept(second)) == (["gone"], [])


def test_the_page_shows_what_the_command_writes(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def shown(kind: str, name: str, verdict: Verdict, owner: str, detail: str, **ago: float) -> OwnedObject:
        created = (NOW - timedelta(**ago)).isoformat()
        return OwnedObject(
            kind=kind, name=name, verdict=verdict, namespace="vms", owner=owner, created=created, detail=detail
        )

    monkeypatch.setenv("COLUMNS", "400")
    gone, owner = "its owner no longer exists", "HarvesterMachine team-a/shop-x7k2p"
    used = f"{gone}, but VirtualMachine vms/rescue uses it"
    other = "of management cluster 0a1b2c3d-1111-2222-3333-444455556666"
    address = OwnedObject(
        kind="address",
        name="172.16.4.11",
        verdict=Verdict.LEAKED,
        pool="machines",
        owner="team-a/shop-x7k2p",
        detail="is released after VirtualMachine vms/shop-x7k2p",
    )
    disk = "PersistentVolumeClaim"
    objects = (
        shown("VirtualMachine", "shop-x7k2p", Verdict.LEAKED, owner, f"{gone}; Stopped", days=41),
        shown(disk, "shop-x7k2p-disk-0-k3p9d", Verdict.LEAKED, owner, gone, days=41),
        shown("Secret", "shop-x7k2p-cloud-init", Verdict.LEAKED, owner, gone, days=41),
        address,
        shown(disk, "shop-9zq4d-disk-0-m2c7x", Verdict.IN_USE, "HarvesterMachine team-a/shop-9zq4d", used, days=41),
        shown("VirtualMachine", "other-0", Verdict.FOREIGN, "HarvesterMachine team-b/other-0", other, days=12),
        shown("VirtualMachine", "rescue", Verdict.UNRECORDED, "", "", hours=3),
    )
    out.show([LeftoverReport("https://172.16.0.10:6443", objects)], only_wrong=False, now=NOW)
    page = (CHECKOUT / "docs" / "tasks" / "leftovers.md").read_text(encoding="utf-8")
    assert f"```\n{capsys.readouterr().out}```" in page


def test_text_of_others_gives_a_terminal_no_orders(call: Any) -> None:
    hostile = obj(VMS, "gone")
    hostile["metadata"]["annotations"][names.OWNER_ANNOTATION] = "HarvesterMachine/team/\x1b[2Jgone"
    hostile["status"] = {"printableStatus": "\x1b]0;title\x07"}
    assert "\x1b" not in call(of=(harvester(hostile),)).output


def test_kube_system_is_what_identifies_a_management_cluster(call: Any, management: Any) -> None:
    (stored,) = (each for each in management.stored(NAMESPACES) if each["metadata"]["name"] == "kube-system")
    stored["metadata"]["uid"] = "another"
    management.put(stored)
    result = call("--delete", "--yes", of=(server := harvester(*LEFT),))
    assert (result.exit_code, kept(server)) == (0, ["gone"])
