"""Settings that stop or lose bootstrap data of RKE2, as its provider was seen to do."""

from __future__ import annotations

import pytest

from caphv.api import rke2
from tests.support import observed

pytestmark = pytest.mark.unit

FOLDER = "rancher-cluster-api-provider-rke2"
RECORDS = [
    record
    for file in ("bootstrap", "userdata")
    for record in observed.records(f"{FOLDER}/{file}.yaml")
    if "role" not in record.input
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_what_the_provider_could_not_use_or_lost_is_found(record: observed.Record) -> None:
    found = list(rke2.problems(record.input, record.input.get("version", "")))
    lost = record.outcome.get("configs", 0) < len(record.input.get("privateRegistriesConfig", {}).get("configs", {}))
    assert any(not problem.lost for problem in found) is ("log" in record.outcome)
    assert any(problem.lost for problem in found) is (lost and "log" not in record.outcome)


@pytest.mark.parametrize(
    ("profile", "version", "usable"),
    [
        ("cis", "v1.36.2+rke2r1", True),
        ("cis-1.23", "v1.25.0+rke2r1", True),
        ("cis-1.6", "v1.24.9+rke2r1", True),
        ("cis-1.5", "v1.25.0+rke2r1", False),
        ("cis", "v1.24.9+rke2r1", False),
        ("cis-1.6", "", True),
        ("another", "v1.36.2+rke2r1", True),
    ],
)
def test_a_profile_belongs_to_releases_of_kubernetes(profile: str, version: str, usable: bool) -> None:
    assert (not list(rke2.problems({"agentConfig": {"cisProfile": profile}}, version))) is usable


@pytest.mark.parametrize("value", [None, [], "x", 1, {"tls": 1}, {"tls": {"tlsConfigSecret": "x"}}])
def test_anything_may_be_in_their_place(value: object) -> None:
    list(rke2.problems({"agentConfig": value, "privateRegistriesConfig": {"configs": {"r": value}}}, "v1.36.2"))
    list(rke2.problems({"privateRegistriesConfig": {"configs": value}}, "latest"))
