"""What the checks know of one identity and the Harvester behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caphv.api.object import Key, Obj
from caphv.api.tokenrenewal import Issued
from caphv.runtime.kubeconfig import Kubeconfig
from operations.capacity.addresspools import PoolReport
from operations.doctor.rights import Right
from operations.doctor.storage import Storage
from operations.read.objects import HarvesterObjects
from operations.read.owners import OwnerObjects

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading values of other types raises."""


@dataclass(slots=True)
class HarvesterFacts:
    """The input of the checks of one identity.

    `objects` is None when Harvester does not answer, and `error` says why.
    """

    identity: Key
    kubeconfig: Kubeconfig | None = None
    error: str = ""
    rejected: bool = False
    """Whether `error` means that Harvester rejects the credentials."""
    hidden: str = ""
    """Why the credentials may not be read here, which says nothing about them."""
    objects: HarvesterObjects | None = None
    denied: list[Right] | None = None
    deployment: Obj | None = None
    ingress: Obj | None = None
    """Service `kube-system/ingress-expose`, which has the virtual address."""
    unread: list[str] = field(default_factory=list)
    """What checks need and the account may not read: a verb and its object."""
    storage: Storage = field(default_factory=Storage)
    machines: list[Obj] = field(default_factory=list)
    clusters: list[Obj] = field(default_factory=list)
    owners: dict[Key, Obj] = field(default_factory=dict)
    """Clusters by namespace and name."""
    recorded_owners: OwnerObjects | None = None
    """HarvesterMachines and HarvesterClusters; None if they may not be read."""
    pools: tuple[PoolReport, ...] = ()
    secret: Key | None = None
    """The Secret of the identity, None if it is not known."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By namespace why its clusters may not use the identity. They are not in `clusters`."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """By namespace why it is not known whether its clusters may. They are not in `clusters`."""
    not_allowed: Mapping[str, str] = field(default_factory=dict)
    """By namespace why the provider refuses its clusters the Secret. They are in `clusters`."""
    renewed: Issued | None = None
    """Record of a token that the provider renews, None for credentials of a user."""
    renewal_problem: str = ""
    """Why the provider does not renew a token as it should, empty if it does."""


def describe_malformed(error: Exception) -> str:
    """Return a message that answers cannot be parsed, without quoting them."""
    return f"its answers have another form than Harvester's ({type(error).__name__})"
