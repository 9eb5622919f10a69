"""An endpoint that users give is never overwritten, and its condition tells whether it answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from caphv.api.ownership import Owner
from caphv.runtime.errors import Unreachable
from reconciler.blocked import Blocked
from reconciler.cluster import adoption, externalendpoint
from reconciler.cluster.deletion import left_over, was_never_provisioned
from reconciler.cluster.endpoint import release_address
from reconciler.cluster.externalendpoint import (
    ensure_external_endpoint,
    is_external,
    report_external_endpoint,
    restore_source,
)
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.cluster import ClusterMemory
from reconciler.statusdraft import StatusDraft

pytestmark = pytest.mark.unit

delete_former_load_balancer = externalendpoint._delete_former_load_balancer
GIVEN = {"host": "api.example.com", "port": 443}
OWNER = Owner("HarvesterCluster", "team", "demo", "u", "management")
RECORD = {
    "caphv.io/owner": "HarvesterCluster/team/demo",
    "caphv.io/owner-uid": "u",
    "caphv.io/management-cluster": "management",
}


class Scope:
    """A cluster with an external endpoint."""

    def __init__(self, endpoint: Obj | None = None, *, ipam_type: str = "none") -> None:
        spec: Obj = {"targetNamespace": "vms", "loadBalancerConfig": {"ipamType": ipam_type}}
        if endpoint is not None:
            spec["controlPlaneEndpoint"] = endpoint
        self.obj: Obj = {"metadata": {"namespace": "team", "name": "demo", "uid": "u"}, "spec": spec}
        self.cluster: Obj = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        self.cluster_key, self.target_namespace = ("team", "demo"), "vms"
        self.owner, self.load_balancer_name = OWNER, "team-demo-lb"
        self.draft = StatusDraft(self.obj)
        self.outage: Exception | None = None
        self.answered = True
        self.memory = ClusterMemory("u")
        self.machines: list[Obj] = []
        self.services: dict[str, Obj] = {}
        self.balancers: dict[str, Obj] = {}
        self.pools: list[Obj] = []
        self.released: list[str] = []
        self.client_deletions: list[str] = []
        self.delays: list[float] = []
        self.warnings: list[str] = []
        self.written: list[Obj] = []
        self.context = SimpleNamespace(
            caches=SimpleNamespace(machines_of=lambda _: self.machines),
            workloads=SimpleNamespace(outage=lambda _: self.outage, has_answered=lambda _: self.answered),
            belongs_to_another_tenant=lambda *_: False,
        )
        self.requeue_within = self.delays.append

    def require_session(self) -> Any:
        pools = SimpleNamespace(store=self.pools, get=lambda *_: None)
        allocator = SimpleNamespace(settle=self._settle, release=self._release)
        client = SimpleNamespace(delete=self._delete)
        return SimpleNamespace(
            services=_cache("Service", self.services), pools=pools, allocator=allocator, client=client
        )

    def namespace(self) -> Any:
        return SimpleNamespace(load_balancers=_cache("LoadBalancer", self.balancers), vms=None)

    require_current_namespace = namespace

    async def _settle(self, _ids: object) -> None:
        pass

    async def _release(self, _pool: str, address: str, _holder: str) -> None:
        self.released.append(address)

    async def _delete(self, resource: str, name: str, _namespace: str, **_: str) -> None:
        self.client_deletions.append(f"{resource}/{name}")

    def reservation(self, name: str) -> str:
        return f"vms/{name}"

    async def patch_spec(self, spec: Obj) -> None:
        self.written.append(spec)

    def warning_event(self, reason: str, message: str) -> None:
        self.warnings.append(f"{reason}: {message}")

    def typed(self) -> ClusterScope:
        return cast(ClusterScope, self)

    def report(self) -> Obj:
        """Report the endpoint; return the condition."""
        report_external_endpoint(self.typed())
        condition = get_condition(self.draft.fields.get("conditions") or [], ConditionType.LOAD_BALANCER_READY)
        return condition or {}

    def place_own_balancer(self) -> None:
        """Place a LoadBalancer of the user, which has by chance the name that the provider would give it."""
        metadata = {"namespace": "vms", "name": "team-demo-lb", "uid": "x"}
        self.balancers["team-demo-lb"] = {"metadata": metadata, "status": {"allocatedAddress": {"ipPool": "p"}}}
        self.services["team-demo-lb"] = {"metadata": metadata, "spec": {}}
        self.pools = [{"metadata": {"name": "p"}, "status": {"allocated": {"172.16.0.5": "vms/team-demo-lb"}}}]

    def place_service(self, **annotations: str) -> None:
        metadata = {"namespace": "vms", "name": "team-demo-lb", "annotations": RECORD | annotations}
        self.services["team-demo-lb"] = {"metadata": metadata, "spec": {"loadBalancerIP": "0.0.0.0"}}


def _cache(kind: str, objects: dict[str, Obj]) -> Any:
    async def read(_namespace: str, name: str) -> Obj | None:
        return objects.get(name)

    return SimpleNamespace(
        get=lambda _, name: objects.get(name),
        read=read,
        resource=kind,
        observe_deletion=lambda *_: objects.pop("team-demo-lb", None),
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(externalendpoint.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Former load balancers that were deleted."""
    deletions: list[str] = []

    async def delete(scope: Scope) -> None:
        deletions.append(scope.load_balancer_name)

    monkeypatch.setattr(externalendpoint, "_delete_former_load_balancer", delete)
    return deletions


