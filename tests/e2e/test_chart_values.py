"""What values of the Helm chart change in its objects; helm is the real one."""

import base64
import ssl
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries
from tests.support.manifests import (
    CHART,
    CLASSES,
    PACKAGER,
    PRODUCTION,
    SELF_SIGNED,
    WITHOUT_WEBHOOKS,
    helm,
    parsed,
    refused,
    template,
    webhooks_of,
)

pytestmark = pytest.mark.e2e


def test_secrets_of_other_namespaces_are_out_of_reach_where_one_is_watched(tmp_path: Path) -> None:
    objects = parsed(template(tmp_path, {"watchNamespace": "team-a", **WITHOUT_WEBHOOKS}))
    over_secrets = {
        key
        for key, obj in objects.items()
        if key[0] in ("Role", "ClusterRole") and any("secrets" in rule.get("resources", ()) for rule in obj["rules"])
    }
    assert over_secrets == {("Role", "team-a", "caphv-manager-role")}
    (binding,) = [obj for obj in objects.values() if obj.get("roleRef", {}).get("name") == "caphv-manager-role"]
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "team-a")
    assert binding["subjects"][0]["namespace"] == "caphv-system"


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
def test_image_of_the_packager(tmp_path: Path, values: Obj, expected: str) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    packager = {**PACKAGER["packager"], **values.get("packager", {})}
    objects = parsed(template(tmp_path, {**values, "packager": packager}))
    (container,) = objects["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == expected.replace("VERSION", version)
    (manager,) = objects["Deployment", "caphv-system", "caphv-controller-manager"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert not manager["image"].endswith("-packager")
    assert manager["image"].rpartition(":")[2] == values.get("image", {}).get("tag", version)


def test_values_reach_the_packager(tmp_path: Path) -> None:
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
    objects = parsed(template(tmp_path, values, namespace="elsewhere"))
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
def test_signers_are_mounted_where_their_variable_says(tmp_path: Path, name: str) -> None:
    settings = {"CAPHV_SOURCE_REPO": "https://git.example.com/definitions.git"}
    values = {"packager": {**PACKAGER["packager"], "settings": settings, "signersSecret": name}}
    objects = parsed(template(tmp_path, values, namespace="elsewhere"))
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


@pytest.mark.parametrize(
    "values", [{}, PRODUCTION, SELF_SIGNED, WITHOUT_WEBHOOKS, CLASSES, PACKAGER, {"crds": {"enabled": False}}]
)
def test_chart_passes_lint(tmp_path: Path, values: Obj) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    helm("lint", "--strict", CHART, f"--values={tmp_path / 'values.yaml'}")


def test_crds_stay_when_the_chart_is_deleted(checkout: Path, tmp_path: Path) -> None:
    objects = manifests.parse(template(tmp_path, {}))
    crds = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    assert {f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.yaml" for crd in crds} == {
        path.name for path in (checkout / "deploy" / "crds").glob("*.yaml")
    }
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in crds} == {"keep"}
    without = parsed(template(tmp_path, {"crds": {"enabled": False}}))
    assert "CustomResourceDefinition" not in {kind for kind, _, _ in without}


def test_all_is_in_the_namespace_of_the_release(tmp_path: Path) -> None:
    objects = parsed(template(tmp_path, PRODUCTION, namespace="elsewhere"))
    assert {namespace for _, namespace, _ in objects} == {"", "elsewhere"}
    bindings = [obj for (kind, _, _), obj in objects.items() if kind.endswith("Binding")]
    assert {subject["namespace"] for obj in bindings for subject in obj["subjects"]} == {"elsewhere"}
    assert "caphv-system" not in yaml.safe_dump([*objects.values()])


def test_self_signed_certificate_is_what_api_servers_expect(tmp_path: Path) -> None:
    objects = parsed(template(tmp_path, SELF_SIGNED, namespace="elsewhere"))
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


def test_nothing_is_left_of_webhooks_that_are_off(tmp_path: Path) -> None:
    assert "webhook" not in template(tmp_path, WITHOUT_WEBHOOKS)


def test_values_reach_the_process_and_its_pod(tmp_path: Path) -> None:
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
    deployment = parsed(template(tmp_path, values))[("Deployment", "caphv-system", "caphv-controller-manager")]
    # Without an election, the old Pod ends before the new one starts.
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
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


def test_values_of_objects_around_it(tmp_path: Path) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    values = {
        "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "labels": {"folder": "clusters"}},
        "networkPolicy": {"enabled": True, "metricsFrom": peers},
    }
    objects = parsed(template(tmp_path, values))
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
    tmp_path: Path, values: Obj, secret: str, tls: Obj
) -> None:
    values = {"serviceMonitor": {"enabled": True}, **PACKAGER, **values}
    objects = parsed(template(tmp_path, values, namespace="elsewhere"))
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


def test_metrics_without_protection(tmp_path: Path) -> None:
    values = {"metrics": {"secure": False}, "serviceMonitor": {"enabled": True}}
    objects = parsed(template(tmp_path, values))
    monitor = objects[("ServiceMonitor", "caphv-system", "caphv-controller-manager-metrics-monitor")]
    assert monitor["spec"]["endpoints"] == [{"port": "https", "path": "/metrics", "scheme": "http"}]
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
def test_wrong_values_are_refused(tmp_path: Path, values: Obj, text: str) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    assert text in refused(binaries.binary("helm"), "template", "caphv", CHART, f"--values={tmp_path / 'values.yaml'}")
