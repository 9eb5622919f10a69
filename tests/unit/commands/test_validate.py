"""`caphv validate`: what it says, where it points, how it ends."""

import copy
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from caphv import data
from caphv.api.names import API_VERSION
from caphv.validation.yaml.loader import MAX_FILE_BYTES
from commands.main import cli
from commands.output import validate
from commands.schema import combine_schemas
from commands.validate import examine
from tests.support.packager.definitions import k3s

pytestmark = pytest.mark.unit

CLUSTER = """\
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: HarvesterCluster
metadata:
  name: demo
  namespace: clusters
spec:
  targetNamespace: demo
  identitySecret: {name: harvester-identity, namespace: clusters}
  loadBalancerConfig:
    ipamType: dhcp
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: harvester-identity, namespace: clusters}
stringData:
  kubeconfig: geheim
"""


def call(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(cli, ["validate", *arguments], input=stdin, prog_name="caphv")


def findings(text: str | bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(call("-o", "json", "-", stdin=text).stdout)["items"]
    return found


def example(kind: str) -> dict[str, Any]:
    schema = json.loads((data.folder("schemas") / f"{kind.lower()}.json").read_text(encoding="utf-8"))
    return copy.deepcopy(schema["examples"][0])


def test_valid_objects() -> None:
    result = call("-", stdin=f"{CLUSTER}---\n{SECRET}")
    assert (result.exit_code, result.output) == (0, "2 objects in 1 file, 1 of them of other kinds: valid\n")


@pytest.mark.parametrize("kind", ["HarvesterCluster", "HarvesterMachine", "HarvesterMachineTemplate"])
def test_examples_of_the_schemas_are_valid(kind: str) -> None:
    assert [found for found in findings(json.dumps(example(kind))) if found["severity"] == "error"] == []


@pytest.mark.parametrize(
    ("old", "new", "field", "line", "column"),
    [
        ("ipamType: dhcp", "ipamType: dcp", "spec.loadBalancerConfig.ipamType", 10, 15),
        ("  targetNamespace: demo\n", "", "spec.targetNamespace", 6, 1),
        ("targetNamespace: demo", "targetNamespace: on", "spec.targetNamespace", 7, 20),
        ("    ipamType: dhcp", "    ipamType: dhcp\n    zone: a", "spec.loadBalancerConfig.zone", 11, 5),
        ("v1beta1", "v1beta9", "apiVersion", 1, 13),
        ("kind: HarvesterCluster", "kind: HarvesterClster", "kind", 2, 7),
        ("  name: demo\n", "  name: demo\n  labels: {tier: 1}\n", "metadata.labels.tier", 5, 18),
        ("  name: demo\n", "  name: Demo\n", "metadata.name", 4, 9),
    ],
)
def test_errors_are_reported_at_their_place(old: str, new: str, field: str, line: int, column: int) -> None:
    text = CLUSTER.replace(old, new)
    found = [(one["field"], one["line"], one["column"]) for one in findings(text) if one["severity"] == "error"]
    assert (field, line, column) in found
    result = call("-", stdin=text)
    assert result.exit_code == 1
    assert f"<stdin>:{line}:{column}: error: {field}: " in result.output
    assert f"  {line} | {text.splitlines()[line - 1]}\n" in result.output


def test_the_caret_points_at_the_column() -> None:
    rows = call("-", stdin=CLUSTER.replace("dhcp", "dcp")).output.splitlines()
    excerpt = next(index for index, row in enumerate(rows) if row.startswith("  10 | "))
    assert rows[excerpt + 1].index("^") == rows[excerpt].index("dcp")


def test_help_says_what_yaml_made_of_a_word() -> None:
    (found,) = [one for one in findings(CLUSTER.replace(": demo\n  id", ": yes\n  id")) if "targetN" in one["message"]]
    assert '"yes", in quotes' in found["help"]


def test_octal_is_reported_for_own_kinds_only() -> None:
    own = json.dumps(example("HarvesterMachine")).replace('"cpu": 4', '"cpu": 010')
    assert "yaml-octal" in [one["rule"] for one in findings(own)]
    assert findings("apiVersion: v1\nkind: Pod\nspec: {mode: 0644}\n") == []


@pytest.mark.parametrize("suffix", ["List", "HarvesterClusterList"])
def test_objects_of_a_list_are_objects(suffix: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": suffix, "items": [yaml.safe_load(CLUSTER)]}, indent=1)
    result = json.loads(call("-o", "json", "-", stdin=text.replace("dhcp", "dcp")).stdout)
    assert result["objects"] == 1
    (found,) = [one for one in result["items"] if one["rule"] == "schema-enum"]
    assert '"dcp"' in text.replace("dhcp", "dcp").splitlines()[found["line"] - 1]
    assert found["object"] == "HarvesterCluster clusters/demo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "this is a list"),
        ("words\n", "this is a single value"),
        ("kind: Secret\n", "apiVersion: Required value"),
        ("apiVersion: v1\n", "kind: Required value"),
        ("apiVersion: v1\nkind: ''\n", "kind: Required value"),
        ("a: b\n", "apiVersion: Required value"),
        ("apiVersion: v1\nkind: List\nitems: [x]\n", "this is a single value"),
    ],
)
def test_what_is_not_an_object_is_reported(text: str, message: str) -> None:
    assert [one["rule"] for one in findings(text)] == ["yaml-document"]
    assert message in findings(text)[0]["message"]


@pytest.mark.parametrize("text", ["", "# words\n", "---\n---\n", "null"])
def test_input_without_an_object_is_an_error(text: str) -> None:
    """What should have written it has failed: `kustomize build | caphv validate -`."""
    assert call("-", stdin=text).exit_code == 1
    (found,) = findings(text)
    assert (found["rule"], found["line"]) == ("yaml-document", 1)


def test_an_empty_file_in_a_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert call(str(tmp_path)).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("  name: demo\n", "  name: demo\n  lables: {a: b}\n", "metadata.lables", 'did you mean "labels"?'),
        ("  name: demo\n", "  name: demo\n  labels: {a/b/c: x}\n", "metadata.labels[a/b/c]", "example.com/tier"),
        (
            "  loadBalancerConfig:",
            "  loadBalancerConfg: {}\n  loadBalancerConfig:",
            "spec.loadBalancerConfg",
            'mean "loadB',
        ),
        ("infrastructure.cluster.x", "infrastucture.cluster.x", "apiVersion", 'did you mean "infrastructure.cluster.'),
    ],
)
def test_what_is_misspelt_is_reported(old: str, new: str, field: str, words: str) -> None:
    found = {one["field"]: one["message"] for one in findings(CLUSTER.replace(old, new))}
    assert words in found[field]


