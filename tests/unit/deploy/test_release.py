"""What a release consists of, without the programs that read it."""

import copy
import hashlib
import io
import json
import re
import tarfile
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from commands.webhook import CERT_DIR
from tests.support.permissions import granted
from tools.generate import webhooks
from tools.release import components, lock
from tools.release.__main__ import contents
from webhooks.configuration import INJECT_ANNOTATION

pytestmark = pytest.mark.unit

LOCK = f"""\
# comment
alpha==1.0 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via
    #   caphv (pyproject.toml)
    #   gamma
beta==2.0 ; sys_platform != 'win32' \\
    --hash=sha256:{"c" * 64}
    # via alpha
gamma==3.0 \\
    --hash=sha256:{"d" * 64}
    # via caphv (pyproject.toml)
"""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return contents("registry.example.com/caphv:test")


@pytest.fixture(scope="module")
def version(checkout: Path) -> str:
    return tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]


@cache
def objects(content: bytes) -> list[dict[str, object]]:
    # CRDs are long: the loader in C, where it is there, takes a tenth of the time.
    return [obj for obj in yaml.load_all(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if obj]


def test_same_checkout_gives_the_same_bytes(files: dict[str, bytes]) -> None:
    assert contents("registry.example.com/caphv:test") == files


def test_check_sums_cover_all_files(files: dict[str, bytes]) -> None:
    lines = files["SHA256SUMS"].decode().splitlines()
    assert {line.split("  ")[1]: line.split("  ")[0] for line in lines} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != "SHA256SUMS"
    }


