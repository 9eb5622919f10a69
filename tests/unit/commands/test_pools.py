"""`caphv pools` with several Harvesters, of which some do not answer or refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.api import resources
from caphv.api.object import NAMESPACES, Obj, Resource
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from commands import pools
from commands.access.management import run
from commands.main import cli
from operations.capacity.poolreader import apply_repair
from operations.read.harvesterclient import HarvesterClient
from operations.read.objects import Unseen
from operations.read.owners import OwnerObjects, read_owners

pytestmark = pytest.mark.unit

US = "0a1b2c3d-1111-2222-3333-444455556666"


@dataclass
class Server:
    """An API server with objects by kind; `errors` by verb and kind, or by kind for all verbs."""

    server: str
    objs: dict[str, list[Obj]] = field(default_factory=dict)
    errors: dict[str, ApiError | Unreachable] = field(default_factory=dict)
    budget: None = None

    def _refuse(self, verb: str, resource: Resource) -> None:
        for name in (f"{verb} {resource.kind}", resource.kind):
            if name in self.errors:
                raise self.errors[name]

    async def list(self, resource: Resource, namespace: str = "", **_: Any) -> Obj:
        self._refuse("list", resource)
        return {"metadata": {}, "items": self.objs.get(resource.kind, []) if not namespace else []}

    async def get(self, resource: Resource, name: str, _namespace: str = "") -> Obj:
        self._refuse("get", resource)
        for obj in self.objs.get(resource.kind, []):
            if obj["metadata"]["name"] == name:
                return obj
        raise NotFound(404, "NotFound", f"{resource.kind} {name} not found")

    async def patch(self, resource: Resource, name: str, _namespace: str, body: Obj) -> None:
        self._refuse("patch", resource)
        (obj,) = (each for each in self.objs[resource.kind] if each["metadata"]["name"] == name)
        for address in body["status"]["allocated"]:
            del obj["status"]["allocated"][address]


def leaking(name: str, holder: str = "team/gone") -> Obj:
    """A pool with an address of a machine that does not exist."""
    metadata = {"name": name, "resourceVersion": "7", "annotations": {"addresses.caphv.io/10.0.0.10": US[:8]}}
    ranges = [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]
    status = {"allocated": {"10.0.0.10": holder}, "available": 9, "total": 10}
    return {"metadata": metadata, "spec": {"ranges": ranges}, "status": status}


def harvester(number: int, *found: Obj) -> Server:
    return Server(f"https://harvester-{number}:6443", {resources.IP_POOLS.kind: list(found)})


DOWN = Unreachable("https://harvester-2:6443: connection refused")


@pytest.fixture
def management() -> Server:
    return Server("https://management:6443", {NAMESPACES.kind: [{"metadata": {"name": "kube-system", "uid": US}}]})


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, management: Server) -> Any:
    """Run a command: with these Harvesters, and with those that are left when it reads them again."""

    def invoke(
        *arguments: str, of: Sequence[Server], hidden: Sequence[Unseen] = (), again: Sequence[Server] | None = None
    ) -> Result:
        answers = [of, of if again is None else again]

        @asynccontextmanager
        async def one(_flags: Any) -> AsyncIterator[Any]:
            yield management

        @asynccontextmanager
        async def several(_management: Any, _flags: Any) -> AsyncIterator[Any]:
            yield [HarvesterClient(each, frozenset()) for each in answers.pop(0)], list(hidden)  # type: ignore[arg-type]

        monkeypatch.setattr(pools, "management_client", one)
        monkeypatch.setattr(pools, "harvester_clients", several)
        return CliRunner().invoke(cli, ["pools", *arguments])

    return invoke


def test_a_harvester_that_is_down_hides_no_other(call: Any) -> None:
    down = Server("https://harvester-2:6443", errors={resources.IP_POOLS.kind: DOWN})
    for order in ([harvester(1, leaking("a")), down], [down, harvester(1, leaking("a"))]):
        result = call("audit", of=order)
        assert result.exit_code == 1  # an address has leaked
        assert "IPPool a on https://harvester-1:6443: 9 of 10 free; 1 leaked" in result.output
        assert "not seen: Harvester https://harvester-2:6443: https://harvester-2:6443: connection ref" in result.output
        result = call("release", "--yes", of=order)
        assert (result.exit_code, "IPPool a: released 1 address" in result.output) == (2, True)
        order[order.index(down) - 1].objs.clear()


def test_with_no_harvester_there_is_nothing_to_show(call: Any) -> None:
    result = call("audit", of=[Server("https://harvester-2:6443", errors={resources.IP_POOLS.kind: DOWN})])
    assert (result.exit_code, "no IPPool can be read on any Harvester; Harvester https" in result.output) == (2, True)


@pytest.mark.parametrize("command", ["audit", "release"])
def test_a_name_that_no_pool_has_is_not_passed_over(call: Any, command: str) -> None:
    result = call(command, "a", "typo", of=[harvester(1, leaking("a"), leaking("b"))])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no IPPool typo can be read on any Harvester" in result.stderr


@pytest.mark.parametrize(
    ("errors", "hidden"),
    [
        ({}, [Unseen("identity Secret team/other", "Secret team/other has no key kubeconfig")]),
        ({resources.VIRTUAL_MACHINES.kind: Forbidden(403, "Forbidden", "may not list VMs")}, []),
    ],
)
def test_what_is_not_seen_is_never_called_right(call: Any, errors: dict[str, ApiError], hidden: list[Unseen]) -> None:
    found = harvester(1, leaking("a", "team/gone") if errors else leaking("a", "vms/lb"))
    found.errors = dict(errors)
    found.objs[resources.LOAD_BALANCERS.kind] = [] if errors else [{"metadata": {"name": "lb", "namespace": "vms"}}]
    assert call("audit", of=[found], hidden=hidden).exit_code == 2
    for more in ("--yes", "--dry-run"):
        result = call("release", more, of=[found], hidden=hidden)
        assert (result.exit_code, "Nothing to release, but something cannot be read" in result.output) == (2, True)
        assert "all counts are correct" not in result.output


def test_an_identity_of_single_namespaces_hides_no_wrong_count(call: Any) -> None:
    found = harvester(1, leaking("a"))
    found.errors = {resources.VIRTUAL_MACHINES.kind: Forbidden(403, "Forbidden", "may not list VMs")}
    right = call("audit", of=[found])
    assert (right.exit_code, "not seen" in right.output) == (2, True)
    found.objs[resources.IP_POOLS.kind][0]["status"]["available"] = 3
    wrong = call("audit", of=[found])
    assert (wrong.exit_code, "not seen" in wrong.output) == (1, True)


def test_a_dry_run_that_would_release_something_is_no_failure(call: Any) -> None:
    result = call("release", "--dry-run", of=[harvester(1, leaking("a"))])
    assert (result.exit_code, "10.0.0.10" in result.output) == (0, True)


def test_a_pool_with_invalid_ranges_is_named_and_no_success(call: Any) -> None:
    broken = leaking("broken")
    broken["spec"]["ranges"] = [{"subnet": "nonsense"}]
    result = call("release", "--yes", of=[harvester(1, broken)])
    assert (result.exit_code, "IPPool broken on https://harvester-1:6443: " in result.output) == (1, True)


def test_releases_that_were_made_are_reported_when_another_fails(call: Any) -> None:
    first, second = harvester(1, leaking("a"), leaking("c")), harvester(2, leaking("b"))
    second.errors = {f"patch {resources.IP_POOLS.kind}": Conflict(409, "Conflict", "the object has been modified")}
    result = call("release", "--yes", of=[second, first])
    assert result.exit_code == 1
    assert "IPPool b on https://harvester-2:6443: IPPool b is being modified concurrently: try again" in result.output
    assert "IPPool a: released 1 address\n" in result.output
    assert "IPPool c: released 1 address\n" in result.output
    assert "management cluster" not in result.output


def test_a_harvester_without_clusters_after_the_question_is_named(call: Any) -> None:
    first, second = harvester(1, leaking("a")), harvester(2, leaking("b"))
    result = call("release", "--yes", of=[first, second], again=[second])
    assert result.exit_code == 1
    assert "IPPool a on https://harvester-1:6443: no cluster uses it any more" in result.output
    assert "IPPool b: released 1 address" in result.output


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "it was modified"), DOWN])
def test_an_error_of_a_request_is_not_taken_for_one_of_reading(error: Exception) -> None:
    async def write() -> None:
        raise error

    with pytest.raises(Exception, match=f"^a request failed: {error}$") as caught:
        run(write())
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


class OneNamespace(Server):
    """A management cluster for an account with rights in one namespace."""

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        if namespace != "team":
            raise Forbidden(403, "Forbidden", f"may not list {resource.kind} at the cluster scope")
        return await super().list(resource, namespace, **options)


@pytest.mark.parametrize(("holder", "released"), [("team/gone", True), ("team/team-shop-lb", False)])
async def test_rights_in_one_namespace_release_addresses_of_its_machines_only(holder: str, released: bool) -> None:
    management: Any = OneNamespace("https://management:6443")
    machines = OwnerObjects(US, {}, frozenset({"team"}))
    pool = leaking("a", holder)
    other: Any = harvester(1, pool)
    report = await apply_repair(management, HarvesterClient(other, frozenset()), "a", machines)
    assert ((report is not None), pool["status"]["allocated"]) == (released, {} if released else {"10.0.0.10": holder})


async def test_what_an_account_for_one_namespace_reads_suffices() -> None:
    management: Any = OneNamespace(
        "https://management:6443", {NAMESPACES.kind: [{"metadata": {"name": "kube-system", "uid": US}}]}
    )
    machines = await read_owners(management, "team")
    assert (machines.management_cluster, machines.namespaces, len(machines.unseen)) == (US, frozenset({"team"}), 1)


@pytest.mark.parametrize("kind", ["HarvesterMachine", "HarvesterCluster"])
async def test_an_owner_that_was_created_after_the_audit_keeps_its_address(kind: str) -> None:
    obj = {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"targetNamespace": "vms"}}
    management: Any = Server("https://management:6443", {kind: [obj]})
    pool = leaking("a", "team/shop" if kind == "HarvesterMachine" else "vms/team-shop-lb")
    other: Any = harvester(1, pool)
    with pytest.raises(Conflict, match="was created meanwhile: run the audit again"):
        await apply_repair(management, HarvesterClient(other, frozenset()), "a", OwnerObjects(US, {}, None))
    assert len(pool["status"]["allocated"]) == 1


async def test_a_pool_that_is_in_order_or_absent_is_not_written() -> None:
    management: Any = Server("https://management:6443")
    fine = leaking("a")
    fine["status"] = {"allocated": {}, "available": 10, "total": 10}
    fine["metadata"]["annotations"] = {}
    other: Any = harvester(1, fine)
    for name in ("a", "absent"):
        assert (
            await apply_repair(management, HarvesterClient(other, frozenset()), name, OwnerObjects(US, {}, None))
            is None
        )


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_data_says_which_pools_were_released(call: Any, option: str) -> None:
    result = call("release", option, "-o", "json", of=[harvester(1, leaking("a"))])
    content = json.loads(result.stdout)
    assert (result.exit_code, content["unseen"]) == (0, [])
    assert [(item["name"], item["applied"]) for item in content["items"]] == [("a", option == "--yes")]