def test_a_misspelt_group_of_cluster_api_is_reported() -> None:
    for group, rules in (("clusters.x-k8s.io", ["api-group"]), ("ipam.cluster.x-k8s.io", []), ("apps", [])):
        text = f"apiVersion: {group}/v1\nkind: Something\nmetadata: {{name: a}}\n"
        assert [one["rule"] for one in findings(text)] == rules


def test_an_object_that_is_being_deleted_is_checked_all_the_same() -> None:
    text = CLUSTER.replace("  name: demo\n", '  name: demo\n  deletionTimestamp: "2026-01-01T00:00:00Z"\n')
    assert (
        findings(text.replace("ipamType: dhcp", "ipamType: static"))[0]["field"] == "spec.loadBalancerConfig.ipamType"
    )


def test_an_identity_that_is_not_among_the_files_is_no_warning() -> None:
    """A Secret does not belong into Git."""
    assert findings(CLUSTER) == []
    near = SECRET.replace("harvester-identity", "harvester-identiti")
    assert [one["rule"] for one in findings(f"{CLUSTER}---\n{near}")] == ["identity-absent"]


def test_variables_of_a_shipped_class_are_checked_without_its_file() -> None:
    cluster = """\
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: demo, namespace: clusters}
spec:
  topology:
    classRef: {name: CLASS}
    version: v1.34.2+rke2r1
    variables:
    - {name: ipPoolRf, value: vm-pool}
"""
    messages = [one["message"] for one in findings(cluster.replace("CLASS", "harvester-rke2"))]
    assert any('no such variable; did you mean "ipPoolRef' in message for message in messages)
    assert findings(cluster.replace("CLASS", "another")) == []


def test_all_errors_of_a_definition_come_in_one_round() -> None:
    obj = example("ClusterDefinition")
    obj["spec"] |= {
        "kubernetesVersion": 1,
        "addresses": None,
        "clusterClass": "harvester-k3s",
        "distribution": "kubeadm",
    }
    rules = {one["rule"] for one in findings(json.dumps(obj))}
    assert {"schema-type", "definition-class"} <= rules


def test_messages_hold_no_regular_expressions() -> None:
    forms = [
        (file.name, found["pattern"])
        for file in sorted(data.folder("schemas").glob("*.json"))
        for found in patterns(json.loads(file.read_text(encoding="utf-8")))
        if "x-caphv-form" not in found
    ]
    assert forms == []


