"""What the page gets: words instead of reasons, colours that follow from the cluster's problems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caphv.api.names import Reason
from operations.status.page import content
from operations.status.page.content import words
from tests.support import pagestates
from tests.support.clusters import Builder, condition
from tests.support.pagestates import STATES, PageState, Site


def clusters(site: Site) -> dict[str, dict[str, Any]]:
    return {cluster["name"]: cluster for cluster in json.loads(site.content())["clusters"]}


def kinds(cluster: dict[str, Any]) -> set[str]:
    return {machine["kind"] for machine in cluster["machines"]}


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("VMIPPoolExhausted", "VM IP pool exhausted"),
        ("AddonBundlesMissing", "Addon bundles missing"),
        ("TopologyUpdate", "Topology update"),
        ("CSIDriverMissing", "CSI driver missing"),
        ("VMLost", "VM lost"),
        ("ready", "Ready"),
        ("", ""),
    ],
)
def test_reasons_become_words(reason: str, text: str) -> None:
    assert words(reason) == text


def test_every_reason_of_add_ons_has_words() -> None:
    addons = {reason for reason in Reason if reason.startswith("AddonBundles")}
    assert addons == set(content._ADDONS)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_no_state_shows_a_raw_reason_of_add_ons(state: PageState) -> None:
    assert "AddonBundles" not in state.make().content()


@pytest.mark.parametrize(
    ("annotations", "state", "texts", "command"),
    [
        (
            {"caphv.io/park": "true", "caphv.io/parked-since": "2026-11-22T08:00:00Z"},
            "Parked",
            {"parked"},
            "caphv resume team/shop",
        ),
        ({}, "Paused", {"as last seen", "not ready when last seen"}, "kubectl patch cluster shop -n team"),
    ],
)
def test_a_cluster_that_is_parked_or_paused_is_as_last_seen_and_says_how_to_resume_it(
    annotations: dict[str, str], state: str, texts: set[str], command: str
) -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    builder.cluster["metadata"]["annotations"] = annotations
    worker = builder.machines["worker-1"]
    worker["status"]["conditions"] = [condition("Ready", "False", "NotReady", "no Node", minutes=1)]
    reported = builder.harvester_cluster["status"]["conditions"]
    if annotations:
        reported.append(condition("Parked", "True", "Parked", "2 VMs stopped"))
    site = Site()
    site.add(builder, "team")
    shop = clusters(site)["shop"]
    assert (shop["state"], shop["wrong"], kinds(shop)) == (state, False, {"stale"})
    assert {machine["text"] for machine in shop["machines"]} == texts
    assert any(command in problem["nextStep"] for problem in shop["problems"])


def test_a_machine_is_red_only_where_its_cluster_reports_an_error() -> None:
    waiting = clusters(pagestates.creating())["production"]
    assert (waiting["state"], kinds(waiting)) == ("Progressing", {"ok", "busy"})
    degraded = clusters(pagestates.degraded())
    assert kinds(degraded["shop"]) == {"ok", "bad"}
    assert degraded["wrong"]["state"] == "Failed"
    assert kinds(degraded["wrong"]) == {"busy"}, "they wait for what their cluster lacks"
    assert kinds(clusters(pagestates.host_failure())["production"]) == {"ok", "bad"}


def test_machines_of_an_unreachable_harvester_are_as_last_seen() -> None:
    for cluster in clusters(pagestates.outage()).values():
        assert (cluster["state"], kinds(cluster)) == ("Unreachable", {"stale"})


def test_each_machine_belongs_to_the_harvester_of_its_cluster() -> None:
    servers = {name: cluster["harvester"] for name, cluster in clusters(pagestates.outage()).items()}
    assert servers.pop("remote") == pagestates.OTHER_SERVER
    assert set(servers.values()) == {pagestates.SERVER}


def test_the_border_is_that_of_the_worst_problem() -> None:
    degraded = clusters(pagestates.degraded())
    worst = {name: cluster["worst"] for name, cluster in degraded.items()}
    assert worst == {"shop": "error", "wrong": "error", "expiring": "warning", "bare": "note"}
    assert (degraded["bare"]["state"], degraded["bare"]["addons"]) == ("Available", "no add-ons")


def test_a_health_check_is_reported_where_its_machine_has_a_problem() -> None:
    (problem,) = clusters(pagestates.degraded())["shop"]["problems"]
    assert problem["replacedAt"] == pagestates.ago(minutes=-4)
    refused = pagestates.degraded()
    (check,) = refused.objects.machine_health_checks
    check["status"] = {"conditions": [{"type": "RemediationAllowed", "status": "False"}]}
    (problem,) = clusters(refused)["shop"]["problems"]
    assert (problem["replacedAt"], problem["replaced"]) == ("", "not replaced: too many machines are unhealthy")


def test_a_host_that_is_lost_makes_a_cluster_degraded() -> None:
    cluster = clusters(pagestates.host_failure())["production"]
    assert cluster["state"] == "Degraded"
    (problem,) = cluster["problems"]
    assert problem["cause"] == "host harvester-2 of Harvester, which runs it, is not ready"


def test_three_hundred_clusters_are_less_than_a_megabyte() -> None:
    assert len(pagestates.three_hundred().content()) < 1_000_000
