"""The commands of docs/migration.md as written, with the real kubectl, where the Go provider is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from caphv.api.names import SKIP_REMEDIATION_ANNOTATION, SKIPPED_BY_US
from caphv.api.object import Obj, annotations_of
from tests.support import doccommands
from tests.support.apiservers import running_management
from tests.support.e2e import crd
from tests.support.predecessor import crds
from tests.support.shell import Shell
from tools.release.__main__ import contents

pytestmark = pytest.mark.e2e

SPACE = "caphv-system"
PAGE = doccommands.CHECKOUT / "docs" / "migration.md"
UNINSTALL = doccommands.CHECKOUT / "docs" / "tasks" / "uninstall.md"
STAND_INS = [
    *(crd("cert-manager.io", "v1", kind) for kind in ("Issuer", "Certificate")),
    *(crd("cluster.x-k8s.io", "v1beta2", kind) for kind in ("Cluster", "Machine")),
    crd("monitoring.coreos.com", "v1", "ServiceMonitor"),
    crd("turtles-capi.cattle.io", "v1alpha1", "CAPIProvider"),
    crd("loadbalancer.harvesterhci.io", "v1beta1", "LoadBalancer"),
]
CORE = "capi-controller-manager"
MACHINE = "HarvesterMachine"
NAMES = sorted(f"{kind.lower()}s.{crds.GROUP}" for kind in crds.KINDS)
EARLY = f"""\
apiVersion: {crds.GROUP}/v1alpha1
kind: {MACHINE}
metadata: {{name: one, namespace: default, finalizers: [harvestermachine.{crds.GROUP}/finalizer]}}
spec: {{cpu: 2, memory: 4Gi, sshUser: sles, sshKeyPair: default/admin, networks: [default/production], volumes: []}}
"""
# Lines that nothing here can answer: no Deployment gets Pods, and other tests run the command line.
UNANSWERED = ("kubectl rollout status", "kubectl logs", "caphv ")
HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io/caphv-endpoint"
# Nothing collects the ReplicaSets and Pods of a Deployment here, and there are none.
COLLECTED = " --cascade=foreground"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Shell]:
    """Where the Go provider's manifests were applied, with an object of an early release."""
    space: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "capi-system"}}
    with running_management(tmp_path, [*STAND_INS, space, deployment(CORE, "capi-system")]):
        (tmp_path / "out").mkdir()
        for name, content in contents().items():
            (tmp_path / "out" / name).write_bytes(content)
        yield Shell(tmp_path, "kubectl")


def block(text: str, page: Path = PAGE) -> str:
    """The one block of the page that has a text, without what has no answer here."""
    (found,) = (each for each in doccommands.blocks(page) if text in each)
    lines = (line for line in found.splitlines() if not line.lstrip().startswith(UNANSWERED))
    return "\n".join(lines).replace(COLLECTED, "")


def deployment(name: str, namespace: str) -> Obj:
    selector = {"control-plane": "controller-manager"}
    pod = {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "manager", "image": "manager"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": selector}, "template": pod},
    }


def go_provider() -> list[Obj]:
    """What its manifests have in addition to the CRDs, its validating webhooks last; nothing serves these.

    Newer releases name webhooks and roles without a prefix.
    """
    own = {"namespace": SPACE}
    access = "rbac.authorization.k8s.io"
    labels = {"cluster.x-k8s.io/provider": "infrastructure-harvester"}
    role: Obj = {"apiVersion": f"{access}/v1", "kind": "ClusterRole", "rules": []}
    reference = {"apiGroup": access, "kind": "ClusterRole", "name": "caphv-manager-role"}
    binding = {"apiVersion": f"{access}/v1", "kind": "ClusterRoleBinding", "roleRef": reference}
    service: Obj = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 443}]}}
    webhook = {
        "name": "vharvestermachine.kb.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {**own, "name": "caphv-webhook-service"}},
        "rules": [
            {"apiGroups": [crds.GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["harvestermachines"]}
        ],
        "sideEffects": "None",
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        *({**role, "metadata": {"name": f"caphv-{name}"}} for name in ("manager-role", "metrics-reader", "proxy-role")),
        {**role, "metadata": {"name": "manager-role", "labels": labels}},
        *({**binding, "metadata": {"name": f"caphv-{name}-rolebinding"}} for name in ("manager", "proxy")),
        *(
            {**service, "metadata": {"name": f"caphv-{name}", **own}}
            for name in ("controller-manager-metrics-service", "webhook-service")
        ),
        deployment("caphv-controller-manager", SPACE),
        *(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": metadata,
                "webhooks": [webhook],
            }
            for metadata in (
                {"name": "caphv-validating-webhook-configuration"},
                {"name": "validating-webhook-configuration", "labels": labels},
            )
        ),
    ]


async def test_commands_lead_from_the_go_provider_here_and_back(at: Shell) -> None:
    async with crds.conversion_webhook(at.folder) as client_config:
        await asyncio.to_thread(commands, at, client_config)


