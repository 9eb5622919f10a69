"""The release of Harvester by its Deployment, and whether VMs can grow there."""

import pytest

from caphv.api.object import Obj
from caphv.api.release import hotplug_obstacle, release_of

pytestmark = pytest.mark.unit

AMD64 = {"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}}
ARM64 = {"metadata": {"labels": {"kubernetes.io/arch": "arm64"}}}


def deployment(image: str) -> Obj:
    return {"spec": {"template": {"spec": {"containers": [{"name": "apiserver", "image": image}]}}}}


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("rancher/harvester:v1.8.2", (1, 8)),
        ("registry.example.com:5000/rancher/harvester:v1.10.0-rc1", (1, 10)),
        ("rancher/harvester:v1.7", (1, 7)),
        ("rancher/harvester:master-head", None),
        ("rancher/harvester-webhook:v1.8.2", None),
    ],
)
def test_release_is_that_of_the_image(image: str, release: tuple[int, int] | None) -> None:
    assert release_of(deployment(image)) == release


@pytest.mark.parametrize(
    ("image", "hosts", "obstacle"),
    [
        ("rancher/harvester:v1.7.0", [AMD64, AMD64], ""),
        ("rancher/harvester:v1.9.1", [AMD64], ""),
        ("rancher/harvester:v1.6.1", [AMD64], "Harvester 1.6 does not support it, 1.7 and later do"),
        ("rancher/harvester:master-head", [AMD64], "the release of Harvester is unknown"),
        ("rancher/harvester:v1.8.2", [AMD64, ARM64], "hosts are arm64, and only amd64 supports it"),
    ],
)
def test_obstacle_of_growth(image: str, hosts: list[Obj], obstacle: str) -> None:
    assert hotplug_obstacle(deployment(image), hosts) == obstacle


def test_without_a_deployment_the_release_is_unknown() -> None:
    assert hotplug_obstacle(None, [AMD64]) == "the release of Harvester is unknown"
