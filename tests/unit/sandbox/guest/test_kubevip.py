"""kube-vip of a simulated guest: what the classes write works, and what a real guest could not use fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.election import Timing
from sandbox.guest.cloudinit import File, GuestError, UserData
from sandbox.guest.kubevip import KubeVip, kube_vip_of
from tests.support.kubevip import ADDRESS, DISTRIBUTIONS, balancer, server

pytestmark = pytest.mark.unit


def user_data(spec: Obj, *, command: str = "kubeadm init --config /run/kubeadm/kubeadm.yaml") -> UserData:
    files = {file["path"]: File(file["path"], file["content"]) for file in spec["files"]}
    return UserData((), files, (*spec.get("preKubeadmCommands", ()), command))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_manifest_of_the_class_holds_the_address(distribution: str) -> None:
    spec = server(distribution, loadBalancer=balancer())
    assert kube_vip_of(user_data(spec)) == KubeVip(ADDRESS, "", "plndr-cp-lock", Timing(5.0, 3.0, 1.0))
    spec = server(distribution, loadBalancer=balancer(interface="eth1"))
    found = kube_vip_of(user_data(spec))
    assert found
    assert found.interface == "eth1"


def test_machines_of_kubeadm_that_join_use_the_same_manifest() -> None:
    spec = server("kubeadm", loadBalancer=balancer())
    assert kube_vip_of(user_data(spec, command="kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml"))


def test_guest_without_it_holds_nothing() -> None:
    path = "/etc/kubernetes/manifests/other.yaml"
    pod = {"kind": "Pod", "spec": {"containers": [{"name": "other"}]}}
    for content in (yaml.safe_dump(pod), "kind: ConfigMap", ""):
        assert kube_vip_of(UserData((), {path: File(path, content)})) is None
    assert kube_vip_of(UserData((), {})) is None


def without_type(pod: Obj) -> None:
    del pod["spec"]["volumes"][0]["hostPath"]["type"]


def another_kubeconfig(pod: Obj) -> None:
    pod["spec"]["volumes"][0]["hostPath"]["path"] = "/etc/other.conf"


def without_alias(pod: Obj) -> None:
    del pod["spec"]["hostAliases"]


def with_services(pod: Obj) -> None:
    set_variable(pod, "svc_enable", "true")


def without_address(pod: Obj) -> None:
    set_variable(pod, "address", "")


def slow_renewal(pod: Obj) -> None:
    set_variable(pod, "vip_renewdeadline", "5")


def set_variable(pod: Obj, name: str, value: str) -> None:
    (container,) = pod["spec"]["containers"]
    next(entry for entry in container["env"] if entry["name"] == name)["value"] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_type, "becomes a folder"),
        (another_kubeconfig, "/etc/other.conf"),
        (without_alias, "as kubernetes"),
        (with_services, "for Services"),
        (without_address, "Address cannot be empty"),
        (slow_renewal, "do not fit"),
    ],
)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_manifest_that_a_guest_could_not_use_fails(
    distribution: str, change: Callable[[Obj], None], message: str
) -> None:
    spec = server(distribution, loadBalancer=balancer())
    pod = yaml.safe_load(spec["files"][-1]["content"])
    change(pod)
    spec["files"][-1]["content"] = yaml.safe_dump(pod)
    with pytest.raises(GuestError, match=r"kube-vip\.yaml: "):
        kube_vip_of(user_data(spec))
    if change is another_kubeconfig and distribution == "kubeadm":
        return
    with pytest.raises(GuestError, match=message):
        kube_vip_of(user_data(spec))


def test_kubeadm_init_would_wait_for_the_address_with_the_credentials_of_joined_machines() -> None:
    spec = server("kubeadm", loadBalancer=balancer())
    pod = yaml.safe_load(spec["files"][-1]["content"])
    pod["spec"]["volumes"][0]["hostPath"]["path"] = "/etc/kubernetes/admin.conf"
    spec["files"][-1]["content"] = yaml.safe_dump(pod)
    with pytest.raises(GuestError, match=r"super-admin.conf"):
        kube_vip_of(user_data(spec))
    assert kube_vip_of(user_data(spec, command="kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml"))
