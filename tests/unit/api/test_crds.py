"""The generated CRDs: up to date, structural, and accepting whatever the Go provider's accept."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from caphv import data
from caphv.api import bounds, crds, generated, names
from caphv.api.object import Obj
from tests.support.openapi import example_object, fields, object_schema

pytestmark = pytest.mark.unit

CRDS = {crd["spec"]["names"]["plural"]: crd for crd in crds.custom_resource_definitions()}
VERSIONED = [(plural, version) for plural in CRDS for version in names.VERSIONS]
GUEST_CONFIG = {".guestConfig"} | {
    f".guestConfig.{name}" for name in ("disableFstrimTimer", "installGuestAgent", "userData")
}
CLUSTER_SPEC = {
    ".cloudConfig",
    ".cloudConfig.delivery",
    ".controlPlaneBackups",
    ".controlPlaneBackups.deletionPolicy",
    ".controlPlaneBackups.keep",
    ".controlPlaneBackups.timeoutSeconds",
    ".controlPlaneFailureDomains",
    ".controlPlaneFailureDomains[]",
    ".guestVolumes",
    ".identityRef",
    ".identityRef.name",
    ".images",
    ".images[]",
    ".images[].checksum",
    ".images[].name",
    ".images[].url",
    ".loadBalancerConfig.healthCheck",
    ".loadBalancerConfig.healthCheck.failureThreshold",
    ".loadBalancerConfig.healthCheck.periodSeconds",
    ".loadBalancerConfig.healthCheck.successThreshold",
    ".loadBalancerConfig.healthCheck.timeoutSeconds",
}
MAXIMA = {".cpuMax", ".memoryMax"}
HOST_RESOURCES = {
    ".cpuPinning",
    ".devices",
    ".devices[]",
    ".devices[].count",
    ".devices[].nodeResource",
    ".devices[].resourceName",
    ".hugepages",
    ".isolateEmulatorThread",
    ".numaPassthrough",
}
INTERFACES = {
    ".networkInterfaces",
    ".networkInterfaces[]",
    ".networkInterfaces[].addresses",
    ".networkInterfaces[].addresses[]",
    ".networkInterfaces[].addresses[].address",
    ".networkInterfaces[].addresses[].gateway",
    ".networkInterfaces[].addressesFromPools",
    ".networkInterfaces[].addressesFromPools[]",
    ".networkInterfaces[].addressesFromPools[].apiGroup",
    ".networkInterfaces[].addressesFromPools[].kind",
    ".networkInterfaces[].addressesFromPools[].name",
    ".networkInterfaces[].dnsSearch",
    ".networkInterfaces[].dnsSearch[]",
    ".networkInterfaces[].dnsServers",
    ".networkInterfaces[].dnsServers[]",
    ".networkInterfaces[].mtu",
    ".networkInterfaces[].network",
    ".networkInterfaces[].routes",
    ".networkInterfaces[].routes[]",
    ".networkInterfaces[].routes[].metric",
    ".networkInterfaces[].routes[].to",
    ".networkInterfaces[].routes[].via",
}
DISK_MODES = {".volumes[].accessMode", ".volumes[].volumeMode"}
LOOKUP = {".volumes[].imageLookup", ".volumes[].imageLookup.baseOS", ".volumes[].imageLookup.format"}
# A kind that only ours has.
OURS = "harvesterclusteridentities"
MACHINE_SPEC = GUEST_CONFIG | DISK_MODES | LOOKUP | MAXIMA | HOST_RESOURCES | INTERFACES
# What ours have beyond the Go provider's, below the spec or status of a kind.
ADDED = {
    "harvesterclusters": {
        *(f".spec{field}" for field in CLUSTER_SPEC),
        ".status.harvester",
        ".status.harvester.uid",
    },
    "harvesterclustertemplates": {f".spec.template.spec{field}" for field in CLUSTER_SPEC},
    "harvestermachines": {
        ".spec.networkConfig.subnetMask",
        *(f".spec{field}" for field in MACHINE_SPEC),
        ".status.interfaceAddresses",
        ".status.interfaceAddresses[]",
        ".status.interfaceAddresses[].address",
        ".status.interfaceAddresses[].network",
        ".status.interfaceAddresses[].pool",
        ".status.virtualMachine",
        ".status.virtualMachine.host",
        ".status.virtualMachine.instanceUID",
        ".status.virtualMachine.uid",
    },
    "harvestermachinetemplates": {
        ".spec.template.spec.networkConfig.subnetMask",
        *(f".spec.template.spec{field}" for field in MACHINE_SPEC),
        ".status",
        ".status.capacity",
        ".status.capacity{}",
        ".status.nodeInfo",
        ".status.nodeInfo.architecture",
        ".status.nodeInfo.operatingSystem",
    },
}
# Values that ours take beyond the Go provider's, by the end of the field's path.
ADDED_VALUES = {".loadBalancerConfig.ipamType": {"none"}}
# Fields that the Go provider requires and a rule of ours, because another one may take their place.
REQUIRED_BY_RULE = {"identitySecret"}
# Keywords of rules that objects of the Go provider may break, which had them in its webhook or nowhere.
DEMANDS = {"enum", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minimum", "pattern"}
DEMANDS |= {"x-kubernetes-validations"}
# What every list, map and text has that has no bound of its own: far above what any object needs.
BOUNDS = {
    "maxItems": {bounds.MOST_ITEMS},
    "maxProperties": {bounds.MOST_ITEMS},
    "maxLength": {bounds.LONGEST_TEXT, bounds.LONGEST_FREE_TEXT},
}
# HarvesterMachines are cloned from templates that may be stored already: they have what Go's webhook refused, no more.
OF_GO_WEBHOOK = {
    ".spec.cpu",
    ".spec.memory",
    ".spec.networkConfig.address",
    ".spec.networkConfig.gateway",
    ".spec.networks",
    ".spec.sshKeyPair",
    ".spec.sshUser",
    ".spec.volumes",
    ".spec.volumes[]",
}
# In Go only v1alpha1 has them; without conversion they are kept only if the stored version has them too.
DEPRECATED = {".status.failureMessage", ".status.failureReason"}
# Keywords which structural schemas forbid or which are ours.
FORBIDDEN = {"$ref", "$defs", "$schema", "$id", "$comment", "definitions", "dependencies", "deprecated", "examples"}
FORBIDDEN |= {"id", "patternProperties", "readOnly", "writeOnly", "uniqueItems", "const", "title"}


def constraints(node: Obj) -> Obj:
    """What a schema demands by itself, without its children and its text."""
    own = {k: v for k, v in node.items() if k not in {"description", "properties", "items"}}
    if isinstance(own.get("additionalProperties"), dict):
        del own["additionalProperties"]
    return own | ({"required": sorted(own["required"])} if "required" in own else {})


def test_files_are_not_stale() -> None:
    assert generated.stale(crds.files()) == []


def test_check_names_stale_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(
        data, "folder", lambda name, real=data.folder: tmp_path if name == "deploy/crds" else real(name)
    )
    (tmp_path / "left-over.yaml").write_text("{}")
    assert crds.main(["--check"]) == 1
    message = capsys.readouterr().err
    assert "left-over.yaml" in message
    assert "harvestermachines.yaml" in message
    assert crds.main([]) == 0
    assert crds.main(["--check"]) == 0
    assert not (tmp_path / "left-over.yaml").exists()


def test_generation_is_deterministic_and_shares_nothing() -> None:
    first, second = crds.custom_resource_definitions(), crds.custom_resource_definitions()
    assert first == second
    first[0]["spec"]["versions"][0]["additionalPrinterColumns"].clear()
    assert first[0]["spec"]["versions"][1]["additionalPrinterColumns"]
    assert not [name for name, text in crds.render().items() if "&id" in text]


def test_a_reference_to_nowhere_is_named() -> None:
    with pytest.raises(ValueError, match=r"schemas/a\.json: \$ref '#/\$defs/b' leads nowhere"):
        crds._resolve({"a.json": {}}, "a.json", "#/$defs/b")


@pytest.mark.parametrize("plural", CRDS)
def test_crd_frame(plural: str) -> None:
    crd = CRDS[plural]
    assert crd["metadata"]["name"] == f"{plural}.{names.GROUP}"
    assert crd["metadata"]["labels"] == {
        "cluster.x-k8s.io/provider": "infrastructure-harvester",
        "cluster.x-k8s.io/v1beta1": "_".join(names.VERSIONS),
        "cluster.x-k8s.io/v1beta2": "_".join(names.VERSIONS),
        # `clusterctl move` takes it along, although no Cluster owns it.
        **({"clusterctl.cluster.x-k8s.io/move-hierarchy": ""} if plural == OURS else {}),
    }
    spec = crd["spec"]
    assert spec["conversion"] == {"strategy": "None"}
    assert spec["names"]["categories"] == ["cluster-api"]
    assert [(v["name"], v["served"], v["storage"]) for v in spec["versions"]] == [
        (version, True, version == names.STORED_VERSION) for version in names.VERSIONS
    ]
    assert all(
        ("subresources" in v) == ("status" in object_schema(crd, v["name"])["properties"]) for v in spec["versions"]
    )


def test_short_names_are_distinct() -> None:
    short = [name for crd in CRDS.values() for name in crd["spec"]["names"]["shortNames"]]
    assert sorted(short) == ["hvc", "hvci", "hvct", "hvm", "hvmt"]


@pytest.mark.parametrize(("plural", "version"), VERSIONED)
def test_schema_is_structural(plural: str, version: str) -> None:
    schema = object_schema(CRDS[plural], version)
    assert schema["properties"]["metadata"] == {"type": "object"}
    for path, node in fields(schema):
        assert not FORBIDDEN & node.keys(), path
        assert not [key for key in node if key.startswith("x-caphv")], path
        assert ("type" in node) != node.get("x-kubernetes-int-or-string", False), path
        assert not {"properties", "additionalProperties"} <= node.keys(), path
        assert set(node.get("required", [])) <= node.get("properties", {}).keys(), path
        assert path == ".metadata" or path.endswith(("[]", "{}")) or node["description"], path


@pytest.mark.parametrize(("plural", "version"), VERSIONED)
def test_rules_over_several_fields_forgive_what_was_there_before(plural: str, version: str) -> None:
    compared = {
        path: [rule["rule"] for rule in node["x-kubernetes-validations"]]
        for path, node in fields(object_schema(CRDS[plural], version))
        if "properties" in node and "x-kubernetes-validations" in node
        # Items of lists and labels of selectors have no old value to compare with.
        if "[]" not in path and "Affinity" not in path
    }
    assert all("oldSelf" in rule for rules in compared.values() for rule in rules)
    # Machines have only what the Go provider refused as well, in items of lists.
    assert bool(compared) is (plural != "harvestermachines")


def test_macros_of_rules_are_spelled_out() -> None:
    shared = {"v4": "isIP(@)", "both": "$v4(@.a) && $v4(@.b)"}
    assert crds.spelled_out("$both(self.x) || self.matches('^a$')", shared) == (
        "isIP(self.x.a) && isIP(self.x.b) || self.matches('^a$')"
    )
    with pytest.raises(ValueError, match=r"schemas: \$v6 of rule '\$v6\(self\)' is not in x-caphv-cel"):
        crds.spelled_out("$v6(self)", shared)


def test_crds_can_be_applied_by_clients_of_every_kind() -> None:
    # Client side apply keeps the object in an annotation, and all annotations together have at most 256 KiB.
    assert max(len(json.dumps(crd, separators=(",", ":"))) for crd in CRDS.values()) < 200 * 1024


def test_a_forgiving_rule_asks_the_same_of_both() -> None:
    rule = {"rule": "!has(self.a) || self.a == 'selfish'", "message": "m"}
    assert crds.ratcheting({"properties": {}, "x-kubernetes-validations": [rule]}) == {
        "properties": {},
        "x-kubernetes-validations": [
            {
                "rule": "(!has(self.a) || self.a == 'selfish') || "
                "(oldSelf.hasValue() && !(!has(oldSelf.value().a) || oldSelf.value().a == 'selfish'))",
                "message": "m",
                "optionalOldSelf": True,
            }
        ],
    }


def test_a_rule_forgives_a_new_object_on_its_own_condition() -> None:
    rule = {"rule": "self.a", "x-caphv-new": "self.b", "message": "m"}
    (found,) = crds.ratcheting({"properties": {}, "x-kubernetes-validations": [rule]})["x-kubernetes-validations"]
    assert found == {
        "rule": "(self.a) || (oldSelf.hasValue() ? !(oldSelf.value().a) : self.b)",
        "message": "m",
        "optionalOldSelf": True,
    }


@pytest.mark.parametrize(("plural", "version"), VERSIONED)
def test_columns_show_existing_fields(plural: str, version: str) -> None:
    paths = {path for path, _ in fields(object_schema(CRDS[plural], version))}
    for column in next(v for v in CRDS[plural]["spec"]["versions"] if v["name"] == version)["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[?")[0].replace("[0]", "[]")
        assert path.startswith(".metadata.") or path in paths, column
        assert column["description"]


@pytest.mark.parametrize(("plural", "version"), VERSIONED)
def test_every_field_can_be_set(plural: str, version: str) -> None:
    populated = example_object(CRDS[plural], version, "example", "default")
    Draft202012Validator(object_schema(CRDS[plural], version)).validate(populated)
    assert populated.keys() == object_schema(CRDS[plural], version)["properties"].keys()


@pytest.mark.parametrize("plural", ["harvestermachines", "harvestermachinetemplates"])
def test_volume_type_is_free_in_v1alpha1_only(plural: str) -> None:
    found = {}
    for version in names.VERSIONS:
        for path, node in fields(object_schema(CRDS[plural], version)):
            if path.endswith(".volumeType"):
                found[version] = node.get("enum")
    assert found == {"v1alpha1": None, "v1beta1": ["storageClass", "image"]}


@pytest.mark.parametrize(("plural", "version"), [pair for pair in VERSIONED if pair[0] != OURS])
def test_equals_the_go_provider(shared_crds: Path, plural: str, version: str) -> None:
    """Every field of the Go provider's CRD exists in ours and may hold what it held; additions are the known ones."""
    file = shared_crds / "go-provider" / f"{names.GROUP}_{plural}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    theirs = dict(fields(object_schema(yaml.load(file.read_text(), Loader=loader), version)))
    ours = dict(fields(object_schema(CRDS[plural], version)))
    stricter = set()
    for path, node in theirs.items():
        before, now = (
            constraints(node),
            {
                key: value
                for key, value in constraints(ours[path]).items()
                if key not in BOUNDS or value not in BOUNDS[key]
            },
        )
        for end, values in ADDED_VALUES.items():
            if path.endswith(end):
                now["enum"] = [value for value in now["enum"] if value not in values]
        missing = set(before.get("required", ())) - set(now.get("required", ()))
        if missing:
            assert missing <= REQUIRED_BY_RULE
            now["required"] = sorted({*now["required"], *missing})
        if before != now:
            stricter.add(path)
            assert {key: value for key, value in now.items() if key in before or key not in DEMANDS} == before, path
    if plural == "harvestermachines":
        assert stricter == OF_GO_WEBHOOK
    assert not [path for path in stricter if path.startswith((".status", ".metadata"))]
    has_failures = version != "v1alpha1" and not plural.endswith("templates")
    assert ours.keys() - theirs.keys() == ADDED[plural] | (DEPRECATED if has_failures else set())