def patterns(node: Any) -> Iterator[dict[str, Any]]:
    """Schemas with a pattern that validators here use."""
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node
        for key, value in node.items():
            if key not in ("x-caphv-strict", "x-caphv-crd"):
                yield from patterns(value)
    elif isinstance(node, list):
        for item in node:
            yield from patterns(item)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "deep" / ".git").mkdir(parents=True)
    (tmp_path / "deep" / "cluster.yml").write_text(CLUSTER)
    (tmp_path / "secret.json").write_text(json.dumps(yaml.safe_load(SECRET)))
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    (tmp_path / "kustomization.yaml").write_text("resources: [x]\n")
    (tmp_path / "notes.txt").write_text("{")
    (tmp_path / "deep" / ".git" / "x.yaml").write_text("{")
    result = call(str(tmp_path), str(tmp_path / "secret.json"))
    assert (result.exit_code, result.output) == (0, "2 objects in 3 files, 1 of them of other kinds: valid\n")


def test_what_cannot_be_read_ends_with_2_and_hides_nothing(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CLUSTER.replace("dhcp", "dcp"))
    (tmp_path / "empty").mkdir()
    result = call(str(wrong), str(tmp_path / "absent.yaml"), str(tmp_path / "empty"))
    assert result.exit_code == 2
    assert "absent.yaml: No such file" in result.stderr
    assert "empty: no file ends in .yaml" in result.stderr
    assert "spec.loadBalancerConfig.ipamType" in result.stdout


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    result = call(str(huge))
    assert result.exit_code == 2
    assert "larger than 16 MiB" in result.stderr


def test_a_large_file_is_announced_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    file = tmp_path / "large.yaml"
    file.write_text("kind: Cluster\n" + "# comment\n" * 300)
    monkeypatch.setattr("commands.validate._LARGE", 1024)
    for stream, announced in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        examine([str(file)])
        assert (f"reading {file}, 2.9 KiB" in stream.getvalue()) is announced


def test_a_definition_is_checked_for_the_release_of_fleet() -> None:
    definition = json.dumps(k3s())

    def rules(*arguments: str) -> set[str]:
        found = json.loads(call("-", "-o", "json", *arguments, stdin=definition).stdout)
        return {finding["rule"] for finding in found["items"]}

    assert "bundles-fleet" not in rules()
    assert "bundles-fleet" in rules("--fleet-version", "v0.15.0")
    refused = call("-", "--fleet-version", "newest", stdin=definition)
    assert (refused.exit_code, "'newest' is not a release of Fleet" in refused.stderr) == (2, True)


def test_warnings_fail_on_request_only() -> None:
    discouraged = CLUSTER.replace("targetNamespace: demo", "targetNamespace: harvester-system")
    assert call("-", stdin=discouraged).exit_code == 0
    assert call("--fail-on", "warning", "-", stdin=discouraged).exit_code == 1


@pytest.mark.parametrize("output", validate.FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        SECRET.replace("kubeconfig: geheim", "kubeconfig: geheim\n  kubeconfig: geheim"),
        SECRET.replace("kubeconfig: geheim", "kubeconfig: geheim: x"),
        f"{CLUSTER}---\n{SECRET.replace('kubeconfig:', 'config:')}",
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(SECRET), {"kind": "x"}]}),
    ],
    ids=["duplicate key", "syntax", "wrong key", "list"],
)
def test_contents_of_secrets_are_never_shown(output: str, text: str) -> None:
    result = call("-o", output, "-", stdin=text)
    assert result.exit_code == 1
    assert "geheim" not in result.output


def test_json_names_what_a_finding_has_to_do_with() -> None:
    found = next(one for one in findings(f"{CLUSTER}---\n{CLUSTER}") if one["rule"] == "defined-twice")
    assert (found["line"], found["related"]["line"]) == (15, 1)
    assert found["related"]["object"] == "HarvesterCluster clusters/demo"


def test_sarif(tmp_path: Path) -> None:
    (tmp_path / "a b.yaml").write_text(
        f"{CLUSTER}---\n{CLUSTER.replace('dhcp', 'dcp').replace('Namespace: demo', 'Namespace: kube-system')}"
    )
    sarif = json.loads(call("-o", "sarif", str(tmp_path), str(tmp_path / "absent.yaml")).stdout)
    (run,) = sarif["runs"]
    assert sarif["version"] == "2.1.0"
    assert run["tool"]["driver"]["name"] == "caphv"
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    levels = set()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        levels.add(result["level"])
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            assert location["physicalLocation"]["artifactLocation"]["uri"] == (tmp_path / "a b.yaml").as_uri()
            assert min(location["physicalLocation"]["region"].values()) >= 1
    assert levels == {"error", "warning"}
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "absent.yaml" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_github_commands_are_one_line_each_and_escaped(tmp_path: Path) -> None:
    (tmp_path / "a,b.yaml").write_text(CLUSTER.replace("dhcp", '"d%\\nc"'))
    rows = call("-o", "github", str(tmp_path)).output.splitlines()
    row = next(row for row in rows if "ipamType" in row)
    assert row.startswith("::error file=")
    assert "a%2Cb.yaml,line=10,col=15,title=schema-enum::" in row
    assert "%25" in row
    assert all(re.match(r"::(error|warning) file=|\d+ objects? in ", row) for row in rows)


