"""Read what decides which charts fit a Harvester: its release, and the versions that it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from caphv.api import resources
from caphv.api.release import release_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError
from operations.read.harvestersettings import CHART_VERSIONS, read_deployment, value_of


@dataclass(frozen=True, slots=True)
class ChartLimits:
    """A release of Harvester, None if it is unknown, and its setting of accepted versions."""

    harvester: tuple[int, int] | None = None
    accepted: Mapping[str, Any] = field(default_factory=dict)


async def read_chart_limits(client: ApiClient) -> ChartLimits:
    """Read the limits of one Harvester, as far as the account may. Raises `Unreachable`."""
    deployment = None
    accepted = None
    with suppress(ApiError):
        deployment = await read_deployment(client)
    with suppress(ApiError):
        # Harvester lets every account get this setting.
        accepted = value_of(await client.get(resources.HARVESTER_SETTINGS, CHART_VERSIONS))
    return ChartLimits(release_of(deployment), accepted if isinstance(accepted, dict) else {})
