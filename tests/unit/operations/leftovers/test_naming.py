"""Only objects with the names that the provider gives them may be leftovers, whatever records they carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caphv.api import names, resources
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    Resource,
)
from caphv.api.ownership import Owner, record
from operations.capacity.addresspools import Verdict
from operations.leftovers.decision import KINDS
from operations.leftovers.naming import check_origin, has_generated_name
from operations.leftovers.records import ReferencedVMs
from operations.read.owners import OwnerObjects
from reconciler.machine.disks import pvc_name

pytestmark = pytest.mark.unit

US = "management-us"
NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)
OWNER = st.builds(
    Owner,
    st.sampled_from(["HarvesterMachine", "HarvesterCluster"]),
    NAME,
    NAME,
    st.uuids().map(str),
    st.just(US),
)
NOTHING = OwnerObjects(US, {}, None, (), {})
SUFFIXES = {resources.LOAD_BALANCERS: "lb", SERVICES: "lb", resources.IP_POOLS: "ippool"}


def generated(owner: Owner) -> dict[Resource, str]:
    """Return a name for each kind that the provider creates for an owner."""
    if owner.kind == "HarvesterMachine":
        return {
            resources.VIRTUAL_MACHINES: owner.name,
            PERSISTENT_VOLUME_CLAIMS: pvc_name(owner.name, owner.uid, 3),
            SECRETS: f"{owner.name}-cloud-init",
        }
    cluster: Obj = {"metadata": {"namespace": owner.namespace, "name": owner.name}}
    accounts = {SERVICE_ACCOUNTS: owner.name, CLUSTER_ROLE_BINDINGS: owner.name, SECRETS: f"{owner.name}-token"}
    return accounts | {kind: names.generated_names(cluster, suffix)[0] for kind, suffix in SUFFIXES.items()}


def verdict(resource: Resource, name: str, owner: Owner, **annotations: str) -> Verdict:
    made: Obj = {"metadata": {"name": name, "uid": "x", "annotations": record(owner) | annotations}}
    return check_origin(resource, made, NOTHING, ReferencedVMs()).verdict


@given(OWNER)
def test_what_the_provider_makes_is_left_over(owner: Owner) -> None:
    for resource, name in generated(owner).items():
        assert verdict(resource, name, owner) is Verdict.LEAKED


@given(OWNER, st.sampled_from(KINDS), NAME)
def test_a_copied_record_makes_no_leftover_of_another_name(owner: Owner, resource: Resource, name: str) -> None:
    assume(not has_generated_name(resource, name, owner))
    assert verdict(resource, name, owner) is Verdict.UNKNOWN


@given(OWNER, OWNER, st.sampled_from(KINDS))
def test_names_of_other_machines_and_their_backups_prove_nothing(owner: Owner, other: Owner, kind: Resource) -> None:
    owner, other = replace(owner, kind="HarvesterMachine"), replace(other, kind="HarvesterMachine")
    assume(owner.name != other.name)
    name = generated(other).get(kind, other.name)
    assert not has_generated_name(kind, name, owner)
    assert not has_generated_name(kind, f"restore-{name}", owner)


@given(OWNER)
def test_what_harvester_restored_is_no_leftover(owner: Owner) -> None:
    for resource, name in generated(owner).items():
        restored = verdict(resource, name, owner, **{"restore.harvesterhci.io/name": "restore-1"})
        assert restored is Verdict.UNKNOWN


@pytest.mark.parametrize("name", ["shop", "shop-x7k2p", "shop-0a1b2c3d", "shop-x7k2p-0a1b2c3d"])
def test_accounts_have_the_name_of_the_cluster_that_a_topology_extends(name: str) -> None:
    owner = Owner("HarvesterCluster", "team", "shop-x7k2p", "uid", US)
    assert has_generated_name(SERVICE_ACCOUNTS, name, owner)
    assert has_generated_name(SECRETS, f"{name}-token", owner)
    assert not has_generated_name(SECRETS, name, owner)
    assert not has_generated_name(SERVICE_ACCOUNTS, f"{name}-other", owner)