def test_terminal_sequences_in_files_are_not_obeyed() -> None:
    text = CLUSTER.replace("    ipamType: dhcp", '    ipamType: dhcp\n    "\\e[31m": a')
    result = call("-", stdin=text)
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_user_data_of_deep_brackets_is_refused_and_ends_nothing() -> None:
    obj = example("HarvesterMachine")
    obj["spec"]["guestConfig"] = {"userData": "a: " + "[" * 30_000 + "]" * 30_000}
    (found,) = findings(json.dumps(obj))
    assert (found["rule"], found["field"]) == ("user-data-format", "spec.guestConfig.userData")
    assert "nested more than 100 levels deep" in found["message"]


def test_variables_of_a_template_are_recognised() -> None:
    assert any("${}" in one.get("help", "") for one in findings(CLUSTER.replace("dhcp", "'${IPAM}'")))


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
def test_no_text_gives_a_traceback(text: bytes) -> None:
    for head in (b"", CLUSTER.encode()):
        result = call("-", stdin=head + text)
        assert result.exit_code in (0, 1)
        assert result.exception is None or isinstance(result.exception, SystemExit)


KINDS = ["Cluster", "ClusterClass", "Machine", "MachineDeployment", "StorageClass", "IPPool", "Secret"]
GROUPS = ["cluster.x-k8s.io", "controlplane.cluster.x-k8s.io", "loadbalancer.harvesterhci.io", "storage.k8s.io", ""]
WORDS = [
    "spec",
    "name",
    "kind",
    "topology",
    "variables",
    "infrastructureRef",
    "clusterNetwork",
    "pods",
    "volumes",
    "value",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["demo", "10.0.0.0/8", "HarvesterCluster", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(KINDS), VALUES, VALUES), max_size=5))
@hypothesis.example([("loadbalancer.harvesterhci.io", "IPPool", None, None)])
def test_no_object_gives_a_traceback(parts: list[tuple[str, str, Any, Any]]) -> None:
    objects = [
        {"apiVersion": f"{group}/v1beta1" if group else "v1", "kind": kind, "metadata": metadata, "spec": spec}
        for group, kind, metadata, spec in parts
    ]
    result = call("-", stdin="\n---\n".join(json.dumps(obj) for obj in [yaml.safe_load(CLUSTER), *objects]))
    assert result.exit_code in (0, 1)
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("kind", ["HarvesterCluster", "HarvesterMachine", "HarvesterMachineTemplate"])
def test_the_schema_for_editors_accepts_examples_and_refuses_unknown_fields(kind: str) -> None:
    schema = json.loads(CliRunner().invoke(cli, ["schema", "print"]).output)
    Draft7Validator.check_schema(schema)
    obj = example(kind)
    assert Draft7Validator(schema).is_valid(obj)
    assert not Draft7Validator(schema).is_valid(obj | {"spec": obj["spec"] | {"zone": "a"}})
    assert not Draft7Validator(schema).is_valid(obj | {"spec": 1})
    assert Draft7Validator(schema).is_valid({"apiVersion": "v1", "kind": "ConfigMap", "data": 1})


def test_the_schema_for_editors_needs_no_network() -> None:
    assert "$ref" not in json.dumps(combine_schemas())
    assert API_VERSION in json.dumps(combine_schemas())


def test_schema_path_leads_to_a_file_a_kind() -> None:
    folder = Path(CliRunner().invoke(cli, ["schema", "path"]).output.strip())
    assert (folder / "harvestermachine.json").is_file()


def test_shipped_cluster_classes_are_valid(checkout: Path) -> None:
    result = call(str(checkout / "clusterclass"))
    assert (result.exit_code, "error" in result.output) == (0, False) or "no file ends" in result.stderr


def test_a_cluster_definition_is_checked_by_schema_rules_and_add_ons() -> None:
    definition = example("ClusterDefinition")
    assert findings(yaml.safe_dump(definition)) == []
    definition["spec"]["addons"] = {"cni": {"name": "canal", "encapsulation": "IPIP"}}
    (found,) = findings(yaml.safe_dump(definition, sort_keys=False))
    assert (found["field"], found["rule"]) == ("spec.addons.cni.encapsulation", "cni-encapsulation")
    assert Draft7Validator(combine_schemas()).is_valid(definition)
    definition["spec"]["colour"] = "blue"
    assert not Draft7Validator(combine_schemas()).is_valid(definition)
    assert [line["rule"] for line in findings(yaml.safe_dump_all([definition, definition]))].count(
        "definition-twice"
    ) == 1
