"""The sandbox's CRDs for kubeadm and the templates of its ClusterClass fit the real CRDs in Cluster API's module."""

from __future__ import annotations

import pytest
import yaml

from caphv.api.object import Obj
from sandbox.capi import crds
from sandbox.processes import binaries, gobuild
from tests.support.clusterclasses import problems, templates
from tests.support.openapi import fields, object_schema

pytestmark = pytest.mark.integration

VERSION = "v1beta2"
OURS = {
    crd["spec"]["names"]["kind"]: crd
    for crd in crds.custom_resource_definitions()
    if crd["spec"]["names"]["kind"].startswith("Kubeadm")
}


@pytest.fixture(scope="module")
def real() -> dict[str, Obj]:
    """The CRDs by kind."""
    folder = gobuild.module_folder(binaries.CLUSTER_API_CORE, binaries.cache_folder(), binaries.plain_report())
    files = sorted(folder.glob("*/kubeadm/config/crd/bases/*.yaml"))
    found = [yaml.load(file.read_text(), yaml.CSafeLoader) for file in files]
    return {crd["spec"]["names"]["kind"]: crd for crd in found}


@pytest.mark.parametrize("kind", sorted(OURS))
def test_every_property_is_in_the_real_one_with_its_type(kind: str, real: dict[str, Obj]) -> None:
    theirs = dict(fields(object_schema(real[kind], VERSION)))
    for path, schema in fields(object_schema(OURS[kind], VERSION)):
        assert path in theirs, path
        assert schema.get("type") == theirs[path].get("type"), path


def test_templates_of_the_class_fit_the_real_ones(real: dict[str, Obj]) -> None:
    found = [obj for (_, kind), obj in templates("harvester-kubeadm") if kind in real]
    assert {obj["kind"] for obj in found} == {"KubeadmControlPlaneTemplate", "KubeadmConfigTemplate"}
    assert [problem for obj in found for problem in problems(obj, real[obj["kind"]])] == []
