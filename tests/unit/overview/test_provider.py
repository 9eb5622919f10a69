"""Whether a provider is at work, by its Leases."""

from __future__ import annotations

from datetime import datetime

import pytest

from caphv.api.object import Obj
from overview.provider import provider_of
from tests.support.clusters import NOW, ago

pytestmark = pytest.mark.unit

LEASE = "1e1658d6.cluster.x-k8s.io"


def lease(seconds: float, name: str = LEASE, namespace: str = "caphv-system") -> Obj:
    """A Lease that was renewed so many seconds ago."""
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"renewTime": ago(seconds=seconds)}}


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


def test_of_several_deployments_one_at_work_is_enough() -> None:
    """A Deployment that was removed leaves its Lease behind."""
    provider = provider_of([lease(300), lease(3, f"blue.{LEASE}", "team")], NOW)
    assert provider
    assert (provider.silent, provider.lease) == (False, f"team/blue.{LEASE}")


@pytest.mark.parametrize("name", ["node-1", "caphv-packager", f"x{LEASE}"])
def test_leases_of_others_say_nothing(name: str) -> None:
    assert provider_of([lease(300, name)], NOW) is None


def test_a_lease_that_never_was_renewed_says_nothing() -> None:
    provider = provider_of([{"metadata": {"name": LEASE, "namespace": "a"}}], NOW)
    assert provider
    assert not provider.silent
