"""Which release of a program runs, by what the management cluster shows of it."""

from __future__ import annotations

import pytest

from caphv.api.supported import release_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("component", "image", "release"),
    [
        ("fleet", "registry.example.com/rancher/fleet:v0.16.1", "v0.16.1"),
        ("fleet", "registry.example.com/rancher/fleet-agent:v0.16.1", ""),
        ("caapf", "registry.example.com/rancher/cluster-api-addon-provider-fleet:v0.14.0", "v0.14.0"),
        ("turtles", "registry.example.com:5000/rancher/turtles:v0.28.0", "v0.28.0"),
        ("turtles", "registry.example.com/rancher/turtles@sha256:1", ""),
    ],
)
def test_a_release_is_read_from_the_image_of_its_program(component: str, image: str, release: str) -> None:
    deployment = {"spec": {"template": {"spec": {"containers": [{"image": "a/b:v1.0.0"}, {"image": image}]}}}}
    assert release_of(component, deployment) == release
    assert release_of(component, None) == ""
