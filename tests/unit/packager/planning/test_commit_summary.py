"""The subject of a commit names clusters and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from packager.git.changeplan import Plan
from packager.git.commit import Reason, message
from packager.git.directory import Directory
from packager.git.pruning import Removal
from packager.git.snapshot import Snapshot
from packager.planning.commit_summary import summarize

pytestmark = pytest.mark.unit

FOLDER = "manifests/team-a/production"
MANIFEST = f"{FOLDER}/cluster/cluster.yaml"
RECORD = "clusters/team-a/production/caphv.yaml"


def snapshot(folder: Path, files: dict[str, str]) -> Snapshot:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return Directory(folder, names=("manifests", "clusters")).sync()


def cluster(workers: int = 2, version: str = "v1.35.1", **variables: Any) -> str:
    spec = {
        "topology": {
            "version": version,
            "controlPlane": {"replicas": 3},
            "workers": {"machineDeployments": [{"name": "workers", "replicas": workers}]},
            "variables": [{"name": name, "value": value} for name, value in variables.items()],
        }
    }
    return yaml.safe_dump({"kind": "Cluster", "metadata": {"name": "production"}, "spec": spec})


def of_change(folder: Path, before: str, after: str, path: str = MANIFEST) -> Plan:
    plan = Plan(write={path: after.encode()}, changed=("/".join(path.split("/")[:3]),))
    return summarize(plan, snapshot(folder, {path: before}))


def test_changed_settings_are_the_subject(tmp_path: Path) -> None:
    plan = of_change(tmp_path, cluster(2, machine={"cpu": 8}), cluster(5, machine={"cpu": 16}))
    assert plan.subject == "team-a/production: cpu 8→16, workers 2→5"
    text = message(plan, Reason("why"))
    assert text.splitlines()[0] == plan.subject
    assert f"- {plan.subject}" in text.splitlines()


def test_replicas_of_an_add_on_are_no_workers(tmp_path: Path) -> None:
    before, after = {"ccm": {"kubeVip": True}}, {"ccm": {"kubeVip": True, "replicas": 2}}
    plan = of_change(tmp_path, cluster(addons=before), cluster(addons=after))
    assert plan.subject == "team-a/production: ccm.replicas none→2"


def test_new_version_is_named_as_what_it_is(tmp_path: Path) -> None:
    plan = of_change(tmp_path, cluster(), cluster(version="v1.36.2"))
    assert plan.subject == "team-a/production: Kubernetes v1.35.1→v1.36.2"


def test_changed_values_and_versions_of_charts_are_named(tmp_path: Path) -> None:
    def config(mtu: int) -> str:
        return yaml.safe_dump({"kind": "HelmChartConfig", "spec": {"valuesContent": f"calico:\n  mtu: {mtu}\n"}})

    path = "clusters/team-a/production/cni/helmchartconfig.yaml"
    assert of_change(tmp_path, config(1450), config(1400), path).subject == "team-a/production: mtu 1450→1400"

    def record(version: str) -> str:
        return yaml.safe_dump({"contentHash": version, "versions": {"charts": {"rke2-cilium": version}}})

    plan = of_change(tmp_path, record("1.17"), record("1.18"), RECORD)
    assert plan.subject == "team-a/production: rke2-cilium 1.17→1.18"


def test_template_with_a_new_name_is_still_compared(tmp_path: Path) -> None:
    def template(name: str, cpu: int) -> str:
        obj = {"kind": "HarvesterMachineTemplate", "metadata": {"name": name}, "spec": {"template": {"cpu": cpu}}}
        deployment = {
            "kind": "MachineDeployment",
            "metadata": {"name": "pool-a"},
            "spec": {"replicas": 3, "template": {"infrastructureRef": {"name": name}}},
        }
        return yaml.safe_dump_all([obj, deployment])

    plan = of_change(tmp_path, template("a-1", 8), template("a-2", 16))
    assert plan.subject == "team-a/production: cpu 8→16"


def test_confidential_and_long_values_are_not_repeated(tmp_path: Path) -> None:
    before, after = cluster(adminPassword="old", motd="a"), cluster(adminPassword="hunter2", motd="b" * 100)
    plan = of_change(tmp_path, before, after)
    assert plan.subject == "team-a/production: adminPassword …→…, motd a→…"


def test_long_subjects_name_as_much_as_fits(tmp_path: Path) -> None:
    names = [f"setting-number-{number}" for number in range(9)]
    plan = of_change(tmp_path, cluster(**dict.fromkeys(names, 1)), cluster(**dict.fromkeys(names, 2)))
    assert plan.subject == "team-a/production: setting-number-0 1→2, setting-number-1 1→2 and 7 more"
    assert [f"{name} 1→2" for name in names] == list(plan.details["team-a/production"])


def test_added_and_removed_clusters(tmp_path: Path) -> None:
    base = snapshot(tmp_path, {})
    assert summarize(Plan(added=(FOLDER, "clusters/team-a/production")), base).subject == (
        "team-a/production: add the cluster"
    )
    removed = tuple(Removal(f"{root}/a/old", "", (), definition=True) for root in ("manifests", "clusters"))
    assert summarize(Plan(removed=removed), base).subject == "a/old: remove the cluster"
    mixed = Plan(added=(FOLDER,), changed=("clusters/a/one",), removed=removed)
    assert summarize(mixed, base).subject == "Add 1, update 1, remove 1 clusters: a/old, a/one, team-a/production"


def test_many_clusters_are_counted(tmp_path: Path) -> None:
    changed = tuple(f"clusters/team-a/cluster-{number:03}" for number in range(300))
    subject = summarize(Plan(changed=changed), snapshot(tmp_path, {})).subject
    assert subject.startswith("Update 300 clusters: team-a/cluster-000, ")
    assert len(subject) <= 72


def test_a_commit_of_records_alone_names_them(tmp_path: Path) -> None:
    plan = summarize(Plan(write={"caphv-status.yaml": b""}), snapshot(tmp_path, {}))
    assert message(plan, Reason("")).splitlines()[0] == "Update caphv-status.yaml"


@given(before=st.binary(max_size=60), after=st.binary(max_size=60))
def test_any_content_has_a_subject(tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    base = snapshot(folder, {})
    (folder / MANIFEST).parent.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(before)
    plan = summarize(Plan(write={MANIFEST: after}, changed=(FOLDER,)), base)
    assert plan.subject.startswith("team-a/production: ")
    assert len(message(plan, Reason("")).splitlines()[0]) <= 200
