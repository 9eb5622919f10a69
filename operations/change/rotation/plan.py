"""Decide what a rotation of a token does: pure."""

from __future__ import annotations

from dataclasses import dataclass

from operations.change.rotation.identity import RotatedIdentity

_DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """The steps of a rotation.

    Without `seconds` the new token does not expire. Without `deletes` the former token stays valid.
    """

    secret: str
    account: str
    harvester: str
    clusters: tuple[str, ...]
    issues: bool
    seconds: int
    deletes: str
    kept: str = ""


def plan_rotation(
    identity: RotatedIdentity, *, expires_in: int | None, keep_old: bool
) -> RotationPlan:
    """Decide on the lifetime of the new token, and whether the former token is deleted.

    :param identity: the identity as it was read
    :param expires_in: the lifetime of the new token in days; None for the former token's lifetime
    :param keep_old: whether the former token stays valid
    """
    kept = ""
    if keep_old:
        kept = "--keep-old was given"
    elif identity.sharing:
        kept = f"the same token is in Secret {', '.join(identity.sharing)}: rotate it there, too"
    elif identity.unread:
        kept = f"Secret {', '.join(identity.unread)} cannot be read, and may have the same token"

    # A token in a Secret does not expire.
    seconds = 0 if identity.token.secret else identity.token.seconds
    if expires_in:
        seconds = expires_in * _DAY
    clusters = sorted(
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in identity.clusters
    )
    return RotationPlan(
        str(identity.key),
        str(identity.token.account),
        identity.access.server,
        tuple(clusters),
        issues=not identity.previous,
        seconds=seconds,
        deletes="" if kept else identity.previous or identity.token.secret,
        kept=kept,
    )
