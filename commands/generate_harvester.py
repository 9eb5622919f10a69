"""What `caphv generate` asks Harvester: whether it has what the new cluster names and needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commands.options.management import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from caphv.validation.finding import Finding
    from overview.surroundings import Surroundings
    from packager.definitions.model import Definition, Pool


_NAMED = ("virtualmachineimages", "keypairs", "network-attachment-definitions", "ippools", "quotas")


@dataclass(frozen=True, slots=True)
class Preflight:
    """What Harvester says about a new cluster; `unchecked` says what it could not be asked."""

    findings: tuple[Finding, ...] = ()
    refused: str = ""
    """Why the kubeconfig leads to no Harvester, or with no rights."""
    unchecked: tuple[str, ...] = ()


class HarvesterRefusedError(Exception):
    """The server answers, and it is no Harvester or does not accept the credentials."""


class HarvesterUnreachableError(Exception):
    """Harvester does not answer."""


def read(kubeconfig: str, namespace: str = "") -> Surroundings:
    """Read Harvester with this kubeconfig, and what is in a namespace.

    Raises `HarvesterRefusedError`, `HarvesterUnreachableError`.
    """
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from overview.capacityreader import NotAHarvesterError, read_surroundings
    from overview.harvester import HARVESTER_SECONDS, answering_client

    access = parse_kubeconfig(kubeconfig)

    async def ask() -> Surroundings:
        async with answering_client(access, "harvester", HARVESTER_SECONDS, max_in_flight=16) as client:
            return await read_surroundings(client, [namespace] if namespace else [])

    with patient_progress() as step:
        step("reading Harvester")
        try:
            return asyncio.run(ask())
        except NotAHarvesterError as error:
            raise HarvesterRefusedError(str(error)) from None
        except ApiError as error:
            raise HarvesterRefusedError(f"{access.server} refuses the credentials: {error}") from None
        except Unreachable as error:
            raise HarvesterUnreachableError(str(error)) from None
        except TimeoutError:
            msg = f"{access.server} did not answer within {HARVESTER_SECONDS:.0f} s"
            raise HarvesterUnreachableError(msg) from None


def preflight(kubeconfig: str, wanted: Obj, definition: Definition | None) -> Preflight:
    """Compare a definition, of which `definition` is the valid form, with what Harvester has. Never raises."""
    from overview.capacityreader import OTHER_VMS
    from overview.newcluster import NewCluster, findings

    cluster = NewCluster(wanted, pools_of(definition) if definition else ())
    try:
        found = read(kubeconfig, cluster.target_namespace)
    except HarvesterRefusedError as error:
        return Preflight(refused=str(error))
    except HarvesterUnreachableError as error:
        return Preflight(unchecked=(f"Harvester does not answer, so that nothing was checked there: {error}",))
    unseen = {each.what.partition(".")[0].partition(" ")[0] for each in found.capacity.harvester.unseen}
    hidden = [kind for kind in _NAMED if kind in unseen]
    notes = [f"the account may not list {', '.join(hidden)}: these were not checked on Harvester"] if hidden else []
    if OTHER_VMS in {each.what for each in found.capacity.harvester.unseen}:
        notes.append(f"the account does not see {OTHER_VMS}: hosts may have less room than was counted")
    return Preflight(tuple(findings(cluster, found)), unchecked=tuple(notes))


def pools_of(definition: Definition) -> list[_Pool]:
    """Return the machines of a definition as plans have them."""
    return [_pool(each) for each in (definition.control_plane, *definition.workers)]


def _pool(pool: Pool) -> _Pool:
    from overview.plan.pools import CONTROL_PLANE
    from overview.plan.pools import Pool as PlannedPool

    name = CONTROL_PLANE if pool.name == "control-plane" else pool.name
    return PlannedPool(name, pool.replicas, machine={"cpu": pool.cpu, "memory": pool.memory, "volumes": pool.volumes})


if TYPE_CHECKING:
    from overview.plan.pools import Pool as _Pool
