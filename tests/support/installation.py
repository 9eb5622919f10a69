"""An installation for the scenarios: its settings from the environment, and the checks before and after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from sandbox import clusterclass, manifests
from sandbox.cluster import ClusterSpec
from sandbox.harvester import kinds
from sandbox.processes.apiserver import private_file
from sandbox.scenario.lifecycle import Scenario
from tests.support.scenarios import Run
from webhooks.configuration import NAMES, RESOURCES

PREFIX = "CAPHV_E2E_"
# Without these there is nothing to run against; the others have defaults.
KUBECONFIGS = ("MANAGEMENT_KUBECONFIG", "HARVESTER_KUBECONFIG")
_NEEDED = (*KUBECONFIGS, "IMAGE", "SSH_KEYPAIR", "NETWORK", "VM_POOLS", "LB_POOL", "GATEWAY", "SUBNET_MASK")
_VERSIONS = ("VERSION", "LATER_VERSION")
NUMBERS = {"CONTROL_PLANES": 1, "WORKERS": 2, "UNHEALTHY_SECONDS": 60, "TIMEOUT": 2400}
_CRDS = (
    "harvesterclusters.infrastructure.cluster.x-k8s.io",
    "clusterclasses.cluster.x-k8s.io",
    "rke2controlplanes.controlplane.cluster.x-k8s.io",
)


class Unfit(Exception):
    """Scenarios cannot be reported; the message has all that is in their way."""


@dataclass(frozen=True)
class Live:
    """What the environment says about the installation to test; `timeout` is in seconds, for a step."""

    management: Path
    harvester: Path
    identity: Path
    spec: ClusterSpec
    later: str
    timeout: float


def live(environment: dict[str, str]) -> Live:
    """Read the variables. Raises Unfit that names all those that are missing or do not fit."""

    def given(name: str, default: str = "") -> str:
        return environment.get(f"{PREFIX}{name}") or default

    missing = [f"{PREFIX}{name}" for name in (*_NEEDED, *_VERSIONS) if not given(name)]
    wrong = [f"set {', '.join(missing)}"] if missing else []
    files = {name: Path(given(name, given("HARVESTER_KUBECONFIG"))) for name in (*KUBECONFIGS, "IDENTITY_KUBECONFIG")}
    wrong += [
        f"{PREFIX}{name}: no such file: {path}" for name, path in files.items() if given(name) and not path.is_file()
    ]
    wrong += [
        f"{PREFIX}{name}: {given(name)} must be a number above 0" for name in NUMBERS if not _fits(given(name, "1"))
    ]
    if given("VERSION") and given("VERSION") == given("LATER_VERSION"):
        wrong.append(f"{PREFIX}LATER_VERSION: {given('VERSION')} is {PREFIX}VERSION: there is nothing to upgrade to")
    if wrong:
        raise Unfit("; ".join(wrong))
    numbers = {name: int(given(name, str(default))) for name, default in NUMBERS.items()}
    name = given("NAME", "caphv-e2e")
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=given("TARGET_NAMESPACE", name),
        control_planes=numbers["CONTROL_PLANES"],
        workers=numbers["WORKERS"],
        version=given("VERSION"),
        load_balancer=given("LB_POOL"),
        machines=tuple(pool.strip() for pool in given("VM_POOLS").split(",")),
        gateway=given("GATEWAY"),
        mask=given("SUBNET_MASK"),
        networks=(given("NETWORK"),),
        image=given("IMAGE"),
        storage_class=given("STORAGE_CLASS", "harvester-longhorn"),
        ssh_key_pair=given("SSH_KEYPAIR"),
        class_namespace=name,
        unhealthy_seconds=numbers["UNHEALTHY_SECONDS"],
    )
    return Live(*files.values(), spec, given("LATER_VERSION"), numbers["TIMEOUT"])


def _fits(number: str) -> bool:
    return number.isdecimal() and int(number) > 0


@asynccontextmanager
async def telling(found: Live, folder: Path) -> AsyncIterator[Run]:
    """A run of scenarios; `folder` is for copies of the kubeconfigs.

    At its end all is deleted that it has made, unless a scenario failed: a user may want to look then. Raises Unfit.
    """
    if wrong := await obstacles(found):
        raise Unfit("; ".join(wrong))
    for name in ("management", "harvester", "identity"):
        private_file(folder / f"{name}.kubeconfig", getattr(found, name).read_bytes())
    scenario = Scenario(folder, found.spec, timeout=found.timeout)
    async with scenario.watching():
        own_target = not await _exists(scenario.harvester, NAMESPACES, found.spec.target_namespace)
        objects = clusterclass.objects(found.spec.namespace, found.spec.cluster_class)
        space = kinds.typed(NAMESPACES, {"metadata": {"name": found.spec.namespace}})
        await manifests.apply(scenario.management, [space, *objects])
        run = Run(scenario, found.later)
        yield run
        if not run.failed:
            await scenario.management.delete(NAMESPACES, found.spec.namespace)
            if own_target and await _exists(scenario.harvester, NAMESPACES, found.spec.target_namespace):
                await scenario.harvester.delete(NAMESPACES, found.spec.target_namespace)


async def obstacles(found: Live) -> list[str]:
    """All that is in the way of scenarios, each with what to do; nothing is changed."""
    return [
        *await _ask("MANAGEMENT_KUBECONFIG", found.management, lambda client: _of_management(client, found.spec)),
        *await _ask("HARVESTER_KUBECONFIG", found.harvester, lambda client: _of_harvester(client, found.spec)),
        *await _ask("IDENTITY_KUBECONFIG", found.identity, _answers),
    ]


def client_of(kubeconfig: Path) -> ApiClient:
    """A client for a kubeconfig. Raises KubeconfigError."""
    return parse_kubeconfig(kubeconfig.read_bytes()).client(name="scenarios", timeout=20.0)


async def _ask(variable: str, kubeconfig: Path, questions: Callable[[ApiClient], Awaitable[list[str]]]) -> list[str]:
    """Ask an API server; a kubeconfig that does not lead to one is an answer, too."""
    try:
        client = client_of(kubeconfig)
    except KubeconfigError as error:
        return [f"{PREFIX}{variable}: {error}"]
    try:
        return await questions(client)
    except (ApiError, Unreachable) as error:
        return [f"{PREFIX}{variable}: {client.server}: {error}"]
    finally:
        await client.close()


async def _of_management(client: ApiClient, spec: ClusterSpec) -> list[str]:
    wrong = [
        f"the management cluster has no {crd}: install what serves it"
        for crd in _CRDS
        if not await _exists(client, CUSTOM_RESOURCE_DEFINITIONS, crd)
    ]
    if not await _exists(client, RESOURCES["validate"], NAMES["validate"]):
        wrong.append("the management cluster has no webhooks of the provider: install it with them")
    if await _exists(client, NAMESPACES, spec.namespace):
        wrong.append(
            f"namespace {spec.namespace} is there, perhaps from a run that failed: "
            f"kubectl delete cluster {spec.name} -n {spec.namespace}, then kubectl delete namespace {spec.namespace}"
        )
    return wrong


async def _of_harvester(client: ApiClient, spec: ClusterSpec) -> list[str]:
    wanted = [
        ("IMAGE", kinds.IMAGES, spec.image),
        ("SSH_KEYPAIR", kinds.KEY_PAIRS, spec.ssh_key_pair),
        *(("NETWORK", kinds.NETWORKS, network) for network in spec.networks),
        *(("VM_POOLS", kinds.IP_POOLS, pool) for pool in spec.machines),
        ("LB_POOL", kinds.IP_POOLS, spec.load_balancer),
        ("STORAGE_CLASS", kinds.STORAGE_CLASSES, spec.storage_class),
    ]
    wrong = [
        f"{PREFIX}{variable}: Harvester has no {resource.kind} {name}"
        for variable, resource, name in wanted
        if not await _exists(client, resource, name)
    ]
    machines = (await client.list(kinds.VIRTUAL_MACHINES, spec.target_namespace))["items"]
    if machines:
        names = ", ".join(sorted(vm["metadata"]["name"] for vm in machines))
        wrong.append(f"{PREFIX}TARGET_NAMESPACE: {spec.target_namespace} has VMs ({names}): name another one")
    return wrong


async def _answers(client: ApiClient) -> list[str]:
    await client.request("GET", "/version")
    return []


async def _exists(client: ApiClient, resource: Resource, qualified: str) -> bool:
    """Whether there is an object `<namespace>/<name>`, or `<name>`."""
    namespace, _, name = qualified.rpartition("/")
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return False
    return True
