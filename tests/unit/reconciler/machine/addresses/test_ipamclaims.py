"""What a machine says while claims have no addresses, what requeues it, and which claims it releases."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, Resource
from caphv.runtime.errors import AlreadyExists, Forbidden, NotFound, Unreachable
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.machine.addresses.ipamclaims import (
    check_address_claims,
    confirm_address_claims,
    ensure_address_claims,
    known_addresses,
    release_address_claims,
)
from reconciler.machine.addresses.ipamplan import claim_object, wanted_claims
from reconciler.machine.addresses.state import report_addresses
from reconciler.machine.guestinterfaces import GuestAddress
from reconciler.machine.scope import MachineScope
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics

pytestmark = pytest.mark.unit

VERSION = "v1beta2"
ALLOCATED = ConditionType.VM_IP_ALLOCATED
POOLS = [{"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name} for name in ("v4", "v6")]
SPEC = {"networks": ["a", "b"], "networkInterfaces": [{"network": "a", "addressesFromPools": POOLS}]}
# The in-cluster provider has its pools in the group of the claims.
POOL_KINDS = {"v1alpha2": ["InClusterIPPool"], "v1alpha1": ["InClusterIPPool"]}
KINDS = {VERSION: ["IPAddressClaim", "IPAddress"], "v1beta1": ["IPAddressClaim", "IPAddress"]}


class Machine:
    """A machine with claims for two pools on a management cluster."""

    def __init__(self, spec: Obj | None = None) -> None:
        self.spec = SPEC if spec is None else spec
        self.obj: Obj = {
            "metadata": {
                "namespace": "team",
                "name": "one",
                "uid": "uid-1",
                "labels": {"cluster.x-k8s.io/cluster-name": "shop"},
            },
            "spec": self.spec,
        }
        self.stored: dict[str, Obj] = {}
        self.live = self.stored
        """Claims of the server; a broken watch does not deliver them."""
        self.addresses: dict[str, Obj] = {}
        self.is_served: bool | None = True
        self.kinds: dict[str, list[str]] = POOL_KINDS | KINDS
        self.is_filled = True
        self.error: Exception | None = None
        self.deleted: list[tuple[str, str]] = []
        self.denied: set[str] = set()
        self.events: list[str] = []
        self.draft = StatusDraft(self.obj)
        self.queue: WorkQueue[Key] = WorkQueue("test")
        self.topics = Topics()

    def stall(self) -> None:
        """Have the watch of claims deliver nothing from now on."""
        self.live = dict(self.stored)

    def create(self, claim: Obj, uid: str = "") -> Obj:
        name = claim["metadata"]["name"]
        if name in self.live:
            raise AlreadyExists(409, "AlreadyExists", name)
        self.live[name] = {**copy.deepcopy(claim), "status": {}}
        self.live[name]["metadata"]["uid"] = uid or f"uid-of-{name}"
        return self.live[name]

    def answer(self, name: str, **spec: Any) -> None:
        self.stored[name]["status"] = {"addressRef": {"name": name}}
        owners = [{"kind": "InClusterIPPool", "uid": "pool"}, {"kind": "IPAddressClaim", "uid": f"uid-of-{name}"}]
        metadata = {"name": name, "ownerReferences": owners}
        self.addresses[name] = {"metadata": metadata, "spec": {"claimRef": {"name": name}, **spec}}

    def fail(self, name: str, reason: str, message: str) -> None:
        condition = {"type": "Ready", "status": "False", "reason": reason, "message": message}
        self.stored[name]["status"] = {"conditions": [condition]}

    @property
    def scope(self) -> MachineScope:
        claims = SimpleNamespace(
            resource=resources.ip_address_claims(VERSION),
            get=lambda _namespace, name: self.stored.get(name),
            observe=lambda claim: self.stored.update({claim["metadata"]["name"]: claim}),
            forget=lambda _namespace, name: self.stored.pop(name, None),
        )
        addresses = SimpleNamespace(get=lambda _namespace, name: self.addresses.get(name))
        ipam = SimpleNamespace(
            start=lambda: None,
            is_served=self.is_served,
            error=self.error,
            claims=claims if self.is_filled else None,
            addresses=addresses if self.is_filled else None,
        )
        client = SimpleNamespace(create=self._create, get=self._get, delete=self._delete, request=self._request)
        scope = SimpleNamespace(
            obj=self.obj,
            key=Key("team", "one"),
            name="one",
            spec=self.spec,
            cluster_spec={},
            draft=self.draft,
            context=SimpleNamespace(ipam=ipam, client=client),
            subscribe=lambda *topics: self.topics.subscribe(self.queue, Key("team", "one"), *topics),
            warning_event=lambda reason, _message: self.events.append(reason),
        )
        return cast(MachineScope, scope)

    async def blocked(self) -> Blocked:
        with pytest.raises(Blocked) as caught:
            await ensure_address_claims(self.scope)
        return caught.value

    def requeued(self) -> bool:
        self.topics.notify(triggers.IPAM)
        return len(self.queue) == 1

    async def _create(self, _resource: Resource, claim: Obj) -> Obj:
        return self.create(claim)

    async def _get(self, _resource: Resource, name: str, _namespace: str) -> Obj:
        self._check_right("get")
        if name not in self.live:
            raise NotFound(404, "NotFound", name)
        return self.live[name]

    async def _delete(self, _resource: Resource, name: str, _namespace: str, *, uid: str) -> None:
        self._check_right("delete")
        self.deleted.append((name, uid))

    def _check_right(self, verb: str) -> None:
        if verb in self.denied:
            raise Forbidden(403, "Forbidden", f"cannot {verb} ipaddressclaims")

    async def _request(self, _method: str, path: str) -> Obj:
        group, _, version = path.removeprefix("/apis/").partition("/")
        if not self.is_served or (version and version not in self.kinds):
            raise NotFound(404, "NotFound", path)
        if version:
            kinds = [{"name": f"{kind.lower()}s", "kind": kind, "namespaced": True} for kind in self.kinds[version]]
            return {"resources": kinds}
        versions = [{"version": name} for name in self.kinds]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}


@pytest.mark.parametrize(
    ("is_served", "error", "reason", "text", "warn"),
    [
        (False, None, "IPAMNotAvailable", "has no IPAddressClaims of ipam.cluster.x-k8s.io: install", True),
        (True, Forbidden(403, "Forbidden", "no"), "IPAMNotAvailable", "its ClusterRole caphv-manager-role", True),
        (None, Forbidden(403, "Forbidden", "no"), "IPAMNotAvailable", "(Forbidden)", True),
        (
            True,
            NotFound(404, "NotFound", ""),
            "IPAMNotAvailable",
            "ipam.cluster.x-k8s.io in v1beta2 or v1beta1: inst",
            False,
        ),
        (True, Unreachable("down"), "IPAMNotAvailable", "(Unreachable); the log", False),
        (None, None, "VMIPClaimPending", "reading IPAddressClaims", False),
        (True, None, "VMIPClaimPending", "reading IPAddressClaims", False),
    ],
)
async def test_machine_waits_for_the_caches_and_is_requeued(
    is_served: bool | None, error: Exception | None, reason: str, text: str, warn: bool
) -> None:
    machine = Machine()
    machine.is_served, machine.error, machine.is_filled = is_served, error, False
    blocked = await machine.blocked()
    assert (blocked.condition, blocked.reason, blocked.warn) == (ALLOCATED, reason, warn)
    assert text in blocked.message
    assert not machine.stored
    assert machine.requeued()


async def test_machine_without_the_field_asks_for_nothing() -> None:
    machine = Machine({"networks": ["a"]})
    machine.is_served, machine.is_filled = False, False
    assert await ensure_address_claims(machine.scope) == []
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    await release_address_claims(machine.scope)
    assert known_addresses(machine.scope) == []
    assert not machine.requeued()


async def test_all_claims_are_made_before_the_first_is_answered_and_used_once_all_are() -> None:
    machine = Machine()
    blocked = await machine.blocked()
    assert list(machine.stored) == ["one-0-0", "one-0-1"]
    assert (blocked.reason, blocked.warn) == ("VMIPClaimPending", False)
    assert "IPAddressClaim one-0-0;" in blocked.message
    assert "IPAddressClaim one-0-1;" in blocked.message
    # The in-cluster provider reports an exhausted pool in its log only.
    assert "check that the pool exists and has a free address, and that its IPAM provider runs" in blocked.message

    machine.answer("one-0-0", address="10.0.0.5", prefix=24, gateway="10.0.0.1")
    blocked = await machine.blocked()
    assert "one-0-0" not in blocked.message
    machine.answer("one-0-1", address="fd00::5", prefix=64)
    claimed = await ensure_address_claims(machine.scope)
    assert claimed == [(0, GuestAddress("10.0.0.5", 24, "10.0.0.1")), (0, GuestAddress("fd00::5", 64))]
    assert known_addresses(machine.scope) == ["10.0.0.5", "fd00::5"]


async def test_claim_that_is_answered_before_its_address_arrives_is_pending() -> None:
    machine = Machine()
    await machine.blocked()
    machine.answer("one-0-0", address="10.0.0.5", prefix=24)
    machine.answer("one-0-1", address="fd00::5", prefix=64)
    del machine.addresses["one-0-1"]
    blocked = await machine.blocked()
    assert (blocked.reason, "one-0-1" in blocked.message) == ("VMIPClaimPending", True)


async def test_message_has_all_problems_and_the_reason_is_the_gravest() -> None:
    machine = Machine()
    await machine.blocked()
    machine.fail("one-0-1", "PoolExhausted", "0 of 9 free")
    blocked = await machine.blocked()
    assert (blocked.reason, blocked.warn) == ("VMIPPoolExhausted", True)
    assert "InClusterIPPool v6 has no free address: add a range to it, or free one (0 of 9 free)" in blocked.message
    assert "InClusterIPPool v4 to answer" in blocked.message

    machine.answer("one-0-0", address="10.0.0.5", prefix=64)
    blocked = await machine.blocked()
    assert blocked.reason == "VMIPAllocationFailed"
    assert "IPAddress one-0-0 of InClusterIPPool v4 cannot be used, because its prefix is 64" in blocked.message
    assert "v6 has no free address" in blocked.message

    machine.fail("one-0-1", "PoolNotReady", "the pool has no gateway")
    blocked = await machine.blocked()
    assert "answer IPAddressClaim one-0-1: the pool has no gateway" in blocked.message


@pytest.mark.parametrize(
    ("change", "text", "warn"),
    [
        ({"metadata": {"ownerReferences": []}}, "belongs to another owner", True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is being deleted", False),
        # Of a former machine of the name, while its pool keeps the address from others.
        (
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": []}},
            "is being deleted: a new one follows",
            False,
        ),
        # The owner is there, and another is the controller.
        (
            {"metadata": {"ownerReferences": [{"uid": "uid-1"}, {"uid": "other", "controller": True}]}},
            "another owner",
            True,
        ),
        ({"spec": {"poolRef": {**POOLS[0], "name": "other"}}}, "is not for InClusterIPPool v4: delete it", True),
        ({"spec": {"poolRef": {**POOLS[0], "apiGroup": "example.com"}}}, "is not for InClusterIPPool v4", True),
    ],
)
async def test_claim_that_cannot_be_used(change: Obj, text: str, warn: bool) -> None:
    machine = Machine()
    (wanted, _) = wanted_claims("one", SPEC)
    claim = claim_object(wanted, machine.obj, "shop", VERSION)
    machine.create({**claim, **{part: {**claim[part], **fields} for part, fields in change.items()}})
    blocked = await machine.blocked()
    assert (blocked.reason, blocked.warn, text in blocked.message) == ("VMIPAllocationFailed", warn, True)
    assert known_addresses(machine.scope) == []


@pytest.mark.parametrize(
    "lose",
    [
        lambda machine: machine.stored.pop("one-0-1"),
        lambda machine: machine.stored["one-0-1"]["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        lambda machine: machine.stored["one-0-1"]["metadata"].update(ownerReferences=[{"uid": "other"}]),
    ],
)
async def test_lost_claim_of_a_vm_is_reported_once_and_not_recreated(lose: Any) -> None:
    machine = Machine()
    await machine.blocked()
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    assert machine.draft.is_true(ALLOCATED)

    lose(machine)
    stored = set(machine.stored)
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    assert not machine.draft.is_true(ALLOCATED)
    assert machine.events == ["VMIPAllocationFailed"]
    machine.obj = {**machine.obj, "status": machine.draft.fields}
    machine.draft = StatusDraft(machine.obj)
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    assert machine.events == ["VMIPAllocationFailed"]
    assert set(machine.stored) == stored


def test_claims_of_a_vm_are_checked_once_the_caches_are_filled() -> None:
    machine = Machine()
    machine.is_filled = False
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    assert not machine.draft.has(ALLOCATED)
    assert machine.requeued()

    machine = Machine()
    report_addresses(machine.scope, [check_address_claims(machine.scope)])
    assert not machine.requeued()


async def test_own_claims_are_released_by_their_uid_and_no_others() -> None:
    machine = Machine()
    await machine.blocked()
    machine.stored["one-0-1"]["metadata"]["ownerReferences"] = [{"kind": "HarvesterMachine", "uid": "uid-2"}]
    await release_address_claims(machine.scope)
    assert machine.deleted == [("one-0-0", "uid-of-one-0-0")]

    machine.stored.clear()
    await release_address_claims(machine.scope)
    machine.is_served = False
    await release_address_claims(machine.scope)
    assert machine.deleted == [("one-0-0", "uid-of-one-0-0")]


@pytest.mark.parametrize(
    ("kinds", "is_released"),
    [
        (POOL_KINDS, False),
        # A core before 1.5, next to a provider whose pools have the newest version.
        (POOL_KINDS | {"v1alpha1": ["IPAddressClaim", "IPAddress"], VERSION: ["InClusterIPPool"]}, False),
        ({**KINDS, VERSION: ["InClusterIPPool"]}, True),
    ],
)
async def test_deletion_ends_when_the_group_of_the_claims_has_only_kinds_of_others(
    kinds: dict[str, list[str]], is_released: bool
) -> None:
    machine = Machine()
    await machine.blocked()
    machine.kinds = kinds
    await release_address_claims(machine.scope)
    assert machine.deleted == [(name, f"uid-of-{name}") for name in ("one-0-0", "one-0-1") if is_released]


async def answered() -> Machine:
    """A machine whose claims have addresses."""
    machine = Machine()
    await machine.blocked()
    machine.answer("one-0-0", address="10.0.0.5", prefix=24)
    machine.answer("one-0-1", address="fd00::5", prefix=64)
    return machine


@pytest.mark.parametrize(
    "age",
    [
        lambda address: address["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        lambda address: address["metadata"]["ownerReferences"][1].update(uid="uid-of-a-former-claim"),
        lambda address: address["spec"].update(claimRef={"name": "two-0-0"}),
    ],
)
async def test_address_of_another_claim_is_not_used(age: Any) -> None:
    machine = await answered()
    age(machine.addresses["one-0-0"])
    blocked = await machine.blocked()
    assert (blocked.reason, "IPAddressClaim one-0-0;" in blocked.message) == ("VMIPClaimPending", True)
    assert known_addresses(machine.scope) == ["fd00::5"]


async def test_address_of_a_provider_that_sets_no_owner_is_used() -> None:
    machine = await answered()
    for address in machine.addresses.values():
        address["metadata"]["ownerReferences"] = []
    assert len(await ensure_address_claims(machine.scope)) == 2


async def test_claim_that_a_broken_watch_has_lost_is_recreated_before_the_vm_is_created() -> None:
    machine = await answered()
    claimed = await ensure_address_claims(machine.scope)
    await confirm_address_claims(machine.scope, claimed)

    machine.stall()
    del machine.live["one-0-1"]
    assert await ensure_address_claims(machine.scope) == claimed
    with pytest.raises(Blocked, match="IPAddressClaim one-0-1 was deleted before the VM was created") as caught:
        await confirm_address_claims(machine.scope, claimed)
    assert (caught.value.reason, caught.value.requeue_after) == ("VMIPClaimPending", 1)
    await machine.blocked()
    assert "one-0-1" in machine.live


async def test_claim_that_replaced_another_is_answered_before_the_vm_is_created() -> None:
    machine = await answered()
    claimed = await ensure_address_claims(machine.scope)
    machine.stall()
    replaced = machine.live.pop("one-0-0")
    machine.create(replaced, uid="uid-2")
    with pytest.raises(Blocked, match="to answer IPAddressClaim one-0-0"):
        await confirm_address_claims(machine.scope, claimed)

    # The caches have caught up, and the guest's configuration has the former address.
    machine.answer("one-0-0", address="10.0.0.6", prefix=24)
    machine.live["one-0-0"] = {**machine.stored["one-0-0"]}
    machine.addresses["one-0-0"]["metadata"]["ownerReferences"] = [{"kind": "IPAddressClaim", "uid": "uid-2"}]
    with pytest.raises(Blocked, match="have changed before the VM was created: claiming again"):
        await confirm_address_claims(machine.scope, claimed)
    await confirm_address_claims(machine.scope, await ensure_address_claims(machine.scope))


async def test_claim_in_deletion_gives_no_vm_an_address() -> None:
    machine = await answered()
    claimed = await ensure_address_claims(machine.scope)
    machine.stall()
    metadata = {**machine.live["one-0-0"]["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    machine.live["one-0-0"] = {**machine.live["one-0-0"], "metadata": metadata}
    with pytest.raises(Blocked, match="IPAddressClaim one-0-0 is being deleted"):
        await confirm_address_claims(machine.scope, claimed)


@pytest.mark.parametrize("verb", ["get", "delete"])
async def test_deletion_without_rights_leaves_claims_to_the_garbage_collector(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    await machine.blocked()
    machine.denied = {verb}
    await release_address_claims(machine.scope)
    assert machine.deleted == []
    for name in machine.stored:
        assert f"leaving IPAddressClaim {name} to the garbage collector: cannot {verb}" in caplog.text
