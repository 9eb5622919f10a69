"""How far a change of several clusters is that the provider carries out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterProgress:
    """How far a cluster is: whether it is done or needs a user, and what is under way."""

    done: bool
    blocked: bool
    text: str
