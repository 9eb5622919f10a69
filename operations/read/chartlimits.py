"""Read what decides which charts fit a Harvester: its release, and the versions that it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from caphv.api import resources
from caphv.api.object import DEPLOYMENTS, Key
from caphv.api.release import release_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError
from caphv.runtime.text import TextError, load_json

_HARVESTER = Key("harvester-system", "harvester")
_ACCEPTED = "harvester-csi-ccm-versions"


@dataclass(frozen=True, slots=True)
class ChartLimits:
    """A release of Harvester, None if it is unknown, and its setting of accepted versions."""

    harvester: tuple[int, int] | None = None
    accepted: Mapping[str, Any] = field(default_factory=dict)


async def read_chart_limits(client: ApiClient) -> ChartLimits:
    """Read the limits of one Harvester, as far as the account may. Raises `Unreachable`."""
    deployment, accepted = None, None
    with suppress(ApiError):
        # The role of the provider allows it to list this one name, but not to get it.
        answer = await client.list(
            DEPLOYMENTS, _HARVESTER.namespace, field_selector=f"metadata.name={_HARVESTER.name}"
        )
        deployment = next(iter(answer["items"]), None)
    with suppress(ApiError, TextError):
        # Harvester lets every account get this setting.
        setting = await client.get(resources.HARVESTER_SETTINGS, _ACCEPTED)
        accepted = load_json(str(setting.get("value") or setting.get("default") or "null"))
    return ChartLimits(release_of(deployment), accepted if isinstance(accepted, dict) else {})