@pytest.mark.parametrize("plural", sorted(CRDS))
def test_every_list_map_and_text_of_a_spec_has_an_upper_bound(plural: str) -> None:
    for version in names.VERSIONS:
        for path, node in fields(object_schema(CRDS[plural], version)):
            if not path.startswith(".spec"):
                continue
            if node.get("type") == "array":
                assert "maxItems" in node, path
            if node.get("type") == "object" and "properties" not in node:
                assert "maxProperties" in node, path
            if node.get("type") == "string" or "x-kubernetes-int-or-string" in node:
                assert {"maxLength", "enum"} & node.keys(), path


def test_older_crds_lack_the_fields_that_a_release_has_added() -> None:
    crd = crds.custom_resource_definitions()[-1]
    assert crds.missing_fields(crd) == []

    for version in crd["spec"]["versions"]:
        template = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["template"]
        spec = template["properties"]["spec"]["properties"]
        # A missing field counts once, without the fields in it.
        del spec["guestConfig"]
        del spec["networkInterfaces"]["items"]["properties"]["mtu"]
    path = "spec.template.spec"
    assert crds.missing_fields(crd) == [f"{path}.guestConfig", f"{path}.networkInterfaces[].mtu"]

    # The API server serves none of the fields of a version that a CRD does not contain.
    crd["spec"]["versions"].pop()
    assert "spec" in crds.missing_fields(crd)
    assert crds.missing_fields({"metadata": {"name": "others.example.com"}, "spec": {}}) == []