@pytest.mark.parametrize("endpoint", [None, {"host": "0.0.0.0", "port": 6443}, {"port": 6443}])
async def test_without_a_host_the_cluster_waits_for_its_user(endpoint: Obj | None, deleted: list[str]) -> None:
    scope = Scope(endpoint)
    with pytest.raises(Blocked, match=r"ipamType is none, but controlPlaneEndpoint\.host is not set; set it") as found:
        await ensure_external_endpoint(scope.typed())
    assert (found.value.reason, found.value.warn) == (Reason.INFRASTRUCTURE_PROVISIONING_FAILED, True)
    assert (scope.written, deleted) == ([], [])


async def test_a_given_endpoint_is_completed_and_never_overwritten() -> None:
    scope = Scope(GIVEN)
    await ensure_external_endpoint(scope.typed())
    assert scope.written == []
    scope = Scope({"host": "172.16.0.5"})
    await ensure_external_endpoint(scope.typed())
    assert scope.written == [{"controlPlaneEndpoint": {"port": 6443}}]


async def test_a_former_load_balancer_is_deleted_only_before_there_are_machines(deleted: list[str]) -> None:
    scope = Scope(GIVEN)
    scope.place_service()
    assert is_external(scope.typed())
    await ensure_external_endpoint(scope.typed())
    assert deleted == ["team-demo-lb"]

    scope.machines = [{"metadata": {"namespace": "team", "name": "first"}}]
    assert not is_external(scope.typed())
    scope.services.clear()
    assert is_external(scope.typed())
    await ensure_external_endpoint(scope.typed())
    assert deleted == ["team-demo-lb"]


@pytest.mark.parametrize(
    ("address", "source"),
    [({"ipPool": "p"}, {"ipamType": "pool", "ipPoolRef": "p"}), ({"ip": "0.0.0.0"}, {"ipamType": "dhcp"})],
)
async def test_a_load_balancer_that_stays_in_use_gets_its_source_back_before_it_is_immutable(
    address: Obj, source: Obj
) -> None:
    scope = Scope(GIVEN)
    scope.balancers["team-demo-lb"] = {"metadata": {"annotations": RECORD}, "status": {"allocatedAddress": address}}
    await restore_source(scope.typed())
    assert scope.written == [{"loadBalancerConfig": source}]
    assert scope.warnings == [
        "LoadBalancerAddressKept: loadBalancerConfig.ipamType: none was set back, because machines use the load "
        "balancer on Harvester: create a new cluster for an external endpoint"
    ]

    # Admission has refused the change by then, and refuses the way back.
    scope.obj["status"] = {"initialization": {"provisioned": True}}
    await restore_source(scope.typed())
    scope = Scope(GIVEN, ipam_type="dhcp")
    await restore_source(scope.typed())
    assert scope.written == []


def test_another_owners_service_does_not_make_the_endpoint_one_of_harvester() -> None:
    scope = Scope(GIVEN)
    scope.machines = [{"metadata": {"namespace": "team", "name": "first"}}]
    scope.place_service(**{"caphv.io/owner-uid": "other", "caphv.io/owner": "HarvesterCluster/else/where"})
    assert is_external(scope.typed())


async def test_a_load_balancer_without_a_record_is_the_users_own_and_stays() -> None:
    scope = Scope({"host": "172.16.0.5", "port": 6443})
    scope.place_own_balancer()
    await delete_former_load_balancer(scope.typed())
    # A deletion of the cluster takes these steps.
    await adoption.delete(scope.typed(), scope.namespace().load_balancers, "team-demo-lb")
    await adoption.delete(scope.typed(), scope.require_session().services, "team-demo-lb")
    await release_address(scope.typed())
    assert (scope.client_deletions, scope.released) == ([], [])

    # It is not taken over either, which would overwrite the endpoint.
    scope.machines = [{"metadata": {"namespace": "team", "name": "first"}}]
    assert is_external(scope.typed())


