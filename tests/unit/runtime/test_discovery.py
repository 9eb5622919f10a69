"""Which version of a kind is used where the kinds of a group have different ones."""

from __future__ import annotations

from typing import cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import NotFound
from operations.backup.reading import kinds_to_copy

pytestmark = pytest.mark.unit

CORE, CONTROL_PLANES = "cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
# Talos' provider has v1alpha3 only, RKE2's has two versions.
SERVED = {
    CORE: {"v1beta2": ["Cluster"]},
    CONTROL_PLANES: {
        "v1beta2": ["RKE2ControlPlane"],
        "v1beta1": ["RKE2ControlPlane"],
        "v1alpha3": ["TalosControlPlane"],
    },
}


class Server:
    """Answers discovery only."""

    server = "here"

    async def request(self, _method: str, path: str) -> Obj:
        match path.removeprefix("/apis").split("/")[1:]:
            case []:
                return {"groups": [group(name) for name in SERVED]}
            case [name]:
                return group(name)
            case [name, version]:
                return {"resources": [resource(kind) for kind in SERVED[name][version]]}
        raise AssertionError(path)


def group(name: str) -> Obj:
    versions = [{"version": version} for version in SERVED[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def resource(kind: str) -> Obj:
    return {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["create", "list", "get"]}


CLIENT = cast(ApiClient, Server())


@pytest.mark.parametrize(("kind", "version"), [("RKE2ControlPlane", "v1beta2"), ("TalosControlPlane", "v1alpha3")])
async def test_kind_is_found_in_the_preferred_version_or_in_another(kind: str, version: str) -> None:
    found = await find_resource(CLIENT, CONTROL_PLANES, kind)
    assert (found.version, found.plural) == (version, f"{kind.lower()}s")


async def test_kind_that_no_version_has_is_not_found() -> None:
    with pytest.raises(NotFound, match="has no kind KThreesControlPlane"):
        await find_resource(CLIENT, CONTROL_PLANES, "KThreesControlPlane")


async def test_a_backup_has_kinds_of_all_versions() -> None:
    found = await kinds_to_copy(CLIENT)
    assert found[CONTROL_PLANES, "RKE2ControlPlane"].version == "v1beta2"
    assert found[CONTROL_PLANES, "TalosControlPlane"].version == "v1alpha3"


async def test_objects_are_restored_in_their_version_if_it_is_served() -> None:
    wanted = {(CONTROL_PLANES, "RKE2ControlPlane"): "v1beta1", (CONTROL_PLANES, "TalosControlPlane"): "v1beta2"}
    found = await kinds_to_copy(CLIENT, wanted)
    assert found[CONTROL_PLANES, "RKE2ControlPlane"].version == "v1beta1"
    assert found[CONTROL_PLANES, "TalosControlPlane"].version == "v1alpha3"