def commands(at: Shell, client_config: Obj) -> None:
    """The page from its beginning; `client_config` leads to the conversion webhook of the Go provider."""
    before = the_go_provider_is_there(at, client_config)
    at(block("caphv-objects.yaml"))
    assert {obj["kind"] for obj in yaml.safe_load((at.folder / "caphv-objects.yaml").read_text())["items"]} == {MACHINE}
    apply = "kubectl apply --server-side -f out/caphv.yaml"
    at.refuses(f"{apply} --force-conflicts --dry-run=server", "strategy is not set to Webhook")
    at(block('"webhook":null'))
    at(block("kubectl delete clusterrole "))
    kinds = "validatingwebhookconfigurations,clusterroles,clusterrolebindings"
    assert "manager-role" not in at(f"kubectl get {kinds} -o name")
    assert "validating-webhook-configuration" not in at(f"kubectl get {kinds} -o name")
    for name in NAMES:
        assert at.read(f"crd {name}")["spec"]["conversion"] == {"strategy": "None"}
    assert len(at(block("get crd -o name")).split()) == 4
    # What kubectl has applied in the other way it takes over, what others have set it does not.
    at(apply)
    at(f"kubectl label crd {NAMES[0]} cluster.x-k8s.io/v1beta2=v1alpha1 --overwrite --field-manager=clusterctl")
    at.refuses(apply, 'conflict with "clusterctl"')
    at(f"{apply} --force-conflicts")
    the_machine_is_the_same(at, before)
    at(block("rollout restart"))
    core = at.read(f"deployment {CORE} -n capi-system")
    assert "kubectl.kubernetes.io/restartedAt" in core["spec"]["template"]["metadata"]["annotations"]
    at(block("reason=VMAdopted"))
    # One of ours refuses all changes here, because no Pod of it runs.
    at("kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations --all")
    at(block('"storedVersions"'))
    assert {tuple(at.read(f"crd {name}")["status"]["storedVersions"]) for name in NAMES} == {("v1beta1",)}
    to_a_capiprovider(at)
    the_machine_is_the_same(at, before)
    back(at, client_config)
    the_machine_is_the_same(at, before)


def the_go_provider_is_there(at: Shell, client_config: Obj) -> Obj:
    """Installed by `kubectl apply`, with a machine that was stored by an early release; answers the machine."""
    *objects, first, second = go_provider()
    for stored in ("v1alpha1", "v1beta1"):
        text = yaml.safe_dump_all([*objects, *crds.custom_resource_definitions(client_config, stored=stored)])
        at("kubectl apply -f -", text)
        at(f"kubectl wait --for=condition=Established --timeout=30s crd {' '.join(NAMES)}")
        if stored == "v1alpha1":
            at("kubectl apply -f -", EARLY)
    at("kubectl apply -f -", yaml.safe_dump_all([first, second]))
    return at.read(f"{MACHINE.lower()} one")


def the_machine_is_the_same(at: Shell, before: Obj) -> None:
    after = at.read(f"{MACHINE.lower()} one")
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert after["metadata"]["finalizers"] == before["metadata"]["finalizers"]


def to_a_capiprovider(at: Shell) -> None:
    found = at("kubectl get crd -l cluster.x-k8s.io/provider=infrastructure-harvester -o name").split()
    names = sorted([*NAMES, f"harvesterclusteridentities.{crds.GROUP}"])
    assert found == [f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in names]
    at("kubectl apply -f out/caphv-variables.yaml -f out/capiprovider.yaml")
    at(block("kubectl create configmap caphv-v1.0.0"))
    provider = at.read(f"capiprovider harvester -n {SPACE}")["spec"]
    assert "url" not in provider["fetchConfig"]
    (files,) = at.read(f"configmap -n {SPACE} -l provider.cluster.x-k8s.io/version=v1.0.0")["items"]
    assert {"metadata", "components"} <= set(files["data"])
    at(block("rollout status deployment/caphv-controller-manager"))
    provider = at.read(f"capiprovider harvester -n {SPACE}")["spec"]
    assert provider["fetchConfig"]["url"].split("/")[-2] == provider["version"]


def back(at: Shell, client_config: Obj) -> None:
    balancer = {
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "metadata": {"name": "name", "namespace": "target-namespace"},
        "spec": {"backendServerSelector": {"harvestercluster/machinetype": ["a"], "caphv.io/cluster": ["b"]}},
    }
    at("kubectl create namespace target-namespace && kubectl apply -f -", yaml.safe_dump(balancer))
    version = "cluster.x-k8s.io/v1beta2"
    marks = {
        "old": {HOOK: "caphv", SKIP_REMEDIATION_ANNOTATION: SKIPPED_BY_US},
        "other": {SKIP_REMEDIATION_ANNOTATION: ""},
    }
    for name, own in marks.items():
        machine = {"apiVersion": version, "kind": "Machine", "metadata": {"name": name, "annotations": own}}
        at("kubectl apply -f -", yaml.safe_dump(machine))
    at(block("kubectl delete mutatingwebhookconfiguration"))
    at(block("caphv-endpoint-"))
    at(block("skip-remediation", UNINSTALL))
    left = annotations_of(at.read("machines.cluster.x-k8s.io old"))
    assert not {HOOK, SKIP_REMEDIATION_ANNOTATION} & left.keys()
    assert SKIP_REMEDIATION_ANNOTATION in annotations_of(at.read("machines.cluster.x-k8s.io other"))
    at(block("backendServerSelector"))
    at.refuses(block("kubectl get mutatingwebhookconfiguration"), "NotFound")
    found = at.read("loadbalancers name -n target-namespace")["spec"]["backendServerSelector"]
    assert found == {"harvestercluster/machinetype": ["a"]}
    at.refuses(f"kubectl get deployment caphv-controller-manager -n {SPACE}", "NotFound")
    at("kubectl replace -f -", yaml.safe_dump_all(crds.custom_resource_definitions(client_config)))
    for name in NAMES:
        assert at.read(f"crd {name}")["spec"]["conversion"]["strategy"] == "Webhook"
