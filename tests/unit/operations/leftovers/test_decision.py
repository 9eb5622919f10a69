"""Which objects on Harvester are leftovers: only those of this management cluster, whose owner does not exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names, resources
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    key_of,
)
from caphv.api.ownership import Owner, record
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.leftovers.decision import ADDRESS, KINDS, HarvesterState, OwnedObject, examine
from operations.read.owners import OwnerObjects

pytestmark = pytest.mark.unit

US, OTHERS = "management-us", "management-others"
VMS, POOLS, BALANCERS = resources.VIRTUAL_MACHINES, resources.IP_POOLS, resources.LOAD_BALANCERS
GONE = Owner("HarvesterMachine", "team", "gone", "gone-uid", US)
GONE_CLUSTER = Owner("HarvesterCluster", "team", "shop", "shop-uid", US)


def obj(name: str, owner: Owner | None = GONE, *, namespace: str = "vms", **fields: Any) -> Obj:
    metadata: Obj = {"name": name, "uid": f"{name}-vm", "annotations": record(owner) if owner else {}}
    if namespace:
        metadata["namespace"] = namespace
    return {"metadata": metadata, **fields}


def vm(
    name: str,
    owner: Owner | None = GONE,
    *,
    claim: str = "",
    secret: str = "",
    status: str = "Stopped",
    label: str = "",
) -> Obj:
    volumes: list[Obj] = [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    if secret:
        volumes.append({"name": "init", "cloudInitNoCloud": {"secretRef": {"name": secret}}})
    spec = {"template": {"spec": {"volumes": volumes}}}
    made = obj(name, owner, spec=spec, status={"printableStatus": status})
    if label:
        made["metadata"]["labels"] = {names.CLUSTER_LABEL: label}
    return made


def owned(kind: str, name: str, uid: str, **fields: Any) -> Obj:
    """Return a HarvesterMachine or HarvesterCluster."""
    metadata = {"namespace": "team", "name": name, "uid": uid, "annotations": fields.pop("annotations", {})}
    return {"kind": kind, "metadata": metadata, **fields}


def owners(*objs: Obj, namespaces: frozenset[str] | None = None, uid: str = US) -> OwnerObjects:
    machines = {key_of(each): each for each in objs if each["kind"] == "HarvesterMachine"}
    clusters = {key_of(each): each for each in objs if each["kind"] == "HarvesterCluster"}
    return OwnerObjects(uid, machines, namespaces, (), clusters)


def result(objects: dict[Resource, list[Obj]], have: OwnerObjects | None = None, **fields: Any) -> list[OwnedObject]:
    return list(examine(HarvesterState("https://h", have or owners(), objects, **fields)).objects)


def verdicts(objects: dict[Resource, list[Obj]], have: OwnerObjects | None = None, **fields: Any) -> dict[str, Verdict]:
    return {each.subject: each.verdict for each in result(objects, have, **fields)}


def test_everything_of_an_owner_that_does_not_exist_is_left_over_in_the_order_of_deletion() -> None:
    objects = {
        POOLS: [obj("team-shop-ippool", GONE_CLUSTER, namespace="")],
        SERVICE_ACCOUNTS: [obj("shop", GONE_CLUSTER)],
        CLUSTER_ROLE_BINDINGS: [obj("shop", GONE_CLUSTER, namespace="")],
        SERVICES: [obj("team-shop-lb", GONE_CLUSTER)],
        BALANCERS: [obj("team-shop-lb", GONE_CLUSTER)],
        SECRETS: [obj("gone-cloud-init"), obj("shop-token", GONE_CLUSTER)],
        PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")],
        VMS: [vm("gone", claim="gone-disk-0-abcde", secret="gone-cloud-init")],
    }
    pools = (PoolReport(harvester="https://h", name="team-shop-ippool", total=10, available=10, expected=10),)
    found = result(objects, pools=pools)
    assert {each.verdict for each in found} == {Verdict.LEAKED}
    assert [each.kind for each in found] == [
        "VirtualMachine",
        "PersistentVolumeClaim",
        "Secret",
        "Secret",
        "LoadBalancer",
        "Service",
        "ClusterRoleBinding",
        "ServiceAccount",
        "IPPool",
    ]
    assert found[0].owner == "HarvesterMachine team/gone"


def test_what_an_owner_has_is_not_listed() -> None:
    have = owners(owned("HarvesterMachine", "gone", "gone-uid"))
    assert verdicts({VMS: [vm("gone")], SECRETS: [obj("gone-cloud-init")]}, have) == {}


@pytest.mark.parametrize(
    ("successor", "held"),
    [
        (owned("HarvesterMachine", "gone", "new"), False),
        (owned("HarvesterMachine", "gone", "new", annotations={names.ADOPT_ANNOTATION: "true"}), True),
        (owned("HarvesterMachine", "gone", "new", annotations={names.FORMER_OWNER_ANNOTATION: f"{US}/gone-uid"}), True),
        (owned("HarvesterMachine", "gone", "new", annotations={names.FORMER_OWNER_ANNOTATION: f"{US}/other"}), False),
        (owned("HarvesterMachine", "gone", "new", spec={"providerID": "harvester://gone-vm"}), True),
        (owned("HarvesterMachine", "gone", "new", annotations={names.VM_UID_ANNOTATION: "gone-vm"}), True),
        (owned("HarvesterMachine", "gone", "new", spec={"providerID": "harvester://another"}), False),
    ],
)
def test_an_owner_of_the_same_name_keeps_what_it_adopts(successor: Obj, held: bool) -> None:
    found = verdicts({VMS: [vm("gone")], PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")]}, owners(successor))
    assert set(found.values()) == (set() if held else {Verdict.LEAKED})


def test_a_cluster_that_was_created_again_keeps_what_its_machines_prove() -> None:
    cluster = owned("HarvesterCluster", "shop", "new")
    machine = owned("HarvesterMachine", "shop-cp", "cp", spec={"providerID": "harvester://shop-cp-vm"})
    machine["metadata"]["labels"] = {names.CLUSTER_NAME_LABEL: "shop"}
    objects = {BALANCERS: [obj("team-shop-lb", GONE_CLUSTER)]}
    assert verdicts(objects, owners(cluster)) == {"LoadBalancer vms/team-shop-lb": Verdict.LEAKED}
    proof = vm("shop-cp", Owner("HarvesterMachine", "team", "shop-cp", "cp", US))
    assert verdicts({**objects, VMS: [proof]}, owners(cluster, machine)) == {}


@pytest.mark.parametrize(
    ("annotations", "verdict"),
    [
        ({}, Verdict.UNRECORDED),
        (record(GONE) | {names.OWNER_CLUSTER_ANNOTATION: OTHERS}, Verdict.FOREIGN),
        ({names.OWNER_CLUSTER_ANNOTATION: OTHERS}, Verdict.FOREIGN),
        ({names.OWNER_CLUSTER_ANNOTATION: US}, Verdict.UNRECORDED),
        ({names.OWNER_ANNOTATION: "HarvesterMachine/team/gone"}, Verdict.UNRECORDED),
        (record(GONE) | {names.OWNER_ANNOTATION: "HarvesterMachine/team/gone/x"}, Verdict.UNRECORDED),
        (record(GONE) | {names.OWNER_ANNOTATION: "Other/team/gone"}, Verdict.UNKNOWN),
    ],
)
def test_what_others_and_people_made_is_listed_and_no_leftover(annotations: dict[str, str], verdict: Verdict) -> None:
    machine = vm("gone")
    machine["metadata"]["annotations"] = annotations
    assert verdicts({VMS: [machine]}) == {"VirtualMachine vms/gone": verdict}


def test_without_the_uid_of_the_management_cluster_or_all_owners_nothing_is_left_over() -> None:
    assert verdicts({VMS: [vm("gone")]}, owners(uid="")) == {"VirtualMachine vms/gone": Verdict.UNKNOWN}
    elsewhere = owners(namespaces=frozenset({"other"}))
    assert verdicts({VMS: [vm("gone")]}, elsewhere) == {"VirtualMachine vms/gone": Verdict.UNKNOWN}


@pytest.mark.parametrize("user", [None, Owner("HarvesterMachine", "team", "gone", "gone-uid", OTHERS)])
def test_a_disk_or_secret_that_another_vm_uses_stays(user: Owner | None) -> None:
    machine = vm("rescue", user, claim="gone-disk-0-abcde", secret="gone-cloud-init")
    objects = {VMS: [machine], PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")], SECRETS: [obj("gone-cloud-init")]}
    found = verdicts(objects)
    assert found["PersistentVolumeClaim vms/gone-disk-0-abcde"] is Verdict.IN_USE
    assert found["Secret vms/gone-cloud-init"] is Verdict.IN_USE


def test_a_disk_that_a_vm_has_as_a_data_volume_stays() -> None:
    machine = vm("rescue", None)
    machine["spec"]["template"]["spec"]["volumes"] = [{"name": "x", "dataVolume": {"name": "gone-disk-0-abcde"}}]
    found = verdicts({VMS: [machine], PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")]})
    assert found["PersistentVolumeClaim vms/gone-disk-0-abcde"] is Verdict.IN_USE


RESTORED = "restore-backup-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901-disk-0"
"""As Harvester names the disk of a restored VM, with the record of the VM that was backed up."""


@pytest.mark.parametrize("attached", [True, False])
def test_a_restored_disk_with_a_copied_record_stays(attached: bool) -> None:
    copied = vm("rescue", claim=RESTORED if attached else "another")
    found = verdicts({VMS: [copied], PERSISTENT_VOLUME_CLAIMS: [obj(RESTORED)]})
    assert set(found.values()) == {Verdict.UNKNOWN}
    assert f"PersistentVolumeClaim vms/{RESTORED}" in found


def test_what_a_restored_vm_uses_stays() -> None:
    """A VM that was restored under another name may use the disk and the Secret of the former one."""
    copied = vm("rescue", claim="gone-disk-0-abcde", secret="gone-cloud-init")
    objects = {VMS: [copied], PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")], SECRETS: [obj("gone-cloud-init")]}
    assert list(verdicts(objects).values()) == [Verdict.IN_USE, Verdict.IN_USE, Verdict.UNKNOWN]


def test_an_object_that_harvester_restored_under_its_name_stays() -> None:
    disk = obj("gone-disk-0-abcde")
    disk["metadata"]["annotations"]["restore.harvesterhci.io/name"] = "restore-1"
    (only,) = result({PERSISTENT_VOLUME_CLAIMS: [disk]})
    assert (only.verdict, "by hand" in only.detail) == (Verdict.UNKNOWN, True)


def test_vms_that_are_not_seen_may_use_a_disk() -> None:
    objects = {PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")], BALANCERS: [obj("team-shop-lb", GONE_CLUSTER)]}
    found = verdicts(objects, vm_namespaces=frozenset({"others"}))
    assert found["PersistentVolumeClaim vms/gone-disk-0-abcde"] is Verdict.UNKNOWN
    assert found["LoadBalancer vms/team-shop-lb"] is Verdict.UNKNOWN
    recreated = verdicts(objects, owners(owned("HarvesterCluster", "shop", "new")), vm_namespaces=frozenset())
    assert recreated["LoadBalancer vms/team-shop-lb"] is Verdict.UNKNOWN


# VMs that may be at work

OF_CLUSTER = {
    BALANCERS: [obj("team-shop-lb", GONE_CLUSTER)],
    SERVICES: [obj("team-shop-lb", GONE_CLUSTER)],
    SERVICE_ACCOUNTS: [obj("shop", GONE_CLUSTER)],
    CLUSTER_ROLE_BINDINGS: [obj("shop", GONE_CLUSTER, namespace="", subjects=[{"namespace": "vms", "name": "shop"}])],
    SECRETS: [obj("shop-token", GONE_CLUSTER), obj("gone-cloud-init")],
    PERSISTENT_VOLUME_CLAIMS: [obj("gone-disk-0-abcde")],
    POOLS: [obj("team-shop-ippool", GONE_CLUSTER, namespace="")],
}
EMPTY_POOL = (PoolReport(harvester="https://h", name="team-shop-ippool", total=10, available=10, expected=10),)
DISK, INIT = "gone-disk-0-abcde", "gone-cloud-init"


@given(
    st.sampled_from(["Running", "Starting", "Stopping", "Paused", "Migrating", "CrashLoopBackOff", ""]),
    st.sampled_from(["team.shop", ""]),
)
def test_a_vm_that_is_not_stopped_keeps_what_it_and_its_cluster_need(status: str, label: str) -> None:
    objects = OF_CLUSTER | {VMS: [vm("gone", status=status, label=label, claim=DISK, secret=INIT)]}
    found = result(objects, pools=EMPTY_POOL)
    assert {each.verdict for each in found} == {Verdict.IN_USE}
    assert "--running" in found[0].detail
    asked = result(objects, pools=EMPTY_POOL, include_running=True)
    assert {each.verdict for each in asked} == {Verdict.LEAKED}


def test_a_vm_that_is_parked_keeps_what_it_and_its_cluster_need() -> None:
    """After a restore of the management cluster to a state before the park, it serves its users when resumed."""
    parked = vm("gone", claim=DISK, secret=INIT)
    parked["metadata"]["annotations"][names.PARKED_STRATEGY_ANNOTATION] = "RerunOnFailure"
    objects = OF_CLUSTER | {VMS: [parked]}
    found = result(objects, pools=EMPTY_POOL)
    assert {each.verdict for each in found} == {Verdict.IN_USE}
    assert "it is parked: adopt it, or delete it with --running" in found[0].detail
    asked = result(objects, pools=EMPTY_POOL, include_running=True)
    assert {each.verdict for each in asked} == {Verdict.LEAKED}


def test_a_vm_that_is_stopped_is_left_over_with_what_its_cluster_needs() -> None:
    objects = OF_CLUSTER | {VMS: [vm("gone", label="team.shop", claim=DISK, secret=INIT)]}
    assert {each.verdict for each in result(objects, pools=EMPTY_POOL)} == {Verdict.LEAKED}


LIVING = Owner("HarvesterMachine", "team", "here", "here-uid", US)


@pytest.mark.parametrize(
    ("owner", "label"),
    [
        (None, "team.shop"),
        (LIVING, "team.shop"),
        (LIVING, ""),
        (Owner("HarvesterMachine", "elsewhere", "x", "x", OTHERS), "team.shop"),
    ],
)
def test_a_stopped_vm_that_stays_keeps_what_its_cluster_needs(owner: Owner | None, label: str) -> None:
    have = owners(owned("HarvesterMachine", "here", "here-uid"))
    found = verdicts(OF_CLUSTER | {VMS: [vm("here", owner, label=label)]}, have, pools=EMPTY_POOL)
    in_use = {subject for subject, verdict in found.items() if verdict is Verdict.IN_USE}
    assert in_use == {
        "LoadBalancer vms/team-shop-lb",
        "Service vms/team-shop-lb",
        "ServiceAccount vms/shop",
        "ClusterRoleBinding shop",
        "Secret vms/shop-token",
        "IPPool team-shop-ippool",
    }


def test_the_cluster_of_a_topology_has_a_shorter_name_than_what_it_made() -> None:
    balancer = obj("team-shop-x7k2p-lb", Owner("HarvesterCluster", "team", "shop-x7k2p", "uid", US))
    have = owners(owned("HarvesterMachine", "here", "here-uid"))
    found = verdicts({BALANCERS: [balancer], VMS: [vm("here", LIVING, label="team.shop")]}, have)
    assert found == {"LoadBalancer vms/team-shop-x7k2p-lb": Verdict.IN_USE}


@pytest.mark.parametrize(
    "other",
    [
        vm("here", LIVING, label="team.blog", status="Running"),
        vm("by-hand", None, status="Running"),
        vm("x", Owner("HarvesterMachine", "team", "x", "x", OTHERS), status="Running"),
    ],
)
def test_vms_of_others_keep_nothing_of_a_cluster(other: Obj) -> None:
    machine = owned("HarvesterMachine", "here", "here-uid")
    found = verdicts(
        OF_CLUSTER | {VMS: [other]}, owners(machine, owned("HarvesterCluster", "blog", "b")), pools=EMPTY_POOL
    )
    assert Verdict.IN_USE not in found.values()


def pool_with(*entries: Entry) -> tuple[PoolReport, ...]:
    return (
        PoolReport(harvester="https://h", name="team-shop-ippool", total=10, available=9, expected=9, entries=entries),
    )


POOL = {POOLS: [obj("team-shop-ippool", GONE_CLUSTER, namespace="")]}


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.LEAKED])
def test_a_pool_whose_addresses_others_hold_stays(verdict: Verdict) -> None:
    entry = Entry(
        pool="team-shop-ippool", address="10.0.0.9", id="team/other", verdict=verdict, owner="VirtualMachine vms/other"
    )
    (pool,) = (each for each in result(POOL, pools=pool_with(entry)) if each.kind == "IPPool")
    assert (pool.verdict, pool.detail) == (Verdict.IN_USE, "VirtualMachine vms/other uses one of its addresses")


@pytest.mark.parametrize(
    "entry",
    [
        Entry(pool="team-shop-ippool", address="10.0.0.9", id="team/gone", verdict=Verdict.LEAKED),
        Entry(
            pool="team-shop-ippool",
            address="10.0.0.9",
            id="team/gone",
            verdict=Verdict.IN_USE,
            owner="VirtualMachine vms/gone",
        ),
        Entry(
            pool="team-shop-ippool",
            address="10.0.0.9",
            id="team/gone",
            verdict=Verdict.IN_USE,
            owner="VirtualMachineInstance vms/gone",
        ),
        Entry(
            pool="team-shop-ippool",
            address="10.0.0.9",
            id="vms/team-shop-lb",
            verdict=Verdict.HELD,
            owner="LoadBalancer vms/team-shop-lb",
        ),
    ],
)
def test_an_address_of_a_leftover_is_left_over_with_its_pool(entry: Entry) -> None:
    objects = POOL | {VMS: [vm("gone")], BALANCERS: [obj("team-shop-lb", GONE_CLUSTER)]}
    found = result(objects, pools=pool_with(entry))
    assert {each.verdict for each in found} == {Verdict.LEAKED}
    assert [each.kind for each in found][-2:] == [ADDRESS, "IPPool"]


def test_a_pool_that_a_living_cluster_refers_to_stays() -> None:
    spec = {"vmNetworkConfig": {"ipPoolRef": "default/team-shop-ippool"}}
    have = owners(owned("HarvesterCluster", "other", "other", spec=spec))
    assert verdicts(POOL, have, pools=pool_with()) == {"IPPool team-shop-ippool": Verdict.IN_USE}
    part = owners(namespaces=frozenset({"team"}))
    assert verdicts(POOL, part, pools=pool_with()) == {"IPPool team-shop-ippool": Verdict.UNKNOWN}
    assert verdicts(POOL) == {"IPPool team-shop-ippool": Verdict.UNKNOWN}  # its addresses were not read


def test_of_what_has_no_record_only_such_is_listed_as_the_provider_makes() -> None:
    binding = obj("guest", None, namespace="", roleRef={"name": names.CLOUD_PROVIDER_ROLE})
    objects = {
        SECRETS: [obj("mine-cloud-init", None), obj("password", None)],
        SERVICES: [obj("lb", None), obj("web", None)],
        BALANCERS: [obj("lb", None)],
        SERVICE_ACCOUNTS: [obj("default", None)],
        CLUSTER_ROLE_BINDINGS: [binding, obj("admin", None, namespace="", roleRef={"name": "admin"})],
    }
    assert verdicts(objects) == {
        "Secret vms/mine-cloud-init": Verdict.UNRECORDED,
        "LoadBalancer vms/lb": Verdict.UNRECORDED,
        "Service vms/web": Verdict.UNRECORDED,
        "ClusterRoleBinding guest": Verdict.UNRECORDED,
    }


# Whatever the input

TEXT = st.sampled_from(["", "a", "b", "a/b", US, OTHERS])
ANNOTATION = st.one_of(
    TEXT,
    st.builds("{}/{}/{}".format, st.sampled_from(["HarvesterMachine", "HarvesterCluster", "Other"]), TEXT, TEXT),
)
PARTS = st.dictionaries(
    st.sampled_from([names.OWNER_CLUSTER_ANNOTATION, names.OWNER_ANNOTATION, names.OWNER_UID_ANNOTATION]), ANNOTATION
)
RECORD = st.builds(
    lambda *of: record(Owner(*of)),
    st.sampled_from(["HarvesterMachine", "HarvesterCluster"]),
    *(st.sampled_from(["a", "b"]) for _ in range(3)),
    st.sampled_from([US, US, OTHERS]),
)
ANNOTATIONS = st.one_of(PARTS, RECORD, RECORD)
OBJECT = st.builds(
    lambda name, annotations, claim, status: {
        "metadata": {"namespace": "vms", "name": name, "uid": name, "annotations": annotations},
        "spec": {"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": claim}}]}}},
        "status": {"printableStatus": status},
    },
    st.sampled_from(["a", "b", "c", "a-disk-0-abcde"]),
    ANNOTATIONS,
    st.sampled_from(["a", "b", "c", "a-disk-0-abcde"]),
    st.sampled_from(["Stopped", "Stopped", "Running", ""]),
)
SOME = st.lists(OBJECT, max_size=3, unique_by=lambda each: str(key_of(each)))
OBJECTS = st.fixed_dictionaries(
    {VMS: SOME, PERSISTENT_VOLUME_CLAIMS: SOME},
    optional={kind: SOME for kind in KINDS if kind not in (VMS, PERSISTENT_VOLUME_CLAIMS)},
)
OWNER_OBJECT = st.builds(
    lambda kind, namespace, name, uid, provider_id: {
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "spec": {"providerID": provider_id},
    },
    st.sampled_from(["HarvesterMachine", "HarvesterCluster"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["a", "b", US]),
    st.sampled_from(["", "harvester://a", "harvester://b", "harvester://c"]),
)
HAVE = st.builds(
    lambda objs, namespaces, uid: owners(*objs, namespaces=namespaces, uid=uid),
    st.lists(OWNER_OBJECT, max_size=4),
    st.sampled_from([None, frozenset({"a"})]),
    st.sampled_from([US, ""]),
)
ENTRIES = st.lists(
    st.builds(
        Entry,
        pool=st.sampled_from("abc"),
        address=st.just("10.0.0.9"),
        id=st.just("a/b"),
        verdict=st.sampled_from(Verdict),
    ),
    max_size=3,
)


def pool_reports(entries: list[Entry]) -> tuple[PoolReport, ...]:
    grouped = {name: tuple(each for each in entries if each.pool == name) for name in "abc"}
    return tuple(
        PoolReport(harvester="https://h", name=name, total=9, available=9, expected=9, entries=of)
        for name, of in grouped.items()
    )


@given(OBJECTS, HAVE, ENTRIES)
def test_nothing_is_left_over_that_another_record_names_or_whose_owner_exists(
    objects: dict[Resource, list[Obj]], have: OwnerObjects, entries: list[Entry]
) -> None:
    state = HarvesterState("https://h", have, objects, pool_reports(entries))
    by_kind = {resource.kind: resource for resource in KINDS}
    named = {str((each.get("spec") or {}).get("providerID")) for each in have.machines.values()}
    for leftover in examine(state).leaked:
        if leftover.kind == ADDRESS:
            continue
        (left,) = (each for each in objects[by_kind[leftover.kind]] if key_of(each).name == leftover.name)
        annotations = annotations_of(left)
        assert annotations[names.OWNER_CLUSTER_ANNOTATION] == have.management_cluster == US
        kind, namespace, name = annotations[names.OWNER_ANNOTATION].split("/")
        living = {"HarvesterMachine": have.machines, "HarvesterCluster": have.clusters}[kind].get(Key(namespace, name))
        assert living is None or living["metadata"]["uid"] != annotations[names.OWNER_UID_ANNOTATION]
        assert have.namespaces is None or namespace in have.namespaces
        if leftover.kind == "VirtualMachine":
            assert f"harvester://{left['metadata']['uid']}" not in named
            assert left["status"]["printableStatus"] == "Stopped"


@given(OBJECTS, HAVE, ENTRIES)
def test_no_disk_is_left_over_that_a_vm_of_others_has(
    objects: dict[Resource, list[Obj]], have: OwnerObjects, entries: list[Entry]
) -> None:
    found = examine(HarvesterState("https://h", have, objects, pool_reports(entries))).leaked
    leaking = {each.name for each in found if each.kind == "VirtualMachine"}
    for machine in objects.get(VMS, []):
        (volume,) = machine["spec"]["template"]["spec"]["volumes"]
        claim = volume["persistentVolumeClaim"]["claimName"]
        if key_of(machine).name not in leaking:
            assert ("PersistentVolumeClaim", claim) not in {(each.kind, each.name) for each in found}
