"""The endpoint of a control plane never changes: other addresses are reported, a new Service gets the same one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import ConditionType
from caphv.api.object import Obj
from caphv.api.ownership import Owner
from reconciler.blocked import Blocked
from reconciler.cluster import endpoint
from reconciler.harvester import addressplan

pytestmark = pytest.mark.unit

KNOWN = "192.0.2.7"


class Scope:
    """A provisioned cluster with an endpoint, whose Service on Harvester has an address, or does not exist."""

    def __init__(self, service_address: str, *, provisioned: bool = True) -> None:
        self.obj: Obj = {
            "metadata": {"namespace": "team", "name": "demo", "uid": "u"},
            "spec": {
                "controlPlaneEndpoint": {"host": KNOWN, "port": 6443},
                "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "pool"},
            },
            "status": {"initialization": {"provisioned": provisioned}},
        }
        self.target_namespace, self.load_balancer_name = "vms", "team-demo-lb"
        self.owner = Owner("HarvesterCluster", "team", "demo", "u", "management")
        self.requests: list[addressplan.AddressRequest] = []
        self.created: list[Obj] = []
        metadata = {"namespace": "vms", "name": "team-demo-lb"}
        self.service = service_address and {
            "metadata": metadata,
            "status": {"loadBalancer": {"ingress": [{"ip": service_address}]}},
        }
        self.pools: list[Obj] = []
        self.session = SimpleNamespace(
            pools=SimpleNamespace(store=self.pools),
            services=SimpleNamespace(get=lambda *_: self.service or None, observe=lambda _: None),
            allocator=SimpleNamespace(allocate=self.allocate),
            client=SimpleNamespace(create=self.create),
            fingerprint="harvester",
        )
        self.written: list[Obj] = []

    def require_session(self) -> Any:
        return self.session

    def namespace(self) -> Any:
        return SimpleNamespace(load_balancers=SimpleNamespace(get=lambda *_: None))

    def reservation(self, name: str) -> str:
        return f"vms/{name}"

    @contextlib.contextmanager
    def subscribe(self, *_topics: object) -> Iterator[None]:
        yield

    async def allocate(self, request: addressplan.AddressRequest) -> addressplan.Grant:
        self.requests.append(request)
        return addressplan.Grant("pool", request.address or "192.0.2.99")

    async def create(self, _resource: object, service: Obj) -> Obj:
        self.created.append(service)
        address = service["spec"]["loadBalancerIP"]
        return {**service, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}}

    async def patch_spec(self, spec: Obj) -> None:
        self.written.append(spec)

    def event(self, *_: str) -> None:
        pass


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything on Harvester belongs to the cluster."""

    async def service(_scope: object, _informer: object, obj: Obj, *_: object) -> Obj:
        return obj

    async def pool(_scope: object) -> str:
        return "pool"

    monkeypatch.setattr(endpoint.adoption, "adopt_or_refuse", service)
    monkeypatch.setattr(endpoint, "adopt_load_balancer_pool", pool)
    monkeypatch.setattr(endpoint, "ensure_load_balancer_pool", pool)


def ensure(scope: Scope) -> None:
    asyncio.run(endpoint.ensure_endpoint(scope))  # type: ignore[arg-type]


def test_changed_address_is_reported_and_not_written() -> None:
    scope = Scope("192.0.2.8")
    with pytest.raises(
        Blocked, match=r"has address 192\.0\.2\.8, but the control plane endpoint is 192\.0\.2\.7"
    ) as it:
        ensure(scope)
    assert (it.value.condition, it.value.warn) == (ConditionType.LOAD_BALANCER_READY, True)
    assert scope.written == []


def test_recreated_service_asks_for_the_address_of_the_endpoint() -> None:
    scope = Scope("")
    ensure(scope)
    assert [request.address for request in scope.requests] == [KNOWN]
    assert [service["spec"]["loadBalancerIP"] for service in scope.created] == [KNOWN]
    assert scope.written == []


def test_recreated_service_asks_the_pool_of_the_endpoint_whatever_the_spec_says() -> None:
    scope = Scope("")
    scope.pools.append({"metadata": {"name": "former"}, "status": {"allocated": {KNOWN: "vms/team-demo-lb"}}})
    scope.obj["spec"]["loadBalancerConfig"] = {"ipamType": "dhcp"}
    ensure(scope)
    assert [(request.pools, request.address) for request in scope.requests] == [(("former",), KNOWN)]


def test_endpoint_that_no_machine_has_used_follows_the_service() -> None:
    scope = Scope("192.0.2.8", provisioned=False)
    ensure(scope)
    assert scope.written == [{"controlPlaneEndpoint": {"host": "192.0.2.8", "port": 6443}}]


@pytest.mark.parametrize("text", ["fd00::1%x;reboot", "api.example.com", "", 5])
def test_an_address_of_a_service_that_is_none_is_not_the_endpoint(text: object) -> None:
    assert endpoint.service_address({"status": {"loadBalancer": {"ingress": [{"ip": text}]}}}) == ""
