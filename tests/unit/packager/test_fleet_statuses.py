"""What the packager says of statuses that Fleet's real controller and agents wrote."""

from __future__ import annotations

import pytest

from packager.fleet import NOT_APPLIED, ExpectedBundles, evaluate, trim_bundle, trim_git_repo
from tests.support.observed import Record, records

RECORDS = {record.name: record for record in records("rancher-fleet/statuses.yaml")}
METADATA = dict.fromkeys(("name", "namespace", "uid", "resourceVersion"), "x")
FOLDER = "clusters/team/demo"
WANTED = ExpectedBundles("team", (("cni", "cni-demo"),), FOLDER, "a" * 40)
CONFLICT = RECORDS["a-conflict-of-server-side-apply-is-only-in-the-log-of-the-agent"]
FIELDS = (
    "Deployment default/web was changed in spec.replicas; ConfigMap default/pools was changed in data.mtu, data.pool"
)


def problem(record: Record) -> str:
    status = {"observedGeneration": 1, **record.outcome["bundle"]}
    labels = {"caphv.io/bundle": "cni"}
    bundle = trim_bundle({"metadata": {**METADATA, "generation": 1, "labels": labels}, "status": status})
    (text,) = evaluate({"cni": bundle}, None, WANTED, lambda _commit, _other: False).problems
    return text


def reading_problem(record: Record) -> str:
    repo = {"metadata": METADATA, "spec": {"paths": [f"{FOLDER}/*"]}, "status": record.outcome["gitRepo"]}
    (text,) = evaluate({"cni": None}, [trim_git_repo(repo)], WANTED, lambda _commit, _other: False).problems
    return text


def test_a_conflict_points_to_the_log_and_names_the_fields() -> None:
    assert problem(CONFLICT) == (
        f"cni: WaitApplied: {NOT_APPLIED}. "
        f"What it applied before: Deployment default/web is not ready: Replicas: 0/2; {FIELDS}"
    )


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "a-chart-that-kubernetes-is-too-old-for",
            "chart requires kubeVersion: >=1.99 which is incompatible with Kubernetes v1.36.3",
        ),
        ("an-object-of-another-release", 'must equal "taken": current value is "cni-r-a87406cae6"'),
        (
            "an-object-that-another-client-changed",
            "cni: Modified: ConfigMap kube-system/harvester-cloud-provider-values was changed in data.values",
        ),
    ],
)
def test_what_fleet_says_of_a_bundle_is_passed_on_to_its_end(name: str, reported: str) -> None:
    assert problem(RECORDS[name]).endswith(reported)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "a-chart-that-does-not-exist-stops-its-gitrepo",
            "version=9.9.9: no chart version found for harvester-cloud-provider-9.9.9",
        ),
        (
            "a-job-that-cannot-be-created-is-not-accepted",
            'config map "known-hosts" should exist in namespace "cattle-fleet-system"; '
            "this Fleet deployment is incomplete",
        ),
    ],
)
def test_what_fleet_says_of_a_repository_is_passed_on_to_its_end(name: str, reported: str) -> None:
    assert reading_problem(RECORDS[name]).endswith(reported)
