"""The Helm chart and the kustomizations give the same objects; helm and kustomize are the real ones."""

import base64
import os
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries
from tools.release.__main__ import contents

pytestmark = pytest.mark.e2e

SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {
        "matchLabels": {
            "cluster.x-k8s.io/provider": "infrastructure-harvester",
            "control-plane": "controller-manager",
        }
    },
}
SELF_SIGNED: Obj = {"webhooks": {"certificate": "self-signed"}}
WITHOUT_WEBHOOKS: Obj = {"webhooks": {"enabled": False}, "networkPolicy": {"enabled": True}}
CLASSES: Obj = {"clusterClasses": {"names": ["harvester-rke2"], "namespaces": ["team-a", "team-b"]}}
PACKAGER: Obj = {"packager": {"enabled": True, "repository": "https://git.example.com/fleet.git"}}
PRODUCTION: Obj = {
    "replicas": 2,
    "topologySpreadConstraints": [SPREAD],
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "podDisruptionBudget": {"enabled": True},
}


def call(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def helm() -> Path:
    return binaries.binary("helm")


@pytest.fixture(scope="module")
def chart(checkout: Path) -> Path:
    return checkout / "deploy" / "chart"


def identity(obj: Obj) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def parsed(text: str) -> dict[tuple[str, str, str], Obj]:
    """Objects by kind, namespace and name, without what only one of the two tools has."""
    found = {identity(obj): obj for obj in manifests.parse(text) if obj and obj["kind"] != "Namespace"}
    for obj in found.values():
        if obj["kind"] == "CustomResourceDefinition":
            obj["metadata"].pop("annotations", None)
    return found


def template(helm: Path, chart: Path, folder: Path, values: Obj, *, namespace: str = "caphv-system") -> str:
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return call(helm, "template", "caphv", chart, f"--namespace={namespace}", f"--values={folder / 'values.yaml'}")


@pytest.mark.parametrize(
    ("values", "kustomization"),
    [
        ({}, "base"),
        (PRODUCTION, "overlays/production"),
        ({"watchNamespace": "team-a"}, "overlays/one-namespace"),
    ],
)
def test_chart_and_kustomization_give_the_same_objects(
    helm: Path, chart: Path, checkout: Path, tmp_path: Path, values: Obj, kustomization: str
) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / kustomization)
    ours, theirs = parsed(template(helm, chart, tmp_path, values)), parsed(built)
    assert ours.keys() == theirs.keys()
    for key, obj in ours.items():
        assert obj == theirs[key], key


