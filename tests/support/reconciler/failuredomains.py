"""Failure domains of hosts, with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Collection

from caphv.api.object import Obj
from reconciler.harvester import topology


def failure_domains(
    hosts: Collection[Obj],
    control_plane: Collection[str] = (),
    *,
    published: Collection[Obj] = (),
    used: Collection[str] = (),
) -> list[Obj]:
    return topology.failure_domains(hosts, control_plane=control_plane, published=published, used=used)