async def test_a_former_load_balancer_is_deleted_with_its_address() -> None:
    scope = Scope(GIVEN)
    scope.place_own_balancer()
    for objects in (scope.balancers, scope.services):
        objects["team-demo-lb"]["metadata"]["annotations"] = RECORD
    await delete_former_load_balancer(scope.typed())
    assert sorted(scope.client_deletions) == ["LoadBalancer/team-demo-lb", "Service/team-demo-lb"]
    assert scope.released == ["172.16.0.5"]


async def test_a_restored_cluster_deletes_nothing_before_its_machines_are_restored() -> None:
    """Its former record would allow an adoption, but the machines that use the address may come later."""
    scope = Scope(GIVEN)
    scope.place_own_balancer()
    scope.obj["metadata"]["annotations"] = {"caphv.io/former-owner": "management/before"}
    for objects in (scope.balancers, scope.services):
        objects["team-demo-lb"]["metadata"]["annotations"] = {**RECORD, "caphv.io/owner-uid": "before"}
    await delete_former_load_balancer(scope.typed())
    assert (scope.client_deletions, scope.released) == ([], [])


@pytest.mark.parametrize("ipam_type", ["dhcp", "pool"])
def test_an_endpoint_is_not_external_with_a_load_balancer(ipam_type: str) -> None:
    assert not is_external(Scope(GIVEN, ipam_type=ipam_type).typed())


def test_the_condition_is_true_while_the_control_plane_answers() -> None:
    condition = Scope(GIVEN).report()
    assert condition["status"] == "True"
    assert condition["message"] == (
        "control plane endpoint api.example.com:443 is external: nothing on Harvester serves it"
    )


def test_an_outage_is_reported_once_it_lasts_and_until_it_ends(clock: list[float]) -> None:
    scope = Scope({"host": "172.16.0.5"})
    scope.report()
    scope.outage = Unreachable("connection refused by 172.16.0.5")
    assert (scope.report()["status"], scope.delays) == ("True", [15.0])
    clock[0] += 5
    assert (scope.report()["status"], scope.delays) == ("True", [15.0, 10.0])

    clock[0] += 10
    condition = scope.report()
    assert (condition["status"], condition["reason"]) == ("False", "ControlPlaneUnreachable")
    assert condition["message"] == (
        "the control plane does not answer at its external endpoint 172.16.0.5:6443: no answer; "
        "check your load balancer and the control plane machines"
    )

    scope.outage = None
    assert scope.report()["status"] == "True"
    scope.outage = Unreachable("again")
    assert scope.report()["status"] == "True"


def test_a_restart_of_the_provider_keeps_the_report_of_an_outage(clock: list[float]) -> None:
    scope = Scope(GIVEN)
    scope.outage = Unreachable("refused")
    scope.report()
    clock[0] += 15
    assert scope.report()["status"] == "False"
    # The first reconcile comes before the first attempt to connect.
    scope.memory, scope.outage, scope.answered = ClusterMemory("u"), None, False
    assert scope.report()["status"] == "False"
    scope.outage = Unreachable("refused")
    assert scope.report()["status"] == "False"

    scope.outage, scope.answered = None, True
    assert scope.report()["status"] == "True"


def test_no_machine_has_to_answer_before_the_control_plane_is_initialized(clock: list[float]) -> None:
    scope = Scope(GIVEN)
    scope.cluster = {}
    scope.outage = Unreachable("refused")
    assert scope.report()["status"] == "True"
    clock[0] += 100
    assert (scope.report()["status"], scope.delays) == ("True", [15.0, 15.0])


def test_a_cluster_that_never_reached_harvester_is_deleted_in_spite_of_its_endpoint() -> None:
    obj = Scope(GIVEN).obj
    assert was_never_provisioned(obj)
    # The server is in the spec since the identity was read, and survives a move.
    obj["spec"]["server"] = "https://harvester:6443"
    assert not was_never_provisioned(obj)
    assert not was_never_provisioned(Scope(GIVEN, ipam_type="dhcp").obj)


def test_a_forced_deletion_leaves_no_load_balancer() -> None:
    assert "LoadBalancer and Service" not in left_over(Scope(GIVEN).obj)
    assert "LoadBalancers and volumes of its guest in namespace vms" in left_over(Scope(GIVEN).obj)
    assert "LoadBalancer and Service vms/team-demo-lb" in left_over(Scope(GIVEN, ipam_type="dhcp").obj)