def test_components_give_what_values_of_the_chart_give(helm: Path, chart: Path, checkout: Path, tmp_path: Path) -> None:
    """Two components over `production`. The chart makes the Secret, and knows its CA; else the user does."""
    folder = checkout / "deploy" / "kustomize"
    names = ["overlays/production", "packager", "components/self-signed", "components/one-namespace"]
    places = [os.path.relpath(folder / name, tmp_path) for name in names]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"kind": "Kustomization", "resources": places[:2], "components": places[2:]})
    )
    theirs = parsed(call(binaries.binary("kustomize"), "build", tmp_path))
    values = {**PRODUCTION, **PACKAGER, **SELF_SIGNED, "watchNamespace": "team-a"}
    ours = parsed(template(helm, chart, tmp_path, values))
    del ours["Secret", "caphv-system", "caphv-webhook-self-signed"]
    del ours["NetworkPolicy", "caphv-system", "caphv-packager"]
    packager = ours["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]
    assert packager["metadata"]["annotations"].pop("caphv.io/settings")
    assert "--namespace=team-a" in packager["spec"]["containers"][0]["args"]
    # Cluster-wide is only what is in no namespace of clusters.
    assert ("ClusterRole", "", "caphv-packager-role") not in ours
    assert ("Role", "team-a", "caphv-packager-role") in ours
    assert not {"harvesterclusters", "harvesterclusters/status", "events"} & {
        resource
        for key, obj in ours.items()
        if key[0] == "ClusterRole" and "packager" in key[2]
        for rule in obj["rules"]
        for resource in rule["resources"]
    }
    for webhook in webhooks_of(ours):
        del webhook["clientConfig"]["caBundle"]
    assert ours.keys() == theirs.keys()
    for key, obj in ours.items():
        assert obj == theirs[key], key


def test_component_of_updates_in_place_is_the_value_of_the_chart(
    helm: Path, chart: Path, checkout: Path, tmp_path: Path
) -> None:
    folder = checkout / "deploy" / "kustomize"
    places = [os.path.relpath(folder / name, tmp_path) for name in ("overlays/production", "components/in-place")]
    kustomization = {"kind": "Kustomization", "resources": places[:1], "components": places[1:]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    theirs = parsed(call(binaries.binary("kustomize"), "build", tmp_path))
    ours = parsed(template(helm, chart, tmp_path, {**PRODUCTION, "inPlaceUpdates": {"enabled": True}}))
    assert ("ExtensionConfig", "", "caphv") in ours
    assert ours.keys() == theirs.keys()
    for key, obj in ours.items():
        assert obj == theirs[key], key

    values = {**SELF_SIGNED, "inPlaceUpdates": {"enabled": True, "policy": "Only"}}
    config = parsed(template(helm, chart, tmp_path, values, namespace="capi"))["ExtensionConfig", "", "caphv"]
    secret = config["metadata"]["annotations"]["runtime.cluster.x-k8s.io/inject-ca-from-secret"]
    assert secret == "capi/caphv-webhook-self-signed"
    assert config["spec"]["clientConfig"]["service"]["namespace"] == "capi"
    assert config["spec"]["settings"] == {"policy": "Only"}


def test_overlay_without_cert_manager_has_nothing_of_it(checkout: Path) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "overlays" / "self-signed")
    assert "cert-manager" not in built
    assert "secretName: caphv-webhook-self-signed" in built


def test_secrets_of_other_namespaces_are_out_of_reach_where_one_is_watched(
    helm: Path, chart: Path, tmp_path: Path
) -> None:
    objects = parsed(template(helm, chart, tmp_path, {"watchNamespace": "team-a", **WITHOUT_WEBHOOKS}))
    over_secrets = {
        key
        for key, obj in objects.items()
        if key[0] in ("Role", "ClusterRole") and any("secrets" in rule.get("resources", ()) for rule in obj["rules"])
    }
    assert over_secrets == {("Role", "team-a", "caphv-manager-role")}
    (binding,) = [obj for obj in objects.values() if obj.get("roleRef", {}).get("name") == "caphv-manager-role"]
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "team-a")
    assert binding["subjects"][0]["namespace"] == "caphv-system"


