"""Ask Harvester for a plan: whether it has the objects that the cluster names, and room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from caphv.api.identities import identity_of
from caphv.api.object import Key, Obj, text_at
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.validation.finding import Finding
from operations.capacity.machinepools import DesiredState, Objects
from operations.capacity.reading import NotAHarvesterError, read_surroundings
from operations.capacity.requirements import (
    Requirements,
    cluster_requirements,
    imports_of,
    machine_requirements,
    place_of,
    shortcomings,
)
from operations.capacity.surroundings import Surroundings
from operations.change.plan.model import Shortcoming
from operations.read.accounts import read_accounts
from operations.read.objects import Unseen
from operations.read.servers import HARVESTER_SECONDS


class HarvesterAnswer(NamedTuple):
    """A Harvester, None if it cannot be read, and what could not be seen of it."""

    surroundings: Surroundings | None
    unseen: list[str]


async def ask_harvester(
    client: ApiClient, harvester_cluster: Obj, objects: Objects
) -> HarvesterAnswer:
    """Read the Harvester of a HarvesterCluster.

    Manifests may create the identity Secret, so that a Secret among the objects takes precedence
    over the existing one.
    """
    identity = identity_of(harvester_cluster)
    secret = objects.get(ObjectId("", "Secret", *identity))
    secrets: Mapping[Key, Obj] = {identity: secret} if secret else {}
    accounts, hidden = await read_accounts(client, [harvester_cluster], secrets)
    if not accounts:
        return HarvesterAnswer(None, list(map(str, hidden)))

    account = accounts[0]
    server = account.kubeconfig.server
    harvester = account.kubeconfig.client(
        name="harvester", user_agent="caphv-cli", timeout=HARVESTER_SECONDS
    )
    try:
        surroundings = await read_surroundings(harvester, account.namespaces)
    except (ApiError, Unreachable, NotAHarvesterError) as error:
        return HarvesterAnswer(None, [f"Harvester {server}: {error}"])
    finally:
        await harvester.close()
    hidden_kinds = _unseen(server, surroundings.capacity.harvester.unseen)
    return HarvesterAnswer(surroundings, list(hidden_kinds))


def _unseen(server: str, unseen: list[Unseen]) -> Iterator[str]:
    """Yield a line for each kind that could not be read.

    All kinds that the account may not read share one line, which is equal for all its clusters.
    """
    forbidden = [item.what for item in unseen if item.forbidden]
    if forbidden:
        yield f"{', '.join(forbidden)} on Harvester {server}: the account may not list them"
    for item in unseen:
        if not item.forbidden:
            yield f"{item.what} on Harvester {server}: {item.why}"


def shortcomings_of(
    after: DesiredState, cluster: Obj | None, harvester: Surroundings
) -> tuple[Shortcoming, ...]:
    """Return the objects that a cluster names and Harvester lacks, each once.

    :param after: the desired state of the cluster
    :param cluster: the Cluster, whose topology may set the values
    :param harvester: the objects of the Harvester
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for required in _requirements(after):
        for finding in shortcomings(required, harvester):
            key = (finding.rule, str(finding.value), finding.detail)
            groups.setdefault(key, []).append(finding)

    return tuple(
        Shortcoming(
            check=check,
            value=value,
            message=detail,
            fields=tuple(dict.fromkeys(_field(finding) for finding in findings)),
            where=place_of(cluster, value),
            advice=all(finding.advice for finding in findings),
        )
        for (check, value, detail), findings in groups.items()
    )


def _requirements(after: DesiredState) -> Iterator[Requirements]:
    """Yield what the HarvesterCluster and the machines of each pool require of Harvester."""
    target = text_at(after.infrastructure, "targetNamespace")
    machines = [
        machine_requirements(
            pool.machine,
            target,
            (name,),
            version=text_at(pool.inputs, "version"),
            imported=imports_of(after.infrastructure),
        )
        for name, pool in after.pools.items()
        if pool.machine
    ]
    networks = {value.text for required in machines for value in required.networks}
    yield cluster_requirements(after.infrastructure, networks, ("HarvesterCluster",))
    yield from machines


def _field(finding: Finding) -> str:
    """Return the field of a finding, prefixed by the pool or object that has it."""
    owner, *path = finding.path
    return f"{owner}: {Finding(tuple(path), finding.fault, finding.detail).field}"
