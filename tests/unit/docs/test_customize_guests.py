"""The manifests of the page on guests do what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.runtime.text import load_yaml_all
from reconciler.machine.cloudinit import userdata
from reconciler.machine.guest import guest_config
from reconciler.machine.vm import virtual_machine
from tests.support.paths import CHECKOUT
from tests.support.reconciler.cloudinit import load, render
from tests.support.reconciler.machines import inputs

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "tasks" / "customize-guests.md").read_text(encoding="utf-8")
BOOTSTRAP = "## template: jinja\n#cloud-config\nruncmd: [install]\nwrite_files: [{path: /etc/rancher, content: x}]\n"


def manifests() -> list[Obj]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    return [document for block in blocks for document in load_yaml_all(block)]


def guests() -> list[Obj]:
    return [manifest for manifest in manifests() if "guestConfig" in manifest]


def first_boot(spec: Obj) -> dict[str, Any]:
    """Render the cloud-config of a machine as its guest reads it."""
    written = userdata(BOOTSTRAP, guest=guest_config(spec))
    return render(written)


def file_of(data: dict[str, Any], path: str) -> str:
    (content,) = [file["content"] for file in data["write_files"] if file["path"] == path]
    return str(content)


def test_the_page_has_an_example_of_each() -> None:
    assert len(guests()) == 2


def test_macvlan_is_loaded_at_each_boot_and_at_the_first() -> None:
    data = first_boot(guests()[0])
    assert file_of(data, "/etc/modules-load.d/macvlan.conf") == "macvlan\n"
    assert ["modprobe", "macvlan"] in data["runcmd"]
    # The cluster is joined afterwards.
    assert data["runcmd"].index(["modprobe", "macvlan"]) < data["runcmd"].index("install")


def test_multipath_leaves_disks_of_vms_alone() -> None:
    data = first_boot(guests()[1])
    content = file_of(data, "/etc/multipath/conf.d/harvester.conf")
    assert content.count("{") == content.count("}") == 1
    pattern = re.search(r'devnode "(.*)"', content)
    assert pattern is not None
    for disk in ("sda", "sdab1", "vdb", "vda15"):
        assert re.search(pattern[1], disk), disk
    for other in ("dm-0", "nvme0n1", "mapper/mpatha"):
        assert not re.search(pattern[1], other), other
    assert ["systemctl", "try-restart", "multipathd.service"] in data["runcmd"]


@pytest.mark.parametrize("spec", guests())
def test_the_files_of_the_bootstrap_provider_stay(spec: Obj) -> None:
    data = first_boot(spec)
    assert file_of(data, "/etc/rancher") == "x"
    assert load(userdata("", guest=guest_config(spec)))["write_files"]


def test_the_migration_policy_selects_the_vms_of_a_pool() -> None:
    (policy,) = [manifest for manifest in manifests() if manifest.get("kind") == "MigrationPolicy"]
    selector = policy["spec"]["selectors"]["virtualMachineInstanceSelector"]
    namespace, _, name = selector["caphv.io/cluster"].partition(".")
    deployment = {"cluster.x-k8s.io/deployment-name": selector["cluster.x-k8s.io/deployment-name"]}
    machine = inputs(labels=deployment)
    machine = replace(machine, cluster=machine.cluster._replace(namespace=namespace, name=name))

    labels = virtual_machine(machine)["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    labels = virtual_machine(replace(machine, control_plane=True))["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items()
    assert labels["harvestercluster/machinetype"] == f"controlplane-{name}"
