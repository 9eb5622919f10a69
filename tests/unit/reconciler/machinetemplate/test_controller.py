"""What a template says about its machines, for every spec that may be stored."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.machinetemplate.controller import capacity, changes, node_info

pytestmark = pytest.mark.unit


def host(architecture: str | None = None) -> Obj:
    return {"metadata": {"labels": {} if architecture is None else {"kubernetes.io/arch": architecture}}}


@pytest.mark.parametrize(
    ("volumes", "size"),
    [
        ([{"volumeSize": "10Gi"}, {"volumeSize": "40Gi"}], "10Gi"),
        ([{"volumeSize": "10Gi"}, {"volumeSize": "40Gi", "bootOrder": 1}], "40Gi"),
        ([{"volumeSize": "10Gi", "bootOrder": 2}, {"volumeSize": 1024, "bootOrder": 1}], "1024"),
    ],
)
def test_storage_is_that_of_the_boot_disk(volumes: list[Obj], size: str) -> None:
    found = capacity({"cpu": 2, "memory": "4Gi", "volumes": volumes})
    assert found == {"cpu": "2", "memory": "4Gi", "ephemeral-storage": size}


def test_devices_count_by_the_resource_that_pods_request() -> None:
    devices = [
        {"resourceName": "nvidia.com/A10", "count": 2, "nodeResource": "nvidia.com/gpu"},
        {"resourceName": "a.b/c"},
    ]
    assert capacity({"cpu": 2, "devices": devices}) == {"cpu": "2", "nvidia.com/gpu": "2"}


@pytest.mark.parametrize("spec", [{}, {"cpu": 0, "memory": "", "volumes": []}, {"memory": "much", "volumes": [{}]}])
def test_what_is_not_a_quantity_is_left_out(spec: Obj) -> None:
    assert capacity(spec) == {}


@pytest.mark.parametrize(
    ("hosts", "architecture"),
    [
        ([], None),
        ([host("amd64"), host("amd64")], "amd64"),
        ([host("amd64"), host("arm64")], None),
        ([host("amd64"), host()], None),
        ([host("abacus")], None),
    ],
)
def test_architecture_is_that_of_all_hosts(hosts: list[Obj], architecture: str | None) -> None:
    assert node_info(hosts).get("architecture") == architecture
    assert node_info(hosts)["operatingSystem"] == "linux"


def merged(status: Obj, patch: Obj) -> Obj:
    """JSON merge patch, two levels deep."""
    result: dict[str, Any] = dict(status)
    for field, value in patch.items():
        both = {**result.get(field, {}), **value}
        result[field] = {name: entry for name, entry in both.items() if entry is not None}
    return result


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"capacity": {"cpu": "2"}},
        {"capacity": {"cpu": "4", "pods": "1"}, "nodeInfo": {"architecture": "arm64", "operatingSystem": "linux"}},
    ],
)
def test_patch_makes_the_status_what_it_should_be_and_then_there_is_none(status: Obj) -> None:
    wanted = {"capacity": {"cpu": "4"}, "nodeInfo": {"operatingSystem": "linux"}}
    done = merged(status, changes(status, wanted["capacity"], wanted["nodeInfo"]))
    assert done == wanted
    assert changes(done, wanted["capacity"], wanted["nodeInfo"]) == {}
