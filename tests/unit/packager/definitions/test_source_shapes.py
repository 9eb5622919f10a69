"""A definition that is not read, because lists or other keys surround it, is no removed definition."""

from __future__ import annotations

import textwrap

import pytest

from caphv.api.object import Key
from packager.definitions.source import Reader, Source

pytestmark = pytest.mark.unit

DEFINITION = "apiVersion: caphv.io/v1alpha1\nkind: ClusterDefinition\nmetadata: {name: demo, namespace: team-a}\n"
CLUSTER = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: demo, namespace: team-a}\n"
POOL = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: MachineDeployment\nmetadata: {name: demo, namespace: team-a}\n"


def read(text: str) -> Source:
    return Reader(lambda _: []).read({"a.yaml": text.encode()})


def below(key: str, text: str) -> str:
    return f"{key}\n{textwrap.indent(text, '  ')}"


def entry(text: str) -> str:
    return f"- {textwrap.indent(text, '  ')[2:]}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (entry(DEFINITION), "a.yaml:1: is a list of objects"),
        (entry(POOL), "a.yaml:1: is a list of objects"),
        ('[{"apiVersion": "caphv.io/v1alpha1", "kind": "ClusterDefinition"}]', "a.yaml:1: is a list of objects"),
        (f"{POOL}---\n{entry(CLUSTER)}", "a.yaml:5: is a list of objects"),
        (entry(entry(DEFINITION)), "a.yaml:1: has a ClusterDefinition inside"),
        (below("demo:", DEFINITION), "a.yaml:1: has a ClusterDefinition inside"),
        (below("demo:", CLUSTER), "a.yaml:1: has a Cluster inside"),
        (below("clusters:", entry(CLUSTER)), "a.yaml:2: has a Cluster inside"),
        (below("metadata: {}\nspec:", DEFINITION), "a.yaml:2: has a ClusterDefinition inside"),
        (below("kind: List\nitems:", DEFINITION), "a.yaml:2: has a ClusterDefinition inside"),
        (below("kind: List\nitems:", entry(entry(DEFINITION))), "a.yaml:3: has a ClusterDefinition inside"),
        (below("kind: List\nitems:", entry(below("demo:", CLUSTER))), "a.yaml:3: has a Cluster inside"),
    ],
)
def test_objects_that_are_not_read_are_reported(text: str, problem: str) -> None:
    source = read(text)
    assert not source.complete
    (reported,) = source.problems
    assert str(reported).startswith(problem)
    assert source.clusters == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "- hosts: all\n  tasks: [{debug: {msg: hello}}]\n",
        "image: {repository: nginx}\n",
        below("extraObjects:", entry("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n")),
        below("database:", "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\n"),
    ],
)
def test_files_of_other_tools_are_left_alone(text: str) -> None:
    source = read(text)
    assert source.complete
    assert source.problems == []


def test_a_list_of_kubernetes_is_read() -> None:
    source = read(below("apiVersion: v1\nkind: List\nitems:", entry(DEFINITION)))
    assert source.complete
    assert [cluster.key for cluster in source.clusters] == [Key("team-a", "demo")]


def test_an_owner_inside_an_object_is_no_second_cluster() -> None:
    owner = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nname: demo\n"
    pool = POOL.replace("metadata: {name: demo, namespace: team-a}\n", "")
    owned = pool + below("metadata:", "name: demo\nnamespace: team-a\n" + below("ownerReferences:", entry(owner)))
    source = read(f"{CLUSTER}---\n{owned}")
    assert source.complete
    assert [cluster.key for cluster in source.clusters] == [Key("team-a", "demo")]


CLASS = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: ClusterClass\nmetadata: {name: own, namespace: team-a}\n"


def test_a_class_that_two_files_define_is_left_out_and_reported_in_both() -> None:
    files = {name: f"{CLASS}spec: {{file: {name}}}\n".encode() for name in ("a.yaml", "b.yaml")}
    source = Reader(lambda _: []).read(files)
    assert source.groups == {}
    assert source.invalid_groups == {Key("team-a", "own")}
    # Without the class, nothing tells which clusters have bundles.
    assert not source.complete
    assert [(problem.file, problem.line) for problem in source.problems] == [("a.yaml", 3), ("b.yaml", 3)]
    assert "ClusterClass is also defined in b.yaml: remove one of them" in source.problems[0].message

    alone = Reader(lambda _: []).read({"a.yaml": files["a.yaml"]})
    assert alone.complete
    assert list(alone.groups) == [Key("team-a", "own")]


def test_classes_of_one_name_in_two_namespaces_are_two() -> None:
    files = {"a.yaml": CLASS.encode(), "b.yaml": CLASS.replace("team-a", "team-b").encode()}
    source = Reader(lambda _: []).read(files)
    assert source.complete
    assert sorted(source.groups) == [Key("team-a", "own"), Key("team-b", "own")]
