"""Checks of a cluster's bundles that need no chart: manifests, references, kinds, immutable fields, values."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from packager.checks import immutable, kinds
from packager.checks.check import Checker
from packager.checks.contents import ChartRef, bundles_of
from packager.checks.podfamilies import check_pod_families
from packager.checks.references import is_built_in, references
from packager.checks.values import copy_without, unknown_values
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import Tree
from tests.support.edits import edited_objects
from tests.support.packager.examples import KUBEADM, cluster

pytestmark = pytest.mark.unit

Obj = dict[str, Any]
CLASS = {"name": "fast", "hostStorageClass": "nvme"}


def rendered(addons: Obj | None = None, **more: Any) -> Rendered:
    result = Renderer().render_one(cluster("a", addons, namespace="team", **more), {})
    assert result.ok, result.findings
    return result


def checked(now: Rendered, before: Tree | None = None, tree: Tree | None = None) -> list[tuple[str, str, str, bool]]:
    assert now.settings
    found = Checker(None, None).check(tree or now.tree, now.settings, before or {})
    return [
        (one.place.split("/", 3)[3], one.finding.field, one.finding.rule, one.finding.advice) for one in found.findings
    ]


@pytest.mark.parametrize("spec", [{}, {"topology": {"version": "v1.36.1+k3s1"}}, KUBEADM])
def test_shipped_bundles_are_clean(spec: Obj) -> None:
    found = rendered({"csi": {"storageClasses": [CLASS]}, "ccm": {"loadBalancer": {"ipam": "pool"}}}, spec=spec)
    assert checked(found) == []
    assert checked(found, before=found.tree) == []


def test_changes_of_a_storage_class_are_refused_unless_it_gets_another_name() -> None:
    before = rendered({"csi": {"storageClasses": [CLASS]}}).tree
    changed = {"hostStorageClass": "hdd", "reclaimPolicy": "Retain", "allowVolumeExpansion": False, "default": True}
    now = rendered({"csi": {"storageClasses": [CLASS | changed]}})
    file = "storage-classes/storageclasses.yaml"
    assert [row for row in checked(now, before) if row[0] == file] == [
        (file, "parameters", "immutable-field", False),
        (file, "reclaimPolicy", "immutable-field", False),
    ]
    renamed = rendered({"csi": {"storageClasses": [CLASS | changed | {"name": "slow"}]}})
    assert not [row for row in checked(renamed, before) if row[0] == file]


def test_a_kind_that_the_version_does_not_serve() -> None:
    found = rendered()
    path = "clusters/team/a/extra/policy.yaml"
    extra = {
        "clusters/team/a/extra/fleet.yaml": b"name: extra\ndependsOn: [{name: nothing}]\n",
        path: b"apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: one}\n",
    }
    assert checked(found, tree={**found.tree, **extra}) == [
        ("extra/fleet.yaml", "dependsOn[0].name", "reference", False),
        ("extra/policy.yaml", "kind", "kind-served", False),
    ]


def test_charts_are_found_in_all_their_forms() -> None:
    tree = {
        "a/fleet.yaml": b"name: a\nhelm: {releaseName: r, repo: 'oci://example.com/charts/one', version: 1.0.0}\n",
        "b/fleet.yaml": b"name: b\nhelm: {releaseName: r, chart: 'oci://example.com/charts/two', version: 1.0.0}\n",
        "c/fleet.yaml": b"name: c\nhelm: {releaseName: r, chart: three, repo: 'https://example.com', version: 1.0.0}\n",
        "d/fleet.yaml": b"name: d\n",
        "d/x.yaml": b"apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: x, namespace: kube-system}\n"
        b"spec: {chart: four, repo: 'https://example.com', version: 1.0.0, targetNamespace: ns, "
        b"valuesContent: 'a: 1'}\n"
        b"---\napiVersion: helm.cattle.io/v1\nkind: HelmChartConfig\nmetadata: {name: rke2-canal}\n",
    }
    releases = [release for bundle in bundles_of(tree) for release in bundle.releases]
    assert [release.chart for release in releases] == [
        ChartRef("one", "oci://example.com/charts", "1.0.0"),
        ChartRef("two", "oci://example.com/charts", "1.0.0"),
        ChartRef("three", "https://example.com", "1.0.0"),
        ChartRef("four", "https://example.com", "1.0.0"),
        ChartRef("rke2-canal", "", ""),
    ]
    assert (releases[3].values, releases[3].namespace) == ({"a": 1}, "ns")


def test_a_file_that_is_not_yaml_is_named() -> None:
    with pytest.raises(ValueError, match=r"a/x\.yaml is not valid YAML"):
        bundles_of({"a/fleet.yaml": b"name: a", "a/x.yaml": b"a: [b"})


def test_references_of_all_objects() -> None:
    pod = {
        "serviceAccountName": "account",
        "priorityClassName": "system-node-critical",
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {"configMap": {"name": "settings"}},
            {"secret": {"secretName": "maybe", "optional": True}},
            {"projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "token"}}]}},
            {"persistentVolumeClaim": {"claimName": "data"}},
        ],
        "containers": [
            {"env": [{"valueFrom": {"secretKeyRef": {"name": "key"}}}], "envFrom": [{"configMapRef": {"name": "env"}}]}
        ],
    }
    objects: list[Obj] = [
        {"kind": "Deployment", "metadata": {"namespace": "ns"}, "spec": {"template": {"spec": pod}}},
        {
            "kind": "RoleBinding",
            "roleRef": {"kind": "Role", "name": "role"},
            "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": "there"}, {"kind": "User"}],
        },
        {"kind": "ClusterRoleBinding", "roleRef": {"kind": "ClusterRole", "name": "system:node"}, "subjects": None},
        {
            "kind": "ValidatingWebhookConfiguration",
            "webhooks": [{"clientConfig": {"service": {"name": "hook", "namespace": "x"}}}],
        },
        {"kind": "APIService", "spec": {"service": {"name": "api", "namespace": "x"}}},
        {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "policy"}},
        {"kind": "Pod", "spec": "hostile"},
    ]
    found = [one for obj in objects for one in references(obj, "release") if not is_built_in(one)]
    assert [(one.kind, one.namespace, one.name) for one in found] == [
        ("ServiceAccount", "ns", "account"),
        ("Secret", "ns", "pull"),
        ("ConfigMap", "ns", "settings"),
        ("Secret", "ns", "token"),
        ("PersistentVolumeClaim", "ns", "data"),
        ("Secret", "ns", "key"),
        ("ConfigMap", "ns", "env"),
        ("Role", "release", "role"),
        ("ServiceAccount", "there", "other"),
        ("Service", "x", "hook"),
        ("Service", "x", "api"),
        ("MutatingAdmissionPolicy", "", "policy"),
    ]


def test_an_unset_field_equals_its_default() -> None:
    def classes(**fields: Any) -> dict[immutable.Identity, Obj]:
        obj = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "a"}, **fields}
        return {immutable.identity(obj, "x"): obj}

    assert not list(immutable.changes(classes(), classes(reclaimPolicy="Delete", parameters={})))
    ((_, finding),) = immutable.changes(classes(volumeBindingMode="WaitForFirstConsumer"), classes())
    assert finding.field == "volumeBindingMode"


def test_frozen_objects_and_hooks() -> None:
    def config(data: Obj, immutable_: bool, **annotations: str) -> dict[immutable.Identity, Obj]:
        metadata = {"name": "a", "annotations": annotations}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "immutable": immutable_}
        return {immutable.identity(obj, "x"): obj}

    assert list(immutable.changes(config({"a": "1"}, True), config({"a": "2"}, True)))
    assert not list(immutable.changes(config({"a": "1"}, False), config({"a": "2"}, True)))
    hook = {"helm.sh/hook": "pre-install"}
    assert not list(immutable.changes(config({"a": "1"}, True), config({"a": "2"}, True, **hook)))


def test_kinds_by_version_and_distribution() -> None:
    policy = ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy")
    snapshot = ("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass")
    assert policy in kinds.served_kinds("rke2", "v1.36.1+rke2r1")
    assert policy not in kinds.served_kinds("rke2", "v1.35.9+rke2r1")
    assert policy in kinds.served_kinds("rke2", "")
    distributions = ("rke2", "k3s", "kubeadm", "talos")
    assert [snapshot in kinds.served_kinds(name, "") for name in distributions] == [True, *[False] * 3]


def test_values_that_have_no_effect_are_unknown() -> None:
    documented = {"replicasCount": 1, "image": {"tag": "v1"}, "resources": {}}
    values = {
        "replicas": 3,
        "image": {"tag": "v2", "tagg": "v2"},
        "resources": {"limits": {"cpu": 1}},
        "undocumented": True,
    }

    def render(one: Obj) -> Any:
        return [one.get("replicasCount"), one.get("image", {}).get("tag"), one.get("undocumented")]

    found = unknown_values(values, documented, render, "chart x 1.0.0")
    assert [finding.field for finding in found] == ["replicas", "image.tagg"]
    assert "write replicasCount, or remove it" in str(found[0])
    assert "write tag" in str(found[1])


@given(
    st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=9)
)
def test_documented_values_are_never_unknown(values: Any) -> None:
    values = values if isinstance(values, dict) else {"a": values}
    assert unknown_values(values, values, lambda _: None, "x") == []
    assert copy_without(values, [(key,) for key in values]) == {}


@pytest.mark.parametrize(
    ("pods", "data", "wanted"),
    [
        (["10.42.0.0/16"], {"enable-ipv4": "true", "enable-ipv6": "false"}, []),
        (["10.42.0.0/16"], {"enable-ipv4": "false", "enable-ipv6": "true"}, [("data.enable-ipv4", False)]),
        (["fd00:1::/56"], {"enable-ipv4": "false", "enable-ipv6": "true"}, []),
        (["10.42.0.0/16", "fd00:1::/56"], {"enable-ipv4": "true"}, []),
        (["10.42.0.0/16", "fd00:1::/56"], {"enable-ipv6": "false"}, [("data.enable-ipv6", True)]),
        (
            ["10.42.0.0/16", "fd00:1::/56"],
            {"enable-ipv4": "false", "enable-ipv6": "false"},
            [("data.enable-ipv4", False), ("data.enable-ipv6", False)],
        ),
    ],
)
def test_families_that_cilium_turns_off(pods: list[str], data: Obj, wanted: list[tuple[str, bool]]) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cilium-config"}, "data": data}
    assert [(one.field, one.advice) for one in check_pod_families(config, pods)] == wanted
    other = {**config, "metadata": {"name": "another"}}
    assert list(check_pod_families(other, pods)) == []


FLEET = {
    "name": "extra",
    "defaultNamespace": "kube-system",
    "dependsOn": [{"name": "cni"}],
    "helm": {"chart": "one", "repo": "https://example.com", "version": "1.0.0", "values": {"a": {"b": 1}}},
}
POD = {
    "serviceAccountName": "a",
    "imagePullSecrets": [{"name": "pull"}],
    "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
    "containers": [{"name": "c", "image": "i", "env": [{"name": "e", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}],
}
MANIFESTS = [
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": POD}}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "r", "annotations": {"helm.sh/hook": "x"}},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "a"}],
    },
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "names": {"kind": "Thing"}, "versions": [{"name": "v1", "served": True}]},
    },
    {
        "apiVersion": "helm.cattle.io/v1",
        "kind": "HelmChart",
        "metadata": {"name": "h"},
        "spec": {"chart": "one", "repo": "https://example.com", "version": "1.0.0", "valuesContent": "a: 1"},
    },
]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_any_field_of_a_file_that_was_edited_or_of_a_chart_may_hold_anything(manifest: Obj) -> None:
    settings = rendered().settings
    assert settings
    checker = Checker(None, None)
    top = "clusters/team/a/extra"
    valid = {f"{top}/fleet.yaml": yaml.dump(FLEET).encode(), f"{top}/x.yaml": yaml.dump(manifest).encode()}
    for fleet in edited_objects(FLEET):
        changed = {**valid, f"{top}/fleet.yaml": yaml.dump(fleet).encode()}
        checker.check(changed, settings, valid)
        checker.check(valid, settings, changed)
    for obj in edited_objects(manifest):
        changed = {**valid, f"{top}/x.yaml": yaml.dump(obj).encode()}
        checker.check(changed, settings, valid)
        checker.check(valid, settings, changed)
