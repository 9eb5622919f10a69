"""What a plan asks Harvester: whether it has what the cluster names, and what is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.validation.finding import Finding
from overview.capacityreader import NotAHarvesterError, read_surroundings
from overview.harvester import HARVESTER_SECONDS, identity_of, read_accounts
from overview.objects import Unseen
from overview.plan.model import Shortcoming
from overview.plan.pools import Objects, Wanted
from overview.requirements import (
    Requirements,
    cluster_requirements,
    machine_requirements,
    place_of,
    shortcomings,
)
from overview.surroundings import Surroundings


async def ask_harvester(
    client: ApiClient, harvester_cluster: Obj, objects: Objects
) -> tuple[Surroundings | None, list[str]]:
    """Read the Harvester of a HarvesterCluster, None if it cannot be read; and what was not seen.

    An identity Secret among the objects, which the manifests may create, is used as they have it.
    """
    identity = identity_of(harvester_cluster)
    secret = objects.get(ObjectId("", "Secret", *identity))
    given: Mapping[Key, Obj] = {identity: secret} if secret else {}
    accounts, hidden = await read_accounts(client, [harvester_cluster], given)
    if not accounts:
        return None, list(map(str, hidden))

    account = accounts[0]
    harvester = account.access.client(name="harvester", user_agent="caphv-cli", timeout=HARVESTER_SECONDS)
    try:
        found = await read_surroundings(harvester, account.namespaces)
    except (ApiError, Unreachable, NotAHarvesterError) as error:
        return None, [f"Harvester {account.access.server}: {error}"]
    finally:
        await harvester.close()
    return found, list(_unseen(account.access.server, found.capacity.harvester.unseen))


def _unseen(server: str, unseen: list[Unseen]) -> Iterator[str]:
    """Say what was not seen: what the account may not read in one line, as it is the same for each of its clusters."""
    forbidden = [each.what for each in unseen if each.forbidden]
    if forbidden:
        yield f"{', '.join(forbidden)} on Harvester {server}: the account may not list them"
    for each in unseen:
        if not each.forbidden:
            yield f"{each.what} on Harvester {server}: {each.why}"


def shortcomings_of(after: Wanted, cluster: Obj | None, harvester: Surroundings) -> tuple[Shortcoming, ...]:
    """Return what the objects of a cluster name and Harvester does not have, each once.

    :param after: what the objects want
    :param cluster: the Cluster, whose topology may set the values
    :param harvester: what there is
    """
    grouped: dict[tuple[str, str, str], list[Finding]] = {}
    for required in _requirements(after):
        for finding in shortcomings(required, harvester):
            grouped.setdefault((finding.rule, str(finding.value), finding.detail), []).append(finding)
    return tuple(
        Shortcoming(
            check,
            value,
            detail,
            tuple(dict.fromkeys(_field(finding) for finding in findings)),
            place_of(cluster, value),
            all(finding.advice for finding in findings),
        )
        for (check, value, detail), findings in grouped.items()
    )


def _requirements(after: Wanted) -> Iterator[Requirements]:
    target = str(after.infrastructure.get("targetNamespace") or "")
    machines = [
        machine_requirements(pool.machine, target, (name,)) for name, pool in after.pools.items() if pool.machine
    ]
    networks = {value.text for required in machines for value in required.networks}
    yield cluster_requirements(after.infrastructure, networks, ("HarvesterCluster",))
    yield from machines


def _field(finding: Finding) -> str:
    """Return the field of a finding behind the pool or object that has it."""
    owner, *path = finding.path
    return f"{owner}: {Finding(tuple(path), finding.fault, finding.detail).field}"
