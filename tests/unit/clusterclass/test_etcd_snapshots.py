"""Variable `etcdSnapshots`: what servers of RKE2 and K3s are configured with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from caphv.clusterclass.templates import Part, apply_patches, variables_of
from sandbox.capi.crds import custom_resource_definitions
from tests.support.clusterclasses import objects, problems, templates

pytestmark = pytest.mark.unit

S3 = {
    "endpoint": "s3.example.com:9000",
    "bucket": "etcd-snapshots",
    "folder": "team-a/production",
    "region": "eu-central-1",
    "retention": 84,
    "credentialsSecretName": "etcd-s3",
    "caSecretName": "etcd-s3-ca",
}
REQUIRED = ("endpoint", "bucket", "folder", "retention", "credentialsSecretName")
SNAPSHOTS = {"schedule": "0 */6 * * *", "retention": 28, "s3": S3}
CONFIG = "config.yaml.d/55-etcd-snapshots.yaml"


def the_class(name: str) -> Obj:
    (cluster_class,) = (obj for obj in objects(name) if obj["kind"] == "ClusterClass")
    return cluster_class


def server(distribution: str, **values: Any) -> Obj:
    """Return the spec of the control plane of a Cluster with these variables."""
    name = f"harvester-{distribution}"
    (template,) = (obj for _, obj in templates(name) if obj["kind"].endswith("ControlPlaneTemplate"))
    topology = {"variables": [{"name": name, "value": value} for name, value in values.items()]}
    topology["variables"] += [{"name": "cni", "value": "calico" if distribution == "rke2" else "flannel"}]
    cluster = {"metadata": {"name": "demo", "namespace": "team"}, "spec": {"topology": topology}}
    spec = apply_patches(the_class(name), Part("controlPlane", template), variables_of(the_class(name), cluster))
    return spec["kthreesConfigSpec"] if distribution == "k3s" else spec


def schema_of(distribution: str) -> Obj:
    (schema,) = (
        variable["schema"]["openAPIV3Schema"]
        for variable in the_class(f"harvester-{distribution}")["spec"]["variables"]
        if variable["name"] == "etcdSnapshots"
    )
    return schema


def files(spec: Obj) -> dict[str, Obj]:
    return {file["path"]: file for file in spec.get("files", ())}


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_without_the_variable_nothing_is_configured(distribution: str) -> None:
    spec = server(distribution)
    assert "etcd" not in spec["serverConfig"]
    assert "files" not in spec
    assert "preK3sCommands" not in spec


def test_rke2_gets_schedule_retention_and_store() -> None:
    spec = server("rke2", etcdSnapshots=SNAPSHOTS)
    assert spec["serverConfig"]["etcd"]["backupConfig"] == {
        "scheduleCron": "0 */6 * * *",
        "retention": "28",
        "s3": {
            "endpoint": "s3.example.com:9000",
            "bucket": "etcd-snapshots",
            "folder": "team-a/production",
            "region": "eu-central-1",
            "s3CredentialSecret": {"name": "etcd-s3", "namespace": "team"},
            "endpointCAsecret": {"name": "etcd-s3-ca", "namespace": "team"},
            "enforceSslVerify": True,
        },
    }
    # Without the flag, RKE2 keeps five in the store.
    (content,) = (file["content"] for path, file in files(spec).items() if path.endswith(CONFIG))
    assert yaml.safe_load(content) == {"etcd-s3-retention": 84}


def test_rke2_appends_to_files_of_the_cluster_and_of_other_variables() -> None:
    file = {"path": "/etc/motd", "content": "welcome"}
    spec = server("rke2", etcdSnapshots=SNAPSHOTS, controlPlaneFiles=[file], cisProfile="cis")
    assert [path.rpartition("/")[2] for path in files(spec)] == ["motd", "55-etcd-snapshots.yaml", "rancher-pss.yaml"]


def test_snapshots_without_a_store_need_no_file_of_rke2() -> None:
    spec = server("rke2", etcdSnapshots={"retention": 3})
    assert spec["serverConfig"]["etcd"] == {"backupConfig": {"retention": "3"}}
    assert "files" not in spec


def test_only_on_request_is_the_certificate_of_the_store_not_verified() -> None:
    store = {**S3, "insecureSkipVerify": True}
    config = server("rke2", etcdSnapshots={"s3": store})["serverConfig"]["etcd"]["backupConfig"]
    assert config["s3"]["enforceSslVerify"] is False
    content = files(server("k3s", etcdSnapshots={"s3": store}))[f"/etc/rancher/k3s/{CONFIG}"]["content"]
    assert yaml.safe_load(content)["etcd-s3-skip-ssl-verify"] is True


def test_k3s_reads_all_but_the_credentials_from_one_file() -> None:
    spec = server("k3s", etcdSnapshots=SNAPSHOTS)
    file = files(spec)[f"/etc/rancher/k3s/{CONFIG}"]
    assert file["permissions"] == "0600"
    assert yaml.safe_load(file["content"]) == {
        "etcd-snapshot-schedule-cron": "0 */6 * * *",
        "etcd-snapshot-retention": 28,
        "etcd-s3": True,
        "etcd-s3-endpoint": "s3.example.com:9000",
        "etcd-s3-bucket": "etcd-snapshots",
        "etcd-s3-folder": "team-a/production",
        "etcd-s3-region": "eu-central-1",
        "etcd-s3-retention": 84,
        "etcd-s3-endpoint-ca": "/etc/rancher/k3s/etcd-s3/ca.pem",
    }
    sources = {
        path.rpartition("/")[2]: file["contentFrom"] for path, file in files(spec).items() if "content" not in file
    }
    assert sources == {
        "access-key": {"secret": {"name": "etcd-s3", "key": "aws_access_key_id"}},
        "secret-key": {"secret": {"name": "etcd-s3", "key": "aws_secret_access_key"}},
        "ca.pem": {"secret": {"name": "etcd-s3-ca", "key": "ca.pem"}},
    }


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_the_store_may_keep_more_than_a_machine(distribution: str) -> None:
    spec = server(distribution, etcdSnapshots={"retention": 3, "s3": {**S3, "retention": 9}})
    content = yaml.safe_load(files(spec)[f"/etc/rancher/{distribution}/{CONFIG}"]["content"])
    assert content["etcd-s3-retention"] == 9
    assert content.get("etcd-snapshot-retention") == (3 if distribution == "k3s" else None)


def test_fips_and_snapshots_of_k3s_share_the_commands() -> None:
    def commands(**values: Any) -> list[str]:
        return server("k3s", **values).get("preK3sCommands", [])

    (fips,) = commands(fipsRequired=True)
    (write,) = commands(etcdSnapshots=SNAPSHOTS)
    assert "fips_enabled" in fips
    assert commands(etcdSnapshots=SNAPSHOTS, fipsRequired=True) == [fips, write]
    assert commands(etcdSnapshots={"retention": 3}) == []


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40))
def test_k3s_reads_the_credentials_as_they_are_in_the_secret(tmp_path_factory: Any, key: str) -> None:
    """The command that writes them runs in a shell before K3s starts."""
    root: Path = tmp_path_factory.mktemp("guest")
    (root / "etcd-s3").mkdir()
    (root / "config.yaml.d").mkdir()
    (root / "etcd-s3" / "access-key").write_text("AKIA1\n")
    (root / "etcd-s3" / "secret-key").write_text(key)
    (command,) = server("k3s", etcdSnapshots=SNAPSHOTS)["preK3sCommands"]
    script = command.replace("/etc/rancher/k3s", str(root))
    subprocess.run(["/bin/sh", "-c", f"{script}; umask > {root}/umask"], check=True, env={"PATH": os.environ["PATH"]})
    written = root / "config.yaml.d" / "56-etcd-s3.yaml"
    assert yaml.safe_load(written.read_text()) == {"etcd-s3-access-key": "AKIA1", "etcd-s3-secret-key": key}
    assert written.stat().st_mode & 0o777 == 0o600
    assert (root / "umask").read_text().strip() != "0077"


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_servers_fit_the_crds_of_the_sandbox(distribution: str) -> None:
    crds = {crd["spec"]["names"]["kind"]: crd for crd in custom_resource_definitions()}
    (template,) = (
        obj for _, obj in templates(f"harvester-{distribution}") if obj["kind"].endswith("ControlPlaneTemplate")
    )
    spec = server(distribution, etcdSnapshots=SNAPSHOTS)
    spec = {"kthreesConfigSpec": spec} if distribution == "k3s" else spec
    patched = {**template, "spec": {"template": {"spec": spec}}}
    assert problems(patched, crds[template["kind"]]) == []


def test_servers_fit_the_real_crd_of_rke2(shared_crds: Path) -> None:
    file = shared_crds / "controlplane.cluster.x-k8s.io_rke2controlplanetemplates.yaml"
    (template,) = (obj for _, obj in templates("harvester-rke2") if obj["kind"] == "RKE2ControlPlaneTemplate")
    patched = {**template, "spec": {"template": {"spec": server("rke2", etcdSnapshots=SNAPSHOTS)}}}
    assert problems(patched, yaml.load(file.read_text(), yaml.CSafeLoader)) == []


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_the_variable_has_no_field_for_credentials(distribution: str) -> None:
    assert schema_of(distribution)["properties"]["s3"]["properties"].keys() == {*S3, "insecureSkipVerify"}


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_the_class_refuses_a_ca_that_is_not_used(distribution: str) -> None:
    (rule,) = schema_of(distribution)["properties"]["s3"]["x-kubernetes-validations"]
    assert ("self.caSecretName" in rule["rule"], "self.insecureSkipVerify" in rule["rule"]) == (True, True)


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (SNAPSHOTS, True),
        ({"schedule": "@every 6h"}, True),
        ({"schedule": "@daily"}, True),
        ({"schedule": "30 2 * * mon-fri"}, True),
        ({}, False),
        ({"schedule": "hourly"}, False),
        ({"schedule": "0 0 * *"}, False),
        ({"schedule": "0 0 * * *\ntoken: x"}, False),
        ({"retention": 0}, False),
        ({"s3": {**S3, "endpoint": "https://s3.example.com"}}, False),
        # Retention deletes all snapshots in the folder, so no default fits several management clusters.
        *(({"s3": {name: value for name, value in S3.items() if name != missing}}, False) for missing in REQUIRED),
        ({"s3": {**S3, "folder": "/absolute"}}, False),
    ],
)
def test_the_class_refuses_values_with_which_servers_would_not_start(
    distribution: str, value: Obj, valid: bool
) -> None:
    errors = list(jsonschema.Draft202012Validator(schema_of(distribution)).iter_errors(value))
    assert (not errors) is valid
