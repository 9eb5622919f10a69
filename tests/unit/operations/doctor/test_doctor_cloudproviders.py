"""The doctor's check whether charts in guests fit their Harvester."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caphv.api.compatibility import compatibility
from caphv.api.object import Key
from operations.doctor import cloudproviders
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result
from operations.status.model import Cluster, State

pytestmark = pytest.mark.unit

RANGES = {"harvester-cloud-provider": ">=0.0.1 <0.3.0", "harvester-csi-provider": ">=0.0.1 <0.3.0"}


def facts(release: str = "v1.8.1", accepted: Any = RANGES, **fields: Any) -> HarvesterFacts:
    containers = [{"image": f"rancher/harvester:{release}"}]
    setting = {"metadata": {"name": "harvester-csi-ccm-versions"}, "value": json.dumps(accepted)}
    fine: dict[str, Any] = {
        "objects": HarvesterObjects(server="https://harvester:6443", settings=[setting]),
        "deployment": {"spec": {"template": {"spec": {"containers": containers}}}},
    }
    return HarvesterFacts(Key("team", "identity"), **{**fine, **fields})


def checked(
    *harvesters: HarvesterFacts, version: str = "v1.34.4+rke2r1", provider: str = "harvester", **fields: Any
) -> list[Check]:
    cluster = Cluster("team", "shop", State.AVAILABLE, version=version, identity="team/identity", **fields)
    control_plane = {"kind": "RKE2ControlPlane", "spec": {"serverConfig": {"cloudProviderName": provider}}}
    return list(cloudproviders.checks(compatibility(), [cluster], harvesters, {cluster.key: control_plane}))


def test_charts_of_rke2_that_fit() -> None:
    (only,) = checked(facts())
    assert (only.id, only.subject, only.result) == ("cloud-provider", "Cluster team/shop", Result.OK)
    assert only.message == (
        "RKE2 v1.34.4+rke2r1 has harvester-cloud-provider 0.2.11, harvester-csi-driver 0.1.25, which fit Harvester 1.8"
    )


@pytest.mark.parametrize("harvester", ["v1.8.1", "v1.1.2", "v2.0.0"])
def test_nothing_is_claimed_of_charts_in_bundles_because_git_knows_them(harvester: str) -> None:
    assert checked(facts(harvester), provider="external") == []
    cluster = Cluster("team", "shop", State.AVAILABLE, identity="team/identity")
    assert list(cloudproviders.checks(compatibility(), [cluster], [facts(harvester)], {})) == []


def test_an_old_harvester_must_be_upgraded_first() -> None:
    (charts,) = checked(facts("v1.1.2"))
    assert (charts.subject, charts.result) == ("Cluster team/shop", Result.ERROR)
    assert charts.message == "RKE2 v1.34.4+rke2r1: harvester-cloud-provider 0.2.11 needs Harvester 1.2 or later"
    assert "Upgrade Harvester before the guest" in charts.remedy


def test_charts_that_harvester_does_not_accept() -> None:
    (only,) = checked(facts(accepted={"harvester-cloud-provider": "<0.2.0"}))
    assert only.result is Result.ERROR
    assert "which takes <0.2.0" in only.message


@pytest.mark.parametrize("accepted", [None, [], {}, {"harvester-cloud-provider": None}])
def test_without_the_setting_its_ranges_do_not_matter(accepted: Any) -> None:
    assert [check.result for check in checked(facts(accepted=accepted))] == [Result.OK]


@pytest.mark.parametrize(
    "harvester",
    [facts(objects=None, error="no answer"), HarvesterFacts(Key("team", "another"), objects=HarvesterObjects())],
    ids=["no answer", "another identity"],
)
def test_a_harvester_that_was_not_read_is_not_compared(harvester: HarvesterFacts) -> None:
    assert checked(harvester) == []


def test_of_a_release_of_rke2_that_is_not_known_nothing_is_claimed() -> None:
    assert checked(facts(), version="v1.99.0+rke2r1") == []


def test_an_unknown_release_of_harvester_is_no_finding() -> None:
    (only,) = checked(facts(deployment=None))
    assert only.message.endswith("fit this Harvester")
