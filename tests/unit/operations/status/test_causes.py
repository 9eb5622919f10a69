"""One cause is reported once: in a cluster, in what the clusters of one Harvester have in common, and by the doctor."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from caphv.api.object import Key
from caphv.runtime.kubeconfig import Kubeconfig
from commands.output import overview as lines
from commands.output import tree
from operations.doctor import clusters as cluster_checks
from operations.doctor import harvester as harvester_checks
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.status.assembly import overview_of
from operations.status.causes import own_problems, with_causes
from operations.status.check import Result
from operations.status.model import Overview, as_json
from tests.support.clusters import NOW, Builder, condition, token

pytestmark = pytest.mark.unit

REJECTED = "HarvesterAuthenticationFailed"
MESSAGE = "Harvester rejects the credentials in identity Secret team/identity (401)"


def outage(name: str, prefix: str = "") -> Builder:
    """A cluster whose Harvester rejects the credentials, as all its objects report it."""
    builder = Builder(name, prefix=prefix)
    builder.harvester_cluster["status"]["conditions"] = [
        condition("IdentityUpToDate", "False", REJECTED, MESSAGE),
        condition("HarvesterConnectionReady", "False", REJECTED, MESSAGE),
        condition("Ready", "False", REJECTED, MESSAGE),
    ]
    for machine in builder.machines:
        text = "Harvester at https://harvester:6443 rejects the credentials; see the HarvesterCluster's conditions"
        builder.break_machine(machine, REJECTED, text)
        builder.machines[machine]["status"]["conditions"] += [condition("InfrastructureReady", "False", REJECTED, text)]
    return builder


def both() -> Overview:
    one, two = outage("one", "a-").objects(), outage("two", "b-").objects()
    for name in ("clusters", "machines", "machine_deployments", "control_planes", "harvester_clusters"):
        setattr(one, name, [*getattr(one, name), *getattr(two, name)])
    one.harvester_machines += two.harvester_machines
    return overview_of(one, NOW)


def written(show: str, overview: Overview) -> str:
    out = Console(file=io.StringIO(), width=300, no_color=True)
    if show == "tree":
        tree.show(out, overview.clusters, conditions=False, now=NOW)
    else:
        lines.show_causes(out, overview, NOW)
        lines.show(out, overview, with_namespace=True, now=NOW)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_one_outage_is_one_problem_of_a_cluster_with_its_consequences() -> None:
    (cluster,) = overview_of(outage("one").objects(), NOW).clusters
    (problem,) = cluster.problems
    assert problem.objects == ("HarvesterCluster/one-x",)
    assert set(problem.consequences) == {"Machine/cp-1", "Machine/worker-1", "Machine/worker-2"}
    assert "caphv identity rotate team/identity --harvester-kubeconfig FILE" in problem.next_step


def test_a_tree_shows_it_at_its_place_only() -> None:
    text = written("tree", overview_of(outage("one").objects(), NOW))
    assert text.count("✗") == 1
    assert text.count(MESSAGE) == 1


def test_clusters_of_one_identity_have_it_in_common() -> None:
    overview = both()
    (cause,) = overview.causes
    assert (cause.subject, cause.clusters) == ("Secret team/identity", ("team/one", "team/two"))
    assert all(own_problems(cluster, overview.causes) == () for cluster in overview.clusters)
    text = written("status", overview)
    assert text.count(MESSAGE) == 1
    assert "concerns 2 clusters: team/one, team/two" in text
    assert as_json(overview)["causes"][0]["clusters"] == ["team/one", "team/two"]


def test_a_line_about_a_harvester_names_its_server_once() -> None:
    server = "https://harvester:6443"
    message = f"Harvester is unreachable: {server}: timed out; 3 machines last known to be ready"
    builders = [Builder("one", prefix="a-"), Builder("two", prefix="b-")]
    clusters = []
    for builder in builders:
        unreachable = condition("HarvesterConnectionReady", "Unknown", "HarvesterUnreachable", message)
        builder.harvester_cluster["status"]["conditions"] = [unreachable]
        clusters += overview_of(builder.objects(), NOW).clusters
    text = written("status", with_causes(Overview("", tuple(clusters))))
    (line,) = (line for line in text.splitlines() if "unreachable" in line)
    assert line.startswith(f"✗ Harvester {server}: Harvester is unreachable: timed out")
    assert line.count(server) == 1


def test_what_is_wrong_with_one_cluster_stays_with_it() -> None:
    overview = both()
    broken = outage("three", "c-")
    broken.harvester_cluster["spec"]["identitySecret"]["name"] = "other"
    found = replace(overview, clusters=(*overview.clusters, *overview_of(broken.objects(), NOW).clusters))
    assert own_problems(found.clusters[-1], found.causes) == found.clusters[-1].problems


def test_a_repository_that_cannot_be_written_is_one_cause() -> None:
    messages = {"one": "no answer of A", "two": "no answer of A", "three": "no answer of B"}
    clusters = []
    for name, message in messages.items():
        builder = Builder(name)
        not_pushed = condition("AddonBundlesReady", "False", "AddonBundlesNotPushed", message)
        builder.harvester_cluster["status"]["conditions"].append(not_pushed)
        clusters += overview_of(builder.objects(), NOW).clusters
    overview = with_causes(Overview("https://management:6443", tuple(clusters)))
    (cause,) = overview.causes
    assert (cause.subject, cause.cause) == ("packager", "no answer of A")
    assert cause.clusters == ("team/one", "team/two")

    # Another packager has a repository of its own.
    of_others = [own_problems(cluster, overview.causes) for cluster in overview.clusters]
    assert [len(problems) for problems in of_others] == [0, 0, 1]


def test_the_doctor_names_the_clusters_at_the_cause() -> None:
    overview = both()
    checks = list(cluster_checks.checks(overview.clusters, {"team/identity"}))
    assert {check.result for check in checks} == {Result.SKIPPED}
    assert all("because of Secret team/identity" in check.message for check in checks)

    builder = outage("one")
    access = Kubeconfig("https://harvester:6443", token=token(days=-1))
    facts = HarvesterFacts(Key("team", "identity"), access, "rejects the credentials", rejected=True)
    facts.clusters = [builder.harvester_cluster]
    wrong = [check for check in harvester_checks.checks(facts, NOW) if check.wrong]
    assert [check.id for check in wrong] == ["credentials"], "that it is rejected follows from its end"
    assert "--harvester-kubeconfig FILE" in wrong[0].remedy

    facts.kubeconfig = Kubeconfig("https://harvester:6443", token=token(days=90))
    (only,) = [check for check in harvester_checks.checks(facts, NOW) if check.wrong]
    assert (only.id, "team/one-x" in only.message) == ("connection", True)


def test_what_is_under_way_does_not_hide_another_problem() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist", minutes=3)
    builder.machines["worker-2"]["status"]["conditions"] = [condition("Deleting", "True", "Draining", "draining")]
    text = written("tree", overview_of(builder.objects(), NOW))
    assert "the VirtualMachine does not exist" in text
    assert "draining" in text
