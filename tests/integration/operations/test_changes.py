"""`caphv scale` and `caphv upgrade` against a real API server: what they write, ask, and leave alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from caphv.api.object import Obj
from tests.support.clusters import Builder
from tests.support.overview import KINDS, Management

pytestmark = pytest.mark.integration

NEXT = "v1.36.3+rke2r1"


@pytest.fixture(scope="module")
def clusters(management: Management) -> Management:
    """A cluster with a topology and one without, each in a namespace of its own."""
    built = Builder("built")
    built.cluster["spec"]["topology"] |= {
        "controlPlane": {"replicas": 1},
        "workers": {"machineDeployments": [{"name": "md-0", "class": "workers", "replicas": 2}]},
    }
    management.load("with", built.objects())
    plain = Builder("plain")
    del plain.cluster["spec"]["topology"]
    management.load("without", plain.objects())
    return management


def stored(management: Management, kind: str, namespace: str, name: str) -> Obj:
    async def read() -> Obj:
        async with management.server.client() as client:
            return await client.get(KINDS[kind], name, namespace)

    return asyncio.run(read())


def pause(management: Management, namespace: str, name: str) -> None:
    async def write() -> None:
        async with management.server.client() as client:
            await client.patch(KINDS["Cluster"], name, namespace, {"spec": {"paused": True}})

    asyncio.run(write())


def writes(management: Management, *arguments: str) -> tuple[Any, list[str]]:
    """Run a command; answer its result and what it wrote."""
    results = []
    asked = management.requests(lambda: results.append(management.caphv(*arguments)))
    return results[0], [each for each in asked if each.split()[0] not in ("get", "list", "watch")]


def test_a_topology_is_scaled_in_one_write_and_only_once(clusters: Management) -> None:
    words = ("scale", "with/built", "--workers", "md-0=3", "--control-plane", "3", "--yes", "-o", "json")
    result, written = writes(clusters, *words)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["items"]
    assert (found["applied"], len(found["changes"]), written) == (True, 2, ["patch clusters"])
    topology = stored(clusters, "Cluster", "with", "built")["spec"]["topology"]
    assert topology["controlPlane"]["replicas"] == 3
    assert topology["workers"]["machineDeployments"] == [{"name": "md-0", "class": "workers", "replicas": 3}]
    result, written = writes(clusters, *words)
    assert (result.exit_code, json.loads(result.stdout)["items"][0]["applied"], written) == (0, False, [])


def test_without_a_topology_the_deployment_is_scaled(clusters: Management) -> None:
    result, written = writes(clusters, "scale", "without/plain", "--workers", "4", "--yes")
    assert (result.exit_code, written) == (0, ["patch machinedeployments"])
    assert "spec.replicas: 2 → 4" in result.output
    assert stored(clusters, "MachineDeployment", "without", "plain-md-0")["spec"]["replicas"] == 4


def test_a_dry_run_and_a_missing_answer_write_nothing(clusters: Management) -> None:
    result, written = writes(clusters, "scale", "with/built", "--workers", "7", "--dry-run")
    assert (result.exit_code, written) == (0, [])
    assert "→ 7" in result.output
    result, written = writes(clusters, "scale", "with/built", "--workers", "7")
    assert (result.exit_code, written) == (2, [])
    assert "use --yes or --dry-run" in result.output


def test_a_failed_check_forbids_a_change_unless_it_is_forced(clusters: Management) -> None:
    words = ("upgrade", "without/plain", "--version", "v1.35.1+rke2r1", "--yes")
    result, written = writes(clusters, *words, "-o", "json")
    assert (result.exit_code, written) == (1, [])
    failed = [check for check in json.loads(result.stdout)["items"][0]["checks"] if check["result"] == "error"]
    assert [check["id"] for check in failed] == ["version"]
    assert failed[0]["remedy"]


def test_an_upgrade_writes_the_version_once(clusters: Management) -> None:
    words = ("upgrade", "with/built", "--version", NEXT, "--yes", "--force")
    result, written = writes(clusters, *words)
    assert (result.exit_code, written) == (0, ["patch clusters"])
    assert stored(clusters, "Cluster", "with", "built")["spec"]["topology"]["version"] == NEXT
    result, written = writes(clusters, *words)
    assert (result.exit_code, written) == (0, [])
    assert "Nothing to change" in result.output


def test_without_a_topology_the_control_plane_is_upgraded_first(clusters: Management) -> None:
    words = ("upgrade", "without/plain", "--version", NEXT, "--force")
    result, written = writes(clusters, *words, "--yes")
    assert (result.exit_code, written) == (3, ["patch rke2controlplanes"])
    assert "1 MachineDeployment is upgraded after the control plane" in result.output
    # Until it is upgraded, every run says that the workers are old.
    result, written = writes(clusters, *words, "--yes")
    assert (result.exit_code, written, "up to date" in result.output) == (3, [], False)
    assert "MachineDeployment without/plain-md-0, later" in result.output
    result, written = writes(clusters, *words, "--yes", "-o", "json")
    (found,) = json.loads(result.stdout)["items"]
    assert (result.exit_code, written, found["applied"], found["changes"]) == (3, [], False, [])
    assert [(each["object"], each["after"]) for each in found["pending"]] == [
        ("MachineDeployment without/plain-md-0", NEXT)
    ]
    deployment = stored(clusters, "MachineDeployment", "without", "plain-md-0")
    assert deployment["spec"]["template"]["spec"]["version"] != NEXT


def test_a_wait_that_will_change_workers_asks_and_respects_checks_like_the_first_run(clusters: Management) -> None:
    words = ("upgrade", "without/plain", "--version", NEXT, "--wait", "--timeout", "1s")
    result, written = writes(clusters, *words)
    assert (result.exit_code, written) == (2, [])
    assert "use --yes or --dry-run" in result.output
    result, written = writes(clusters, *words, "--yes")
    assert (result.exit_code, written, "Timed out" in result.output) == (1, [], True)
    pause(clusters, "without", "plain")
    for each in (words, words[:4]):
        result, written = writes(clusters, *each, "--yes")
        assert (result.exit_code, written, "Nothing was changed: a check failed" in result.output) == (1, [], True)


def test_a_wait_that_takes_too_long_ends_and_says_so(clusters: Management) -> None:
    result = clusters.caphv("scale", "with/built", "--workers", "9", "--yes", "--wait", "--timeout", "1s")
    assert result.exit_code == 1
    assert "Timed out" in result.output
    result = clusters.caphv("scale", "with/built", "--workers", "9", "--wait", "--timeout", "soon")
    assert result.exit_code == 2
    assert "'soon' is not a time such as 90s, 45m or 2h" in result.output


def test_mistakes_are_named_before_anything_is_read(clusters: Management) -> None:
    for words, message in (
        (("--workers", "md-0=x"), "is not [POOL=]REPLICAS"),
        (("--workers", "a=1", "--workers", "a=2"), "is given twice"),
        ((), "nothing to do"),
    ):
        result = clusters.caphv("scale", "with/built", *words)
        assert result.exit_code == 2
        assert message in result.output


def test_what_a_user_may_not_change_is_refused_as_a_whole(clusters: Management) -> None:
    result = clusters.caphv("scale", "with/built", "--workers", "1", "--yes", user="eve")
    assert result.exit_code == 2
    assert "your account may not do that" in result.output
