"""What a guest takes from the cloud-config of kubeadm's bootstrap provider, and what it misses there."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from sandbox.guest.cloudinit import GuestError, UserData, parse_user_data
from sandbox.guest.kubeadm import CONTROL_PLANE_TAINT, PKI, Kubeadm, hash_of, kubeadm_of
from sandbox.guest.kubeadmobjects import of_init, static_pods
from sandbox.processes.pki import CA

pytestmark = pytest.mark.unit

AUTHORITIES = {name: CA.create(name) for name in ("ca", "etcd/ca", "front-proxy-ca")}
PAIRS = {
    f"{PKI}/{name}.{end}": content.decode()
    for name, ca in AUTHORITIES.items()
    for end, content in (("crt", ca.certificate), ("key", ca.pair.key))
}
CERTIFICATES = {**PAIRS, f"{PKI}/sa.pub": "public", f"{PKI}/sa.key": "private"}
API = "kubeadm.k8s.io/v1beta4"
CLUSTER: Obj = {
    "apiVersion": API,
    "kind": "ClusterConfiguration",
    "controlPlaneEndpoint": "10.0.0.1:6443",
    "kubernetesVersion": "v1.36.2",
    "apiServer": {"certSANs": ["api.example.com"]},
}
REGISTRATION: Obj = {
    "name": "{{ ds.meta_data.local_hostname }}",
    "kubeletExtraArgs": [{"name": "node-labels", "value": "a=b,c=d"}, {"name": "cloud-provider", "value": "external"}],
}
INIT: Obj = {"apiVersion": API, "kind": "InitConfiguration", "nodeRegistration": REGISTRATION}
JOIN: Obj = {
    "apiVersion": API,
    "kind": "JoinConfiguration",
    "nodeRegistration": {**REGISTRATION, "taints": []},
    "discovery": {
        "bootstrapToken": {
            "apiServerEndpoint": "10.0.0.1:6443",
            "token": "abcdef.0123456789abcdef",
            "caCertHashes": [hash_of(AUTHORITIES["ca"].certificate)],
        }
    },
}


def user_data(action: str, documents: list[Obj], certificates: dict[str, str]) -> UserData:
    path = "/run/kubeadm/kubeadm.yaml"
    files = {**certificates, path: yaml.safe_dump_all(documents)}
    config = {
        "write_files": [{"path": name, "content": content} for name, content in files.items()],
        "runcmd": ["echo first", f"kubeadm {action} --config {path}  && echo success > /run/done", "echo 'last"],
    }
    return parse_user_data(f"## template: jinja\n#cloud-config\n{yaml.safe_dump(config, width=10_000)}", "first-cp-1")


def read(action: str, *documents: Obj, certificates: dict[str, str] = CERTIFICATES) -> Kubeadm:
    found = kubeadm_of(user_data(action, list(documents), certificates))
    assert found is not None
    return found


def test_init_has_configuration_authorities_and_node() -> None:
    run = read("init", CLUSTER, INIT)
    assert (run.host, run.port) == ("10.0.0.1", 6443)
    assert run.cluster == CLUSTER
    assert run.authority == AUTHORITIES["ca"]
    assert run.etcd == AUTHORITIES["etcd/ca"]
    assert (run.node.name, run.node.labels) == ("first-cp-1", {"a": "b", "c": "d"})
    assert run.node.taints == (CONTROL_PLANE_TAINT,)


def test_a_worker_joins_with_a_token_and_no_authority() -> None:
    run = read("join", JOIN, certificates={})
    assert (run.authority, run.etcd, run.cluster) == (None, None, None)
    assert run.hashes == (hash_of(AUTHORITIES["ca"].certificate),)
    assert run.node.taints == ()
    assert "0123456789abcdef" not in repr(run)


def test_a_further_control_plane_joins_with_authorities() -> None:
    run = read("join", {**JOIN, "controlPlane": {}})
    assert run.authority == AUTHORITIES["ca"]
    assert run.cluster is None


def test_arguments_of_older_releases_are_a_map() -> None:
    old = {**REGISTRATION, "kubeletExtraArgs": {"node-labels": "a=b"}}
    run = read("join", {**JOIN, "apiVersion": "kubeadm.k8s.io/v1beta3", "nodeRegistration": old}, certificates={})
    assert run.node.labels == {"a": "b"}


def test_guests_of_others_do_not_run_kubeadm() -> None:
    assert kubeadm_of(UserData((), {}, ("echo kubeadm init", "systemctl start rke2-server"))) is None


@pytest.mark.parametrize(
    ("action", "documents", "certificates", "missing"),
    [
        ("init", [INIT], CERTIFICATES, "ClusterConfiguration"),
        ("init", [{**CLUSTER, "kubernetesVersion": ""}, INIT], CERTIFICATES, "kubernetesVersion"),
        ("init", [CLUSTER, INIT], PAIRS, "sa.pub"),
        ("init", [CLUSTER, INIT], {}, "ca.crt"),
        ("join", [{**JOIN, "discovery": {}}], {}, "apiServerEndpoint"),
        ("join", [{**JOIN, "apiVersion": "v1"}], {}, "apiVersion"),
        ("join", [{**JOIN, "controlPlane": {}}], {}, "ca.crt"),
    ],
)
def test_what_is_missing_is_named(action: str, documents: list[Obj], certificates: Any, missing: str) -> None:
    with pytest.raises(GuestError, match=missing):
        kubeadm_of(user_data(action, documents, certificates))


@pytest.mark.parametrize("commands", [("kubeadm init",), ("kubeadm join --config /missing",)])
def test_commands_without_their_file_are_refused(commands: tuple[str, ...]) -> None:
    with pytest.raises(GuestError):
        kubeadm_of(UserData((), {}, commands))


def test_init_makes_what_joining_nodes_and_the_control_plane_provider_read() -> None:
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in of_init(CLUSTER, "10.0.0.1:6443", b"CA")}
    assert yaml.safe_load(found["ConfigMap", "kubeadm-config"]["data"]["ClusterConfiguration"]) == CLUSTER
    public = yaml.safe_load(found["ConfigMap", "cluster-info"]["data"]["kubeconfig"])
    assert public["clusters"][0]["cluster"]["server"] == "https://10.0.0.1:6443"
    assert public.keys() & {"users", "contexts", "current-context"} == set()
    assert found["DaemonSet", "kube-proxy"]["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v1.36.2")
    assert [pod["metadata"]["name"] for pod in static_pods("a", "v1.36.2")] == [
        "etcd-a",
        "kube-apiserver-a",
        "kube-controller-manager-a",
        "kube-scheduler-a",
    ]
