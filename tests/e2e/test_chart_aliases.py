"""Values of the Go provider's chart that ours takes: they mean what ours mean, and both must agree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries

pytestmark = pytest.mark.e2e

CERT_MANAGER, SELF_SIGNED = "webhooks.certManager.enabled=true", "webhooks.certManager.enabled=false"
TEAM = "clusterClasses.namespaces={team-a}"


def template(checkout: Path, *values: str) -> subprocess.CompletedProcess[str]:
    """Render the chart at the path of the Go provider's."""
    options = [f"--set={value}" for value in values]
    command = [binaries.binary("helm"), "template", "caphv", checkout / "chart" / "caphv", "--namespace=own", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(checkout: Path, *values: str) -> list[Obj]:
    done = template(checkout, *values)
    assert done.returncode == 0, done.stderr
    return [obj for obj in manifests.parse(done.stdout) if obj]


@pytest.mark.parametrize(
    ("values", "secret"),
    [
        ((), "caphv-webhook-tls"),
        ((CERT_MANAGER,), "caphv-webhook-tls"),
        ((CERT_MANAGER, "webhooks.certificate=cert-manager"), "caphv-webhook-tls"),
        ((SELF_SIGNED,), "caphv-webhook-self-signed"),
        ((SELF_SIGNED, "webhooks.certificate=self-signed"), "caphv-webhook-self-signed"),
        (("webhooks.certificate=self-signed",), "caphv-webhook-self-signed"),
    ],
)
def test_the_issuer_of_the_certificate(checkout: Path, values: tuple[str, ...], secret: str) -> None:
    objects = rendered(checkout, *values)
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    secrets = [
        each["secret"]["secretName"] for each in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in each
    ]
    assert secrets == [secret]
    kinds = {obj["kind"] for obj in objects}
    assert ("Certificate" in kinds, "Secret" in kinds) == (secret.endswith("tls"), not secret.endswith("tls"))


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ((), []),
        (("clusterClass.enabled=false",), []),
        (("clusterClass.enabled=true",), [("own", "harvester-rke2")]),
        (("clusterClass.enabled=true", "clusterClasses.names={harvester-k3s}"), [("own", "harvester-k3s")]),
        (("clusterClass.enabled=true", TEAM), [("team-a", "harvester-rke2")]),
        ((TEAM,), [("team-a", "harvester-rke2")]),
    ],
)
def test_the_namespaces_of_the_class(checkout: Path, values: tuple[str, ...], classes: list[tuple[str, str]]) -> None:
    names = [obj["metadata"] for obj in rendered(checkout, *values) if obj["kind"] == "ClusterClass"]
    assert [(each["namespace"], each["name"]) for each in names] == classes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((CERT_MANAGER, "webhooks.certificate=self-signed"), "webhooks.certificate: self-signed contradicts"),
        ((SELF_SIGNED, "webhooks.certificate=cert-manager"), "webhooks.certManager.enabled: false; set one of them"),
        (("clusterClass.enabled=false", TEAM), "clusterClasses.namespaces contradicts clusterClass.enabled: false"),
        (("clusterClass.enabled=true", "clusterClasses.names=null"), "clusterClasses.names"),
        (("clusterClass.enabled=yes",), "enabled"),
    ],
)
def test_values_that_contradict_each_other_are_refused(checkout: Path, values: tuple[str, ...], message: str) -> None:
    done = template(checkout, *values)
    assert done.returncode != 0, done.stdout
    assert message in done.stderr