def test_packager_of_the_chart_is_that_of_the_kustomization(
    helm: Path, chart: Path, checkout: Path, tmp_path: Path
) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "packager")
    ours, theirs = parsed(template(helm, chart, tmp_path, PACKAGER)), parsed(built)
    without = parsed(template(helm, chart, tmp_path, {}))
    assert ours.keys() - without.keys() == theirs.keys()
    annotations = ours["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations.pop("caphv.io/settings")
    for key, obj in theirs.items():
        assert obj == ours[key], key


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "ghcr.io/rancher-sandbox/cluster-api-provider-harvester:VERSION-packager"),
        ({"image": {"repository": "mirror.example.com/caphv"}}, "mirror.example.com/caphv:VERSION-packager"),
        # One tag for both.
        ({"image": {"tag": "mine"}}, "ghcr.io/rancher-sandbox/cluster-api-provider-harvester:mine"),
        (
            {"image": {"tag": "x"}, "packager": {"image": {"tag": "v2", "repository": "example.com/p"}}},
            "example.com/p:v2",
        ),
    ],
)
def test_image_of_the_packager(helm: Path, chart: Path, tmp_path: Path, values: Obj, expected: str) -> None:
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    packager = {**PACKAGER["packager"], **values.get("packager", {})}
    objects = parsed(template(helm, chart, tmp_path, {**values, "packager": packager}))
    (container,) = objects["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == expected.replace("VERSION", version)
    (manager,) = objects["Deployment", "caphv-system", "caphv-controller-manager"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert not manager["image"].endswith("-packager")
    assert manager["image"].rpartition(":")[2] == values.get("image", {}).get("tag", version)


def test_values_reach_the_packager(helm: Path, chart: Path, tmp_path: Path) -> None:
    values = {
        "watchNamespace": "team-a",
        "image": {"repository": "registry.example.com/caphv", "tag": "x"},
        "proxy": {"url": "http://proxy.example.com:3128", "exceptions": ["git.example.com"]},
        "packager": {
            **PACKAGER["packager"],
            "credentialsSecret": "other",
            "settings": {"CAPHV_GIT_BRANCH": "bundles"},
            "replicas": 2,
        },
    }
    objects = parsed(template(helm, chart, tmp_path, values, namespace="elsewhere"))
    settings = objects["ConfigMap", "elsewhere", "caphv-packager"]["data"]
    assert settings == {"CAPHV_GIT_REPO": "https://git.example.com/fleet.git", "CAPHV_GIT_BRANCH": "bundles"}
    deployment = objects["Deployment", "elsewhere", "caphv-packager"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["replicas"] == 2
    assert container["image"] == "registry.example.com/caphv:x"
    assert "--namespace=team-a" in container["args"]
    assert {"name": "NO_PROXY", "value": "git.example.com"} in container["env"]
    assert "other" in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]


@pytest.mark.parametrize("name", ["", "release-keys"])
def test_signers_are_mounted_where_their_variable_says(helm: Path, chart: Path, tmp_path: Path, name: str) -> None:
    settings = {"CAPHV_SOURCE_REPO": "https://git.example.com/definitions.git"}
    values = {"packager": {**PACKAGER["packager"], "settings": settings, "signersSecret": name}}
    objects = parsed(template(helm, chart, tmp_path, values, namespace="elsewhere"))
    variables = objects["ConfigMap", "elsewhere", "caphv-packager"]["data"]
    pod = objects["Deployment", "elsewhere", "caphv-packager"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "signers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "signers"]
    assert mount["readOnly"] is True
    assert {"configMapRef": {"name": "caphv-packager"}} in container["envFrom"]
    if name:
        assert volume["secret"] == {"secretName": name}, "a missing Secret must keep the Pod from starting"
        assert variables["CAPHV_SOURCE_SIGNERS"] == mount["mountPath"]
    else:
        assert "CAPHV_SOURCE_SIGNERS" not in variables


def test_release_for_kubectl_is_the_base(checkout: Path) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "base")
    assert parsed(contents()["caphv.yaml"].decode()) == parsed(built)


@pytest.mark.parametrize(
    "values", [{}, PRODUCTION, SELF_SIGNED, WITHOUT_WEBHOOKS, CLASSES, PACKAGER, {"crds": {"enabled": False}}]
)
def test_chart_passes_lint(helm: Path, chart: Path, tmp_path: Path, values: Obj) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    call(helm, "lint", "--strict", chart, f"--values={tmp_path / 'values.yaml'}")


def test_crds_stay_when_the_chart_is_deleted(helm: Path, chart: Path, tmp_path: Path) -> None:
    objects = manifests.parse(template(helm, chart, tmp_path, {}))
    crds = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    assert len(crds) == 4
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in crds} == {"keep"}
    without = parsed(template(helm, chart, tmp_path, {"crds": {"enabled": False}}))
    assert "CustomResourceDefinition" not in {kind for kind, _, _ in without}


def test_all_is_in_the_namespace_of_the_release(helm: Path, chart: Path, tmp_path: Path) -> None:
    objects = parsed(template(helm, chart, tmp_path, PRODUCTION, namespace="elsewhere"))
    assert {namespace for _, namespace, _ in objects} == {"", "elsewhere"}
    bindings = [obj for (kind, _, _), obj in objects.items() if kind.endswith("Binding")]
    assert {subject["namespace"] for obj in bindings for subject in obj["subjects"]} == {"elsewhere"}
    assert "caphv-system" not in yaml.safe_dump([*objects.values()])


def webhooks_of(objects: dict[tuple[str, str, str], Obj]) -> list[Obj]:
    """All webhooks of the two configurations."""
    found = [obj for (kind, _, _), obj in objects.items() if kind.endswith("WebhookConfiguration")]
    assert len(found) == 2
    return [webhook for obj in found for webhook in obj["webhooks"]]


def test_self_signed_certificate_is_what_api_servers_expect(helm: Path, chart: Path, tmp_path: Path) -> None:
    objects = parsed(template(helm, chart, tmp_path, SELF_SIGNED, namespace="elsewhere"))
    assert not {kind for kind, _, _ in objects} & {"Issuer", "Certificate"}
    ((_, secret),) = [item for item in objects.items() if item[0][0] == "Secret"]
    pod = objects["Deployment", "elsewhere", "caphv-controller-manager"]["spec"]["template"]["spec"]
    assert secret["metadata"]["name"] in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
    pair = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    for webhook in webhooks_of(objects):
        assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == pair["ca.crt"]
        assert webhook["clientConfig"]["service"]["namespace"] == "elsewhere"
    for name, content in pair.items():
        (tmp_path / name).write_bytes(content)
    ssl.create_default_context().load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    leaf, authority = (x509.load_pem_x509_certificate(pair[name]) for name in ("tls.crt", "ca.crt"))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    metrics = "caphv-controller-manager-metrics-service.elsewhere.svc"
    assert {"caphv-webhook-service.elsewhere.svc", metrics} <= {*names.get_values_for_type(x509.DNSName)}
    leaf.verify_directly_issued_by(authority)


def test_nothing_is_left_of_webhooks_that_are_off(helm: Path, chart: Path, tmp_path: Path) -> None:
    assert "webhook" not in template(helm, chart, tmp_path, WITHOUT_WEBHOOKS)


def test_values_reach_the_process_and_its_pod(helm: Path, chart: Path, tmp_path: Path) -> None:
    values = {
        "image": {"repository": "registry.example.com/caphv", "tag": "x", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "leaderElection": False,
        "logLevel": "debug",
        "concurrency": 8,
        "watchNamespace": "team-a",
        "watchFilter": "blue",
        "allowInsecureIdentities": True,
        "crossNamespaceRefs": False,
        "caBundle": {"configMap": "authorities", "key": "all.pem"},
        "proxy": {"url": "http://proxy.example.com:3128", "exceptions": ["10.0.0.0/8", "example.com"]},
        "tolerations": [],
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "a", "control-plane": "other"},
        "podAnnotations": {"note": "x"},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    deployment = parsed(template(helm, chart, tmp_path, values))[
        ("Deployment", "caphv-system", "caphv-controller-manager")
    ]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"] == [
        "run",
        "--enable-webhooks",
        "--metrics-secure",
        "--metrics-cert-dir=/tmp/k8s-webhook-server/serving-certs",
        "--log-level=debug",
        "--concurrency=8",
        "--namespace=team-a",
        "--watch-filter=blue",
        "--allow-insecure-identities",
        "--no-cross-namespace-refs",
    ]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example.com/caphv:x", "Always")
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert {"name": "SSL_CERT_FILE", "value": "/etc/caphv/ca/all.pem"} in container["env"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"} in container["env"]
    assert {"name": "NO_PROXY", "value": "10.0.0.0/8,example.com"} in container["env"]
    assert {"name": "ca", "configMap": {"name": "authorities"}} in pod["spec"]["volumes"]
    assert "tolerations" not in pod["spec"]
    for name in ("imagePullSecrets", "nodeSelector", "affinity", "priorityClassName"):
        assert pod["spec"][name] == values[name]
    # What the selector needs cannot be taken away.
    assert pod["metadata"]["labels"]["control-plane"] == "controller-manager"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_cluster_classes_are_where_their_clusters_are(helm: Path, chart: Path, checkout: Path, tmp_path: Path) -> None:
    objects = parsed(template(helm, chart, tmp_path, CLASSES))
    folder = checkout / "clusterclass" / "harvester-rke2"
    written = [obj for path in folder.glob("*.yaml") for obj in manifests.parse(path.read_text())]
    for namespace in CLASSES["clusterClasses"]["namespaces"]:
        found = {key: obj for key, obj in objects.items() if key[1] == namespace}
        assert len(found) == len(written)
        for obj in written:
            rendered = found[obj["kind"], namespace, obj["metadata"]["name"]]
            assert rendered["spec"] == obj["spec"]
            assert rendered["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert not {kind for kind, _, _ in parsed(template(helm, chart, tmp_path, {}))} & {"ClusterClass"}


def test_values_of_objects_around_it(helm: Path, chart: Path, tmp_path: Path) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    values = {
        "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "labels": {"folder": "clusters"}},
        "networkPolicy": {"enabled": True, "metricsFrom": peers},
    }
    objects = parsed(template(helm, chart, tmp_path, values))
    monitor = objects[("ServiceMonitor", "caphv-system", "caphv-controller-manager-metrics-monitor")]
    assert monitor["spec"]["endpoints"][0]["interval"] == "30s"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert objects[("PrometheusRule", "caphv-system", "caphv-alerts")]["metadata"]["labels"]["release"] == "prometheus"
    dashboard = objects[("ConfigMap", "caphv-system", "caphv-dashboard")]
    assert dashboard["metadata"]["labels"]["folder"] == "clusters"
    policy = objects[("NetworkPolicy", "caphv-system", "caphv-controller-manager")]
    assert policy["spec"]["ingress"][0]["from"] == peers
    assert "from" not in policy["spec"]["ingress"][1]


OWN_TLS = {"serverName": "metrics.example.com", "caFile": "/etc/ca.crt"}


def verified(secret: str) -> Obj:
    return {"serverName": "", "ca": {"secret": {"name": secret, "key": "ca.crt"}}}


@pytest.mark.parametrize(
    ("values", "secret", "tls"),
    [
        ({}, "caphv-webhook-tls", verified("caphv-webhook-tls")),
        (SELF_SIGNED, "caphv-webhook-self-signed", verified("caphv-webhook-self-signed")),
        ({"metrics": {"certificateSecret": "own"}}, "own", verified("own")),
        (
            {"metrics": {"certificateSecret": "own"}, "serviceMonitor": {"enabled": True, "tlsConfig": OWN_TLS}},
            "own",
            OWN_TLS,
        ),
        (WITHOUT_WEBHOOKS, "", {"insecureSkipVerify": True}),
    ],
)
def test_prometheus_verifies_the_certificate_that_metrics_are_served_with(
    helm: Path, chart: Path, tmp_path: Path, values: Obj, secret: str, tls: Obj
) -> None:
    values = {"serviceMonitor": {"enabled": True}, **PACKAGER, **values}
    objects = parsed(template(helm, chart, tmp_path, values, namespace="elsewhere"))
    for name in ("caphv-controller-manager", "caphv-packager"):
        pod = objects["Deployment", "elsewhere", name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        folders = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--metrics-cert-dir")]
        mounts = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] in folders]
        secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] in mounts]
        assert secrets == [secret] * bool(secret)
        assert len(folders) == len(secrets)
        monitor = objects["ServiceMonitor", "elsewhere", f"{name}-metrics-monitor"]
        own = {"serverName": f"{name}-metrics-service.elsewhere.svc"} if tls.get("serverName") == "" else {}
        assert monitor["spec"]["endpoints"][0]["tlsConfig"] == tls | own


