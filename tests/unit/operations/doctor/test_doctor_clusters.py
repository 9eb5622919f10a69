"""Findings of `caphv doctor` about clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operations.doctor import bootstrap, clusters
from operations.status.assembly import overview_of
from operations.status.check import Result
from operations.status.model import Replicas, Severity
from tests.support.clusters import NOW, Builder, condition
from tests.support.doctor import one


def test_an_even_control_plane_and_one_on_a_single_host_are_warnings() -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    group = cluster.groups[0]
    machines = tuple(replace(group.machines[0], name=f"cp-{n}", zone="") for n in range(3))
    shaped = replace(
        cluster, control_plane=Replicas(4, 4, 4, 4), groups=(replace(group, machines=machines), *cluster.groups[1:])
    )
    checks = list(clusters.checks([shaped]))
    assert one(checks, "quorum").wrong
    placement = one(checks, "placement")
    assert "3 of 3 control plane machines run in host harvester-1" in placement.message
    assert placement.remedy.endswith("replace one of them: kubectl delete machine cp-0 -n team")


@pytest.mark.parametrize(
    ("desired", "messages"),
    [
        (0, []),
        (1, []),
        (2, ["2 control plane machines survive no more failures than 1"]),
        (3, []),
        (4, ["4 control plane machines survive no more failures than 3"]),
    ],
)
def test_an_even_control_plane_survives_no_more_than_one_machine_less(desired: int, messages: list[str]) -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    shaped = replace(cluster, control_plane=replace(cluster.control_plane, desired=desired))
    assert [check.message for check in clusters.checks([shaped]) if check.id == "quorum"] == messages


@pytest.mark.parametrize(
    ("hosts", "zones", "message"),
    [
        ("a b c", "x y z", ""),
        ("a a", "x x", ""),
        ("a a b", "x x y", "2 of 3 control plane machines run in host a"),
        ("a a b c", "x y z x", "2 of 4 control plane machines run in host a"),
        ("a b c d", "x x y z", "2 of 4 control plane machines run in zone x"),
        ("a a b b c", "x x y y z", ""),
        ("a a a b c", "v w x y z", "3 of 5 control plane machines run in host a"),
        ("a b c", "x x -", "2 of 3 control plane machines run in zone x"),
        ("a b c", "x - -", ""),
        ("a a b - -", "- - - - -", ""),
        ("- - -", "- - -", ""),
    ],
)
def test_a_place_that_takes_the_quorum_with_it_is_a_warning(hosts: str, zones: str, message: str) -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    group = cluster.groups[0]
    machines = tuple(
        replace(group.machines[0], host=host.strip("-"), zone=zone.strip("-"))
        for host, zone in zip(hosts.split(), zones.split(), strict=True)
    )
    shaped = replace(cluster, groups=(replace(group, machines=machines), *cluster.groups[1:]))
    messages = [check.message for check in clusters.checks([shaped]) if check.id == "placement"]
    assert messages == ([message] if message else [])


def test_settings_that_rke2_cannot_use_are_found_although_only_a_log_says_so() -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    cluster = replace(cluster, version="v1.36.2+rke2r1")
    configs = {"r": {"tls": {"insecureSkipVerify": True}}, "s": {}}
    spec = {"agentConfig": {"cisProfile": "cis-1.6"}, "privateRegistriesConfig": {"configs": configs}}
    control_plane = {"kind": "RKE2ControlPlane", "metadata": {"name": "demo", "namespace": "demo"}, "spec": spec}

    found = list(bootstrap.checks([cluster], {cluster.key: control_plane}))
    assert [(each.result, each.message.partition(":")[0]) for each in found] == [
        (Result.ERROR, "spec.agentConfig.cisProfile"),
        (Result.WARNING, "spec.privateRegistriesConfig.configs"),
        (Result.ERROR, "spec.privateRegistriesConfig.configs.r.tls.tlsConfigSecret"),
    ]
    control_plane["kind"] = "KThreesControlPlane"
    assert not list(bootstrap.checks([cluster], {cluster.key: control_plane}))


def test_problems_of_a_cluster_are_checks_with_their_next_step() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    check = one(clusters.checks(overview_of(builder.objects(), NOW).clusters), "cluster")
    assert check.result is Result.ERROR
    assert "kubectl delete machine worker-1" in check.remedy


def test_a_warning_stays_a_warning_and_a_note_has_no_check() -> None:
    (healthy,) = overview_of(Builder().objects(), NOW).clusters
    found = list(clusters.checks([healthy]))
    assert [(check.id, check.result) for check in found] == [("cluster", Result.OK)]

    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    (broken,) = overview_of(builder.objects(), NOW).clusters
    (problem,) = broken.problems
    for severity, result in ((Severity.WARNING, Result.WARNING), (Severity.NOTE, Result.OK)):
        shaped = replace(broken, problems=(replace(problem, severity=severity),))
        assert one(clusters.checks([shaped]), "cluster").result is result


def test_a_cause_that_another_check_reports_is_skipped() -> None:
    builder = Builder()
    reason, message = "HarvesterAuthenticationFailed", "Harvester refuses the token of Secret team/identity"
    builder.harvester_cluster["status"]["conditions"] = [
        condition("HarvesterConnectionReady", "False", reason, message)
    ]
    (cluster,) = overview_of(builder.objects(), NOW).clusters

    assert one(clusters.checks([cluster], {"team/identity"}), "cluster").result is Result.SKIPPED
    assert one(clusters.checks([cluster], {"team/other"}), "cluster").result is Result.ERROR

    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    assert one(clusters.checks([cluster], {"team/identity"}), "cluster").result is Result.ERROR


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("v1.36.2+rke2r1", ""),
        ("v1.27.1+rke2r1", "RKE2 v1.27.1+rke2r1 is older than 1.28"),
        ("v1.27.1+k3s1", "K3s v1.27.1+k3s1 is older than 1.28"),
        ("v1.37.0", "Kubernetes of workload clusters v1.37.0 is newer than 1.36"),
        ("", ""),
    ],
)
def test_a_version_of_a_cluster_that_is_not_supported_is_a_warning(version: str, message: str) -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    checks = [check for check in clusters.checks([replace(cluster, version=version)]) if check.id == "cluster-version"]
    assert [(check.result, message in check.message) for check in checks] == [(Result.WARNING, True)] * bool(message)
