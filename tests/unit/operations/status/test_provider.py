"""Whether a provider is at work, by its Leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import pytest

from caphv.api.names import HEARTBEAT_LEASE, LEASE, SANDBOX_ANNOTATION
from caphv.api.object import LEASES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from operations.doctor.reading import read_management_facts
from operations.status.provider import provider_of, provider_or_absence, read_provider
from tests.support.clusters import NOW, ago
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


def lease(seconds: float, name: str = LEASE, namespace: str = "caphv-system", holder: str = "pod-1") -> Obj:
    """A Lease that was renewed so many seconds ago; without a holder, it was released then."""
    spec = {"renewTime": ago(seconds=seconds), "holderIdentity": holder}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def test_a_lease_that_is_renewed_is_a_provider_at_work() -> None:
    provider = provider_of([lease(3)], NOW)
    assert provider
    assert not provider.silent


def test_a_lease_that_is_not_renewed_is_a_silent_provider() -> None:
    provider = provider_of([lease(300)], NOW)
    assert provider
    assert provider.silent
    assert f"Lease caphv-system/{LEASE} is not renewed" in provider.cause
    assert "kubectl get pods -n caphv-system" in provider.next_step
    assert datetime.fromisoformat(provider.since) < NOW


@pytest.mark.parametrize(("seconds", "silent"), [(14, False), (16, True)])
def test_a_lease_that_is_not_taken_after_its_release_is_a_silent_provider(seconds: float, silent: bool) -> None:
    provider = provider_of([lease(seconds, holder="")], NOW)
    assert provider
    assert provider.silent is silent


def test_of_several_deployments_one_at_work_is_enough() -> None:
    """A Deployment that was removed leaves its Lease behind."""
    provider = provider_of([lease(300), lease(3, f"blue.{LEASE}", "team")], NOW)
    assert provider
    assert (provider.silent, provider.lease) == (False, f"team/blue.{LEASE}")


@pytest.mark.parametrize(
    ("folder", "word"), [("/srv/sandbox", "/srv/sandbox"), ("/srv/my box; reboot", "'/srv/my box; reboot'")]
)
async def test_a_silent_provider_of_a_sandbox_is_started_with_the_sandbox(folder: str, word: str) -> None:
    """There are no Pods, and nothing to install."""
    metadata = {"name": "caphv-system", "annotations": {SANDBOX_ANNOTATION: folder}}
    server = MemoryServer({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease(300)})
    provider = await read_provider(cast("ApiClient", server), NOW)
    assert provider
    assert provider.next_step == f"Start what the sandbox lacks: caphv sandbox up --dir {word}"


@pytest.mark.parametrize("name", ["node-1", "caphv-packager", f"x{LEASE}"])
def test_leases_of_others_say_nothing(name: str) -> None:
    assert provider_of([lease(300, name)], NOW) is None


def test_a_lease_that_never_was_renewed_says_nothing() -> None:
    provider = provider_of([{"metadata": {"name": LEASE, "namespace": "a"}}], NOW)
    assert provider
    assert not provider.silent


def untouched(seconds: float, **more: Any) -> Obj:
    owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "shop"}
    metadata = {"name": "shop", "namespace": "team", "creationTimestamp": ago(seconds=seconds)}
    return {"metadata": {**metadata, "ownerReferences": [owner]}} | more


def test_a_cluster_that_nothing_reconciles_shows_that_no_provider_is_installed() -> None:
    provider = provider_or_absence(None, [untouched(70), untouched(90)], NOW)
    assert provider
    assert (provider.silent, provider.since) == (True, ago(seconds=90))
    assert "none has reconciled HarvesterCluster team/shop" in provider.cause


@pytest.mark.parametrize(
    "obj", [untouched(50), untouched(90, status={"conditions": [{"type": "Ready"}]}), {"metadata": {"name": "x"}}]
)
def test_a_cluster_that_is_new_or_was_reconciled_says_nothing_about_the_provider(obj: Obj) -> None:
    obj["metadata"].setdefault("namespace", "team")
    assert provider_or_absence(None, [obj], NOW) is None


@pytest.mark.parametrize(
    "metadata", [{"ownerReferences": []}, {"annotations": {"cluster.x-k8s.io/managed-by": "terraform"}}]
)
def test_a_cluster_that_no_provider_would_reconcile_says_nothing_about_it(metadata: Obj) -> None:
    obj = untouched(90)
    obj["metadata"] |= metadata
    assert provider_or_absence(None, [obj], NOW) is None


def test_a_provider_with_a_lease_is_not_absent_whatever_it_leaves_alone() -> None:
    provider = provider_of([lease(3)], NOW)
    assert provider_or_absence(provider, [untouched(90)], NOW) == provider


# Several Leases on a management cluster


LEFT_BEHIND = (3600.0, HEARTBEAT_LEASE)


class Allowed(MemoryServer):
    """A server that lists Leases of one namespace only."""

    async def list(self, resource: Any, namespace: str = "", **options: Any) -> Obj:
        if resource is LEASES and not namespace:
            raise Forbidden(403, "Forbidden", "cannot list leases at the cluster scope")
        return await super().list(resource, namespace, **options)


def management(*leases: Obj, kind: type[MemoryServer] = MemoryServer) -> ApiClient:
    head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
    served = [("cluster.x-k8s.io/v1beta2", "Cluster")]
    return cast("ApiClient", kind(*({**head, **lease} for lease in leases), served=served))


@pytest.mark.parametrize(
    ("name", "namespace"),
    [(LEASE, "caphv-system"), (LEASE, "team"), (f"blue.{LEASE}", "caphv-system"), (f"blue.{HEARTBEAT_LEASE}", "team")],
)
@pytest.mark.parametrize("order", [1, -1])
async def test_the_newest_sign_of_life_counts(name: str, namespace: str, order: int) -> None:
    """A provider without leader election was replaced, and its Lease stays."""
    leases = [lease(*LEFT_BEHIND), lease(3, name, namespace)]
    provider = await read_provider(management(*leases[::order]), NOW)
    assert provider
    assert (provider.silent, provider.lease) == (False, f"{namespace}/{name}")


async def test_a_user_of_the_provider_s_namespace_sees_all_of_its_leases() -> None:
    leases = [lease(*LEFT_BEHIND), lease(3, f"blue.{LEASE}")]
    provider = await read_provider(management(*leases, kind=Allowed), NOW)
    assert provider
    assert (provider.silent, provider.lease) == (False, f"caphv-system/blue.{LEASE}")
    silent = await read_provider(management(lease(*LEFT_BEHIND), lease(3, "other"), kind=Allowed), NOW)
    assert silent
    assert (silent.silent, silent.lease) == (True, f"caphv-system/{HEARTBEAT_LEASE}")


async def test_the_doctor_sees_the_newest_lease_of_the_namespace() -> None:
    leases = [lease(*LEFT_BEHIND), lease(3, f"blue.{LEASE}"), lease(1, "other"), lease(2, LEASE, "team")]
    facts = await read_management_facts(management(*leases), "caphv-system")
    assert facts.lease
    assert facts.lease["metadata"]["name"] == f"blue.{LEASE}"


async def test_the_doctor_may_read_the_usual_leases_only() -> None:
    server = management(lease(*LEFT_BEHIND), lease(3))
    cast("Any", server).errors["list Lease"] = Forbidden(403, "Forbidden", "cannot list leases")
    facts = await read_management_facts(server, "caphv-system")
    assert facts.lease
    assert facts.lease["metadata"]["name"] == LEASE
    assert facts.why_unseen("leases") == ""