def test_metrics_without_protection(helm: Path, chart: Path, tmp_path: Path) -> None:
    values = {"metrics": {"secure": False}, "serviceMonitor": {"enabled": True}}
    objects = parsed(template(helm, chart, tmp_path, values))
    monitor = objects[("ServiceMonitor", "caphv-system", "caphv-controller-manager-metrics-monitor")]
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics", "scheme": "http"}]
    (container,) = objects[("Deployment", "caphv-system", "caphv-controller-manager")]["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--metrics-secure" not in container["args"]
    assert ("ClusterRole", "", "caphv-proxy-role") not in objects


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"replicas": "two"}, "replicas"),
        ({"replica": 2}, "replica"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"serviceMonitor": {"interval": "soon"}}, "interval"),
        ({"webhooks": {"certificate": "mine"}}, "certificate"),
        ({"proxy": {"url": "proxy:3128"}}, "proxy"),
        ({"packager": {"enabled": True}}, "packager.repository: name the Git repository"),
        ({"packager": {"settings": {"GIT_BRANCH": "main"}}}, "GIT_BRANCH"),
        ({"clusterClasses": {"names": ["harvester-other"], "namespaces": ["a"]}}, "no ClusterClass harvester-other"),
        ({"replicas": 2, "leaderElection": False}, "more than one needs leaderElection"),
    ],
)
def test_wrong_values_are_refused(helm: Path, chart: Path, tmp_path: Path, values: Obj, text: str) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    assert text in refused(helm, "template", "caphv", chart, f"--values={tmp_path / 'values.yaml'}")