def test_components_for_kubectl_have_nothing_to_fill_in(files: dict[str, bytes]) -> None:
    assert b"${" not in files["caphv.yaml"]
    (deployment,) = [obj for obj in objects(files["caphv.yaml"]) if obj["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/caphv:test"


def test_components_for_clusterctl_differ_by_variables_with_defaults_only(files: dict[str, bytes]) -> None:
    text = files["infrastructure-components.yaml"].decode()
    assert set(re.findall(r"\$\{(\w+):=", text)) == set(components.VARIABLES.values())
    filled = re.sub(r"\$\{\w+:=([^}]*)\}", r"\1", text)
    assert objects(filled.encode()) == objects(files["caphv.yaml"])


def test_every_object_carries_the_label_of_the_provider(files: dict[str, bytes]) -> None:
    for obj in objects(files["infrastructure-components.yaml"]):
        assert obj["metadata"]["labels"]["cluster.x-k8s.io/provider"] == "infrastructure-harvester", obj["metadata"]


def test_chart_archive_holds_files_and_no_links(files: dict[str, bytes], version: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(files[f"caphv-{version}.tgz"])) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert all(member.isfile() for member in members.values())
    assert {"caphv/Chart.yaml", "caphv/values.schema.json", "caphv/files/base/rbac.yaml"} <= members.keys()
    assert len([name for name in members if name.startswith("caphv/files/crds/infrastructure")]) == 5


def test_all_files_name_the_version_of_the_project(checkout: Path, version: str) -> None:
    deploy = checkout / "deploy"
    chart = yaml.safe_load((deploy / "chart" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, f"v{version}")
    for name, suffix in (("base", ""), ("packager", components.PACKAGER_SUFFIX)):
        kustomization = yaml.safe_load((deploy / "kustomize" / name / "kustomization.yaml").read_text())
        assert kustomization["images"] == [{"name": components.IMAGE, "newTag": f"v{version}{suffix}"}]


@pytest.mark.parametrize(
    ("images", "provider", "packager"),
    [
        ((), "IMAGE:vVERSION", "IMAGE:vVERSION-packager"),
        # One image for both.
        (("registry.example.com/caphv:x",), "registry.example.com/caphv:x", "registry.example.com/caphv:x"),
        (("registry.example.com/caphv:x", "example.com/p:y"), "registry.example.com/caphv:x", "example.com/p:y"),
    ],
)
def test_packager_has_its_own_image(version: str, images: tuple[str, ...], provider: str, packager: str) -> None:
    written = contents(*images)
    for file, expected in (("caphv.yaml", provider), ("packager.yaml", packager)):
        (deployment,) = [obj for obj in objects(written[file]) if obj["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == expected.replace("IMAGE", components.IMAGE).replace("VERSION", version)


def test_webhook_configurations_are_those_that_the_server_restores() -> None:
    assert webhooks.MANIFEST.read_text() == webhooks.manifest()


def test_names_of_the_webhooks_fit_together(files: dict[str, bytes]) -> None:
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects(files["caphv.yaml"])}
    service = found["Service", "caphv-webhook-service"]
    pod = found["Deployment", "caphv-controller-manager"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "webhook")
    assert {"name": "webhook", "containerPort": 9443} in container["ports"]
    assert "--enable-webhooks" in container["args"]
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == CERT_DIR]
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    certificate = found["Certificate", "caphv-webhook-tls"]
    assert certificate["spec"]["secretName"] == volume["secret"]["secretName"]
    assert "caphv-webhook-service.caphv-system.svc" in certificate["spec"]["dnsNames"]
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        (configuration,) = [obj for (found_kind, _), obj in found.items() if found_kind == kind]
        assert configuration["metadata"]["annotations"] == {INJECT_ANNOTATION: "caphv-system/caphv-webhook-tls"}


@pytest.mark.parametrize("name", ["caphv-controller-manager", "caphv-packager"])
def test_prometheus_can_verify_the_certificate_of_the_metrics(files: dict[str, bytes], name: str) -> None:
    found = {
        (obj["kind"], obj["metadata"]["name"]): obj["spec"]
        for file in ("caphv.yaml", "monitoring.yaml", "packager.yaml")
        for obj in objects(files[file])
        if "spec" in obj
    }
    monitor, service = found["ServiceMonitor", f"{name}-metrics-monitor"], f"{name}-metrics-service"
    (endpoint,) = monitor["endpoints"]
    certificate = found["Certificate", "caphv-webhook-tls"]
    assert endpoint["tlsConfig"].keys() == {"serverName", "ca"}
    assert endpoint["tlsConfig"]["serverName"] == f"{service}.caphv-system.svc"
    assert endpoint["tlsConfig"]["serverName"] in certificate["dnsNames"]
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": certificate["secretName"], "key": "ca.crt"}
    pod = found["Deployment", name]["template"]
    (container,) = pod["spec"]["containers"]
    (folder,) = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--metrics-cert-dir=")]
    (mount,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder]
    (volume,) = [volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == mount]
    assert volume["secretName"] == certificate["secretName"]
    assert "--metrics-secure" in container["args"]
    assert endpoint["port"] in [port["name"] for port in found["Service", service]["ports"]]
    assert found["Service", service]["selector"].items() <= pod["metadata"]["labels"].items()


def test_prometheus_can_verify_the_certificate_that_rancher_issues(files: dict[str, bytes]) -> None:
    """For Turtles it writes `tls.crt`, with the CA at its end, and `tls.key`, for names of the webhooks' Service."""
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects(files["caphv.yaml"])}
    service = found["Service", "caphv-webhook-service"]["metadata"]
    tls = {
        "serverName": f"{service['name']}.{service['namespace']}.svc",
        "ca": {"secret": {"name": found["Certificate", "caphv-webhook-tls"]["spec"]["secretName"], "key": "tls.crt"}},
    }
    expected = copy.deepcopy(objects(files["monitoring.yaml"]))
    monitors = [obj for obj in expected if obj["kind"] == "ServiceMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        monitor["spec"]["endpoints"][0]["tlsConfig"] = tls
    assert objects(files["monitoring-turtles.yaml"]) == expected


def test_certificate_is_issued_by_a_ca_that_stays_the_same(files: dict[str, bytes]) -> None:
    found = {
        (obj["kind"], obj["metadata"]["name"]): obj["spec"] for obj in objects(files["caphv.yaml"]) if "spec" in obj
    }
    leaf = found["Certificate", "caphv-webhook-tls"]
    issuer = found["Issuer", leaf["issuerRef"]["name"]]
    (authority,) = [spec for (kind, _), spec in found.items() if kind == "Certificate" and spec.get("isCA")]
    assert issuer["ca"]["secretName"] == authority["secretName"]
    assert "selfSigned" in found["Issuer", authority["issuerRef"]["name"]]


def test_every_crd_is_in_the_kustomization(checkout: Path) -> None:
    folder = checkout / "deploy" / "crds"
    listed = yaml.safe_load((folder / "Kustomization").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.yaml"))


def test_pins_are_read_with_hashes_markers_and_reasons() -> None:
    alpha, beta, gamma = lock.parse_lock(LOCK)
    assert alpha.hashes == ("a" * 64, "b" * 64)
    assert alpha.needed_by == ("caphv", "gamma")
    assert (beta.marker, beta.needed_by) == ("sys_platform != 'win32'", ("alpha",))
    assert beta.requirement == f"beta==2.0 ; sys_platform != 'win32' \\\n    --hash=sha256:{'c' * 64}"
    assert gamma.needed_by == ("caphv",)


def test_what_is_needed_follows_the_reasons() -> None:
    assert [package.name for package in lock.select(lock.parse_lock(LOCK), {"alpha"})] == ["alpha", "beta"]
    assert [package.name for package in lock.select(lock.parse_lock(LOCK), {"gamma"})] == ["alpha", "beta", "gamma"]


def test_a_root_without_a_pin_is_named() -> None:
    with pytest.raises(ValueError, match=r"does not pin delta: run `make lock`"):
        lock.select(lock.parse_lock(LOCK), {"delta"})


def test_a_strange_line_is_reported() -> None:
    with pytest.raises(ValueError, match="line 2 of the lock file"):
        lock.parse_lock("# comment\n--index-url https://example.com\n")


def test_bill_of_materials_is_what_runs_and_not_what_tests(files: dict[str, bytes], version: str) -> None:
    bill = json.loads(files["sbom.cdx.json"])
    names = {component["name"] for component in bill["components"]}
    assert {"aiohttp", "kubernetes", "cryptography", "urllib3"} <= names
    assert names & {"pytest", "mypy", "hypothesis", "ruff"} == set()
    assert bill["metadata"]["component"]["version"] == version
    known = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    edges = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    assert edges.keys() == known
    assert all(set(targets) <= known for targets in edges.values())
    # Nothing is listed without a reason.
    assert {target for targets in edges.values() for target in targets} == known - {f"pkg:pypi/caphv@{version}"}


def test_role_of_the_packager_for_all_namespaces_is_complete(checkout: Path) -> None:
    """Users bind it to the provider's account. The role that remains with one namespace has no object of a cluster."""
    shipped = components.objects(checkout / "deploy" / "kustomize" / "packager")
    roles = {obj["metadata"]["name"]: granted([obj]) for obj in shipped if obj["kind"] == "ClusterRole"}
    everywhere, always = roles["caphv-packager-role"], roles["caphv-packager-cluster-role"]
    assert always < everywhere
    assert {resource for _, resource, _ in everywhere - always} == {
        "clusters",
        "events",
        "harvesterclusters",
        "harvesterclusters/status",
        "kthreescontrolplanes",
        "kubeadmcontrolplanes",
        "rke2controlplanes",
        "taloscontrolplanes",
    }
