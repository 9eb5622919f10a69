"""All scenarios on the sandbox, on the way that they go to a real Harvester: by variables, and with its checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from caphv.api.object import NAMESPACES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION
from sandbox.environment import Sandbox
from tests.support.installation import PREFIX, Live, client_of, live, obstacles, telling
from tests.support.scenarios import GROUPS, SCRIPT, Run, Step, run_step, scenarios
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def found(box: Sandbox, runner: asyncio.Runner) -> Live:
    values = {
        "MANAGEMENT_KUBECONFIG": box.kubeconfig("management"),
        "HARVESTER_KUBECONFIG": box.kubeconfig("harvester"),
        "IDENTITY_KUBECONFIG": box.kubeconfig("identity"),
        "IMAGE": "default/sles-15",
        "SSH_KEYPAIR": "default/caphv",
        "NETWORK": "default/production",
        "VM_POOLS": "machines-a, machines-b",
        "LB_POOL": "load-balancers",
        "GATEWAY": f"{box.status()['network'].removesuffix('.0.0/16')}.0.1",
        "SUBNET_MASK": "255.255.128.0",
        "VERSION": EARLIER_VERSION,
        "LATER_VERSION": LATER_VERSION,
        # One machine more than the first pool has addresses.
        "WORKERS": 4,
        "NAME": "live",
        "TARGET_NAMESPACE": "live-vms",
        "UNHEALTHY_SECONDS": 2,
        "TIMEOUT": 300,
    }
    found = live({f"{PREFIX}{name}": str(value) for name, value in values.items()})

    async def is_fit() -> bool:
        # The provider registers its webhooks a moment after it has come up.
        return await obstacles(found) == []

    runner.run(until(is_fit, "the sandbox is fit for the scenarios"))
    return found


@pytest.fixture(scope="module")
def run(found: Live, tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Run]:
    reported = telling(found, tmp_path_factory.mktemp("report"))
    yield runner.run(reported.__aenter__())
    runner.run(reported.__aexit__(None, None, None))
    runner.run(nothing_is_left(found))


async def nothing_is_left(found: Live) -> None:
    """After the last scenario both namespaces go."""
    for kubeconfig, name in ((found.management, found.spec.namespace), (found.harvester, found.spec.target_namespace)):
        client = client_of(kubeconfig)
        try:
            await until(lambda client=client, name=name: is_deleted(client, name), f"namespace {name} is deleted")
        finally:
            await client.close()


async def is_deleted(client: ApiClient, namespace: str) -> bool:
    try:
        await client.get(NAMESPACES, namespace)
    except NotFound:
        return True
    return False


def test_all_that_is_in_the_way_is_reported_before_anything_is_made(
    found: Live, runner: asyncio.Runner, tmp_path: Path
) -> None:
    wrong = replace(found.spec, image="default/absent", machines=("machines-a", "gone"), namespace="kube-system")
    nowhere = tmp_path / "identity.yaml"
    nowhere.write_text(found.identity.read_text().replace("token: ", "tokenFile: "))
    reported = runner.run(obstacles(replace(found, spec=wrong, identity=nowhere)))
    assert [text.partition(":")[0] for text in reported] == [
        "namespace kube-system is there, perhaps from a run that failed",
        f"{PREFIX}IMAGE",
        f"{PREFIX}VM_POOLS",
        f"{PREFIX}IDENTITY_KUBECONFIG",
    ]


@pytest.mark.parametrize(
    ("old", "new"), [("127.", "127.255."), ("token: ", "tokenFile: /absent/"), ("data: ", "data: A")]
)
def test_a_kubeconfig_that_leads_nowhere_is_named(
    found: Live, runner: asyncio.Runner, tmp_path: Path, old: str, new: str
) -> None:
    kubeconfig = tmp_path / "management.yaml"
    kubeconfig.write_text(found.management.read_text().replace(old, new))
    (reported,) = runner.run(obstacles(replace(found, management=kubeconfig)))
    assert reported.startswith(f"{PREFIX}MANAGEMENT_KUBECONFIG: ")


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.__name__)
def test_scenario(run: Run, runner: asyncio.Runner, scenario: Step) -> None:
    runner.run(run_step(run, scenario))


def test_the_script_has_eighteen() -> None:
    assert len({scenario for group in SCRIPT for scenario in GROUPS[group]}) == 18
