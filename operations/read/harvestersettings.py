"""Read what a Harvester says about itself: its settings, and the Deployment with its release."""

from __future__ import annotations

from typing import Any

from caphv.api.object import DEPLOYMENTS, Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.text import TextError, load_json

CHART_VERSIONS = "harvester-csi-ccm-versions"
"""Setting with the versions of charts of guests that Harvester accepts."""

_HARVESTER = Key("harvester-system", "harvester")


def value_of(setting: Obj) -> Any:
    """Return the parsed value of a setting, or its default; None if it cannot be parsed."""
    try:
        return load_json(str(setting.get("value") or setting.get("default") or "null"))
    except TextError:
        return None


async def read_deployment(client: ApiClient) -> Obj | None:
    """Read Deployment `harvester-system/harvester`; return None if it does not exist.

    Raises `ApiError`, `Unreachable`.
    """
    # The role of the provider allows it to list this one name, but not to get it.
    answer = await client.list(
        DEPLOYMENTS, _HARVESTER.namespace, field_selector=f"metadata.name={_HARVESTER.name}"
    )
    return next(iter(answer["items"] or ()), None)
