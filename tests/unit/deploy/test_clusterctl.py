"""The files of a release follow clusterctl's contract for providers.

The rules are those of cluster-api v1.13.6, docs/book/src/developer/providers/contracts/clusterctl.md.
docs/reference/contract.md lists them all, with these and other tests.
"""

import re
from functools import cache

import pytest
import yaml

from caphv.api.object import Obj
from tools.release import components
from tools.release.__main__ import contents

pytestmark = pytest.mark.unit

# What `clusterctl generate cluster` sets from its arguments.
COMMON = {"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION", "CONTROL_PLANE_MACHINE_COUNT", "WORKER_MACHINE_COUNT"}
CLUSTER_SCOPED = {
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
}
VARIABLE = re.compile(r"\$\{\s*(\w+)(:=|=|:-)?")


@cache
def files() -> dict[str, bytes]:
    return contents()


@cache
def objects(name: str) -> list[Obj]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [obj for obj in yaml.load_all(files()[name], loader) if obj]


def templates() -> list[str]:
    return sorted(name for name in files() if name.startswith("cluster-template"))


def classes() -> list[str]:
    return sorted(name for name in files() if name.startswith("clusterclass-"))


def test_repository_has_metadata_components_templates_and_classes_by_their_names() -> None:
    assert {"metadata.yaml", "infrastructure-components.yaml", "cluster-template.yaml"} <= files().keys()
    assert [name for name in templates() if not re.fullmatch(r"cluster-template(-[a-z0-9-]+)?\.yaml", name)] == []
    for name in classes():
        (found,) = [obj["metadata"]["name"] for obj in objects(name) if obj["kind"] == "ClusterClass"]
        assert name == f"clusterclass-{found}.yaml"
    assert classes()


def test_metadata_passes_the_validation_of_clusterctl() -> None:
    (metadata,) = objects("metadata.yaml")
    assert (metadata["apiVersion"], metadata["kind"]) == ("clusterctl.cluster.x-k8s.io/v1alpha3", "Metadata")
    assert metadata["releaseSeries"]
    assert all(set(series) == {"major", "minor", "contract"} for series in metadata["releaseSeries"])


def test_components_have_one_namespace_and_all_else_is_in_it_or_in_none() -> None:
    found = objects("infrastructure-components.yaml")
    (namespace,) = [obj["metadata"]["name"] for obj in found if obj["kind"] == "Namespace"]
    namespaces = {obj["kind"]: obj["metadata"].get("namespace") for obj in found if obj["kind"] not in CLUSTER_SCOPED}
    assert set(namespaces.values()) == {namespace}
    assert [obj["kind"] for obj in found if obj["kind"] in CLUSTER_SCOPED and "namespace" in obj["metadata"]] == []


def test_the_controller_is_a_deployment_whose_container_is_called_manager_and_watches_all_namespaces() -> None:
    (deployment,) = [obj for obj in objects("infrastructure-components.yaml") if obj["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "manager"
    assert [argument for argument in container["args"] if argument.startswith("--namespace")] == []
    # A canonical name has registry, repository and tag or digest.
    assert re.fullmatch(r"[\w.-]+\.[\w-]+/[\w./-]+(:v[\w.-]+)?(@sha256:[0-9a-f]{64})?", container["image"])


def test_variables_of_the_components_have_the_prefix_of_the_provider_and_defaults() -> None:
    found = VARIABLE.findall(files()["infrastructure-components.yaml"].decode())
    assert {name for name, _ in found} == set(components.VARIABLES.values())
    assert all(name.startswith("CAPHV_") and default for name, default in found)


@pytest.mark.parametrize("name", templates())
def test_a_template_uses_the_common_variables_and_one_namespace(name: str) -> None:
    assert {variable for variable, _ in VARIABLE.findall(files()[name].decode())} >= COMMON
    assert {obj["metadata"]["namespace"] for obj in objects(name)} == {"${NAMESPACE}"}
    assert "Namespace" not in {obj["kind"] for obj in objects(name)}


@pytest.mark.parametrize("name", classes())
def test_a_class_has_neither_variables_of_clusterctl_nor_namespaces(name: str) -> None:
    assert VARIABLE.findall(files()[name].decode()) == []
    assert [obj["metadata"]["name"] for obj in objects(name) if "namespace" in obj["metadata"]] == []
    (found,) = [obj["spec"] for obj in objects(name) if obj["kind"] == "ClusterClass"]
    assert "namespace" not in str(references(found))


def references(node: object) -> list[Obj]:
    """What a class refers to with `templateRef`."""
    if isinstance(node, dict):
        own = [node["templateRef"]] if "templateRef" in node else []
        return own + [found for child in node.values() for found in references(child)]
    return [found for child in node for found in references(child)] if isinstance(node, list) else []


def test_no_object_belongs_to_two_classes() -> None:
    owners: dict[tuple[str, str], list[str]] = {}
    for name in classes():
        for obj in objects(name):
            owners.setdefault((obj["kind"], obj["metadata"]["name"]), []).append(name)
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}
