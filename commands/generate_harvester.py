"""Check for `caphv generate` whether Harvester has what the new cluster names and needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from caphv.validation.finding import Finding
    from operations.capacity.surroundings import Surroundings
    from packager.definitions.model import Definition, Pool


_NAMED = (
    "virtualmachineimages",
    "keypairs",
    "network-attachment-definitions",
    "ippools",
    "quotas",
)


@dataclass(frozen=True, slots=True)
class Preflight:
    """The result of the checks of a new cluster; `unchecked` names checks that were impossible."""

    findings: tuple[Finding, ...] = ()
    refused: str = ""
    """The reason why the server rejects the credentials, or is not a Harvester."""
    unchecked: tuple[str, ...] = ()


class HarvesterRefusedError(Exception):
    """The server answers, but it is not a Harvester or rejects the credentials."""


class HarvesterUnreachableError(Exception):
    """Harvester does not answer."""


def read(kubeconfig: str, namespace: str = "") -> Surroundings:
    """Read Harvester with a kubeconfig, and the objects of a namespace.

    Raises `HarvesterRefusedError`, `HarvesterUnreachableError`.
    """
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from operations.capacity.reading import NotAHarvesterError, read_surroundings
    from operations.read.servers import HARVESTER_SECONDS, answering_client

    access = parse_kubeconfig(kubeconfig)

    async def ask() -> Surroundings:
        async with answering_client(
            access, "harvester", HARVESTER_SECONDS, max_in_flight=16
        ) as client:
            return await read_surroundings(client, [namespace] if namespace else [])

    with patient_progress() as step:
        step("reading Harvester")
        try:
            return asyncio.run(ask())
        except NotAHarvesterError as error:
            raise HarvesterRefusedError(str(error)) from None
        except ApiError as error:
            raise HarvesterRefusedError(
                f"{access.server} refuses the credentials: {error}"
            ) from None
        except Unreachable as error:
            raise HarvesterUnreachableError(str(error)) from None
        except TimeoutError:
            msg = f"{access.server} did not answer within {HARVESTER_SECONDS:.0f} s"
            raise HarvesterUnreachableError(msg) from None


def preflight(kubeconfig: str, manifest: Obj, definition: Definition | None) -> Preflight:
    """Compare a definition with the objects and the room of Harvester. Never raises.

    :param kubeconfig: the kubeconfig for Harvester
    :param manifest: the definition as it was written
    :param definition: the parsed definition, None if it is invalid
    """
    from operations.capacity.newcluster import NewCluster, findings
    from operations.capacity.reading import OTHER_VMS

    cluster = NewCluster(manifest, pools_of(definition) if definition else ())
    try:
        surroundings = read(kubeconfig, cluster.target_namespace)
    except HarvesterRefusedError as error:
        return Preflight(refused=str(error))
    except HarvesterUnreachableError as error:
        return Preflight(
            unchecked=(f"Harvester does not answer, so that nothing was checked there: {error}",)
        )

    # A kind that the account may not list is one note, instead of a finding for each object.
    unseen = {
        item.what.partition(".")[0].partition(" ")[0]
        for item in surroundings.capacity.harvester.unseen
    }
    hidden = [kind for kind in _NAMED if kind in unseen]
    notes = []
    if hidden:
        kinds = ", ".join(hidden)
        notes.append(f"the account may not list {kinds}: these were not checked on Harvester")
    if OTHER_VMS in {item.what for item in surroundings.capacity.harvester.unseen}:
        notes.append(
            f"the account does not see {OTHER_VMS}: hosts may have less room than was counted"
        )
    return Preflight(tuple(findings(cluster, surroundings)), unchecked=tuple(notes))


def pools_of(definition: Definition) -> list[_Pool]:
    """Return the machines of a definition in the form of plans."""
    return [_pool(pool) for pool in (definition.control_plane, *definition.workers)]


def _pool(pool: Pool) -> _Pool:
    from operations.capacity.machinepools import CONTROL_PLANE
    from operations.capacity.machinepools import Pool as PlannedPool

    name = CONTROL_PLANE if pool.name == "control-plane" else pool.name
    return PlannedPool(
        name,
        pool.replicas,
        machine={
            "cpu": pool.cpu,
            "memory": pool.memory,
            **pool.maxima,
            "volumes": pool.volumes,
        },
    )


if TYPE_CHECKING:
    from operations.capacity.machinepools import Pool as _Pool
