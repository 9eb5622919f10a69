"""`kubeVip` of variable `loadBalancer`: the static Pod of servers, and its kubeconfig, by distribution."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import Obj
from caphv.clusterclass.gotemplate import render
from tests.support import observed
from tests.support.kubevip import ADDRESS, DISTRIBUTIONS, balancer, patched, server, the_class
from tests.support.observed import Record

pytestmark = pytest.mark.unit

MANIFESTS = {
    "rke2": "/var/lib/rancher/rke2/agent/pod-manifests/kube-vip.yaml",
    "k3s": "/var/lib/rancher/k3s/agent/pod-manifests/kube-vip.yaml",
    "kubeadm": "/etc/kubernetes/manifests/kube-vip.yaml",
}
# What servers may have besides, by the variables that all distributions or some of them have.
EVERYWHERE = {
    "controlPlaneFiles": st.just([{"path": "/etc/motd", "content": "welcome"}]),
    "fipsRequired": st.just(True),
}
OTHERS = {
    "rke2": {
        **EVERYWHERE,
        "cisProfile": st.just("cis"),
        "stig": st.just(True),
        "imageRegistry": st.just("registry.example.com"),
        "etcdSnapshots": st.sampled_from(
            [
                {"retention": 3},
                {
                    "s3": {
                        "endpoint": "s3.example.com",
                        "bucket": "etcd",
                        "folder": "demo",
                        "retention": 3,
                        "credentialsSecretName": "s3",
                    }
                },
            ]
        ),
    },
    "k3s": {
        **EVERYWHERE,
        "cni": st.sampled_from(["none", "flannel"]),
        "registries": st.just({"mirrors": {"docker.io": {"endpoint": ["https://registry.example.com"]}}}),
        "etcdSnapshots": st.just({"retention": 3}),
    },
    "kubeadm": EVERYWHERE,
}


def pod_of(distribution: str, spec: Obj) -> Any:
    (file,) = (file for file in spec["files"] if file["path"] == MANIFESTS[distribution])
    assert (file["owner"], file["permissions"]) == ("root:root", "0600")
    return yaml.safe_load(file["content"])


def environment(pod: Obj) -> Obj:
    (container,) = pod["spec"]["containers"]
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("values", [{"ipamType": "dhcp"}, {"ipamType": "none", "endpoint": {"host": ADDRESS}}])
def test_without_it_servers_are_as_before(distribution: str, values: Obj) -> None:
    assert server(distribution, loadBalancer=values) == server(distribution)
    assert "kube-vip" not in str(server(distribution))


@pytest.mark.parametrize("record", observed.records("kube-vip-kube-vip/manifest.yaml"), ids=str)
def test_pod_is_that_of_the_program_except_for_what_is_named(record: Record) -> None:
    arguments = record.input["arguments"]
    distribution = record.name if record.name in DISTRIBUTIONS else "rke2"
    chosen = {
        name: arguments[arguments.index(f"--{name}") + 1]
        for name in ("interface", "image")
        if f"--{name}" in arguments and (name != "image" or "registry" in " ".join(arguments))
    }
    pod = pod_of(distribution, server(distribution, loadBalancer=balancer(**chosen)))

    expected = record.outcome
    (container,) = expected["spec"]["containers"]
    values = environment(expected)
    if record.name == "defaults":
        values |= {"vip_leaseduration": "5", "vip_renewdeadline": "3", "vip_retryperiod": "1"}
        values |= {"prometheus_server": "127.0.0.1:2113"}
        expected["spec"]["volumes"][0]["hostPath"]["path"] = "/etc/rancher/rke2/rke2.yaml"
    # It asks for an address by DHCP in another mode only. For Services it has no value, which is false.
    del values["dhcp_mode"]
    assert environment(pod) == {**values, "svc_enable": "false"}

    expected["spec"]["volumes"][0]["hostPath"]["type"] = "File"
    container["volumeMounts"][0]["readOnly"] = True
    del container["env"], container["resources"], pod["spec"]["containers"][0]["env"]
    assert pod == {name: value for name, value in expected.items() if name != "status"}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_interface_and_image_can_be_chosen(distribution: str) -> None:
    pod = pod_of(distribution, server(distribution, loadBalancer=balancer()))
    assert "vip_interface" not in environment(pod)
    assert pod["spec"]["containers"][0]["image"] == "ghcr.io/kube-vip/kube-vip:v1.2.3"

    chosen = balancer(interface="eth1", image="registry.example.com/kube-vip:v9")
    pod = pod_of(distribution, server(distribution, loadBalancer=chosen))
    assert environment(pod)["vip_interface"] == "eth1"
    assert pod["spec"]["containers"][0]["image"] == "registry.example.com/kube-vip:v9"


@pytest.mark.parametrize("distribution", ["rke2", "k3s"])
def test_image_comes_from_the_registry_of_the_cluster_unless_one_is_chosen(distribution: str) -> None:
    # Another patch of K3s's class has a function that only Cluster API renders.
    (patch,) = (patch for patch in the_class(distribution)["spec"]["patches"] if patch["name"] == "kubeVip")
    template = patch["definitions"][0]["jsonPatches"][0]["valueFrom"]["template"]

    def image(**settings: str) -> str:
        values = {"imageRegistry": "registry.example.com:5000", "loadBalancer": balancer(**settings)}
        pod = yaml.safe_load(yaml.safe_load(render(template, values))["content"])
        return pod["spec"]["containers"][0]["image"]

    assert image() == "registry.example.com:5000/kube-vip/kube-vip:v1.2.3"
    assert image(image="example.com/kube-vip:v9") == "example.com/kube-vip:v9"


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_nothing_else_of_servers_changes(distribution: str, data: st.DataObject) -> None:
    values = data.draw(st.fixed_dictionaries({}, optional=OTHERS[distribution]))
    before, spec = server(distribution, **values), server(distribution, **values, loadBalancer=balancer())
    assert pod_of(distribution, spec)["metadata"] == {"name": "kube-vip", "namespace": "kube-system"}
    assert spec["files"][:-1] == before.get("files", [])
    commands = spec.get("preKubeadmCommands", [])
    assert commands[: len(before.get("preKubeadmCommands", []))] == before.get("preKubeadmCommands", [])
    changed = {name for name in {*before, *spec} if before.get(name) != spec.get(name)}
    assert changed <= {"files", "preKubeadmCommands", "postKubeadmCommands"}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_workers_have_no_pod(distribution: str) -> None:
    values = {"loadBalancer": balancer()}
    assert "kube-vip" not in str(patched(distribution, "bootstrap", "ConfigTemplate", values))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_nothing_on_harvester_forwards_to_the_control_plane(distribution: str) -> None:
    spec = patched(distribution, "infrastructure", "HarvesterClusterTemplate", {"loadBalancer": balancer()})
    assert spec["controlPlaneEndpoint"] == {"host": ADDRESS, "port": 6443}
    assert spec["loadBalancerConfig"] == {"ipamType": "none"}


@pytest.mark.parametrize(("is_first", "credentials"), [(True, "super-admin.conf"), (False, "admin.conf")])
def test_only_the_first_machine_of_kubeadm_takes_the_credentials_of_an_administrator(
    tmp_path: Path, is_first: bool, credentials: str
) -> None:
    """The commands run in a shell, below another root."""
    spec = server("kubeadm", loadBalancer=balancer())
    kubeconfig = pod_of("kubeadm", spec)["spec"]["volumes"][0]["hostPath"]["path"]
    link = tmp_path / kubeconfig.removeprefix("/")
    for folder in ("etc/kubernetes", "run/kubeadm"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run/kubeadm" / ("kubeadm.yaml" if is_first else "kubeadm-join-config.yaml")).touch()

    def run(commands: list[str]) -> str:
        for command in commands:
            below = command.replace(" /", f" {tmp_path}/")
            subprocess.run(["sh", "-c", below], check=True)
        return os.readlink(link)

    # Until kubeadm has written it, the link leads nowhere, and the kubelet waits.
    assert run(spec["preKubeadmCommands"]) == credentials
    assert not link.exists()
    assert run(spec["postKubeadmCommands"]) == "admin.conf"
    (tmp_path / "etc/kubernetes/admin.conf").touch()
    assert link.is_file()


@pytest.mark.parametrize(
    "settings",
    [
        {"interface": "eth0; reboot"},
        {"interface": "a-name-that-is-too-long"},
        {"image": "kube-vip\n    command: [sh]"},
        {"image": 'x" }'},
        {"image": ""},
    ],
)
def test_values_that_would_change_the_pod_are_refused(settings: Obj) -> None:
    (schema,) = (
        variable["schema"]["openAPIV3Schema"]
        for variable in the_class("rke2")["spec"]["variables"]
        if variable["name"] == "loadBalancer"
    )
    jsonschema.validate(balancer(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(balancer(**settings), schema)
