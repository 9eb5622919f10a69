"""What decides which charts fit a Harvester."""

from __future__ import annotations

from typing import cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from operations.read.chartlimits import ChartLimits, read_chart_limits
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

RANGES = {"harvester-cloud-provider": ">=0.0.1 <0.3.0"}


def deployment() -> Obj:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "harvester-system", "name": "harvester"},
        "spec": {"template": {"spec": {"containers": [{"image": "rancher/harvester:v1.8.1"}]}}},
    }


def setting(**fields: str) -> Obj:
    metadata = {"name": "harvester-csi-ccm-versions"}
    return {"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": metadata, **fields}


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({"default": '{"harvester-cloud-provider":">=0.0.1 <0.3.0"}'}, RANGES),
        ({"value": '{"harvester-cloud-provider":">=0.0.1 <0.3.0"}', "default": "{}"}, RANGES),
        ({"value": "{"}, {}),
        ({"value": "[]"}, {}),
        ({}, {}),
    ],
)
async def test_the_value_of_the_setting_comes_before_its_default(fields: dict[str, str], accepted: Obj) -> None:
    server = MemoryServer(deployment(), setting(**fields))
    assert await read_chart_limits(cast("ApiClient", server)) == ChartLimits((1, 8), accepted)


async def test_what_may_not_be_read_is_unknown() -> None:
    server = MemoryServer(deployment(), setting(value="{}"))
    server.errors["list Deployment"] = Forbidden(403, "Forbidden", "cannot list")
    server.errors["get Setting"] = Forbidden(403, "Forbidden", "cannot get")
    assert await read_chart_limits(cast("ApiClient", server)) == ChartLimits()
