"""Machine configurations of Talos, which are reported from cloud-config and reach the guest as they are."""

import pytest

from reconciler.machine.cloudinit import kubeconfig_file, userdata
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guest import STANDARD, GuestConfig
from reconciler.machine.talos import is_machine_config
from reconciler.machine.talos import userdata as machine_config

pytestmark = pytest.mark.unit

CONFIG = """\
version: v1alpha1 # Indicates the schema used to decode the contents.
debug: false
machine:
    type: controlplane
    token: s3cret.token
cluster:
    id: x
"""


@pytest.mark.parametrize(
    "text",
    [
        CONFIG,
        f"#!talos\n{CONFIG}",
        f"# generated\n\n{CONFIG}",
        f"\ufeff{CONFIG}".replace("\n", "\r\n"),
        f"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n---\n{CONFIG}",
        "machine: {}\nversion: 'v1alpha1'\n",
    ],
)
def test_machine_configurations_are_given_as_they_are(text: str) -> None:
    assert is_machine_config(text)
    assert machine_config(text, files=(), guest=STANDARD) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#cloud-config\nruncmd: []\n",
        f"#cloud-config\n{CONFIG}",
        f"## template: jinja\n#cloud-config\n{CONFIG}",
        f"#!/bin/sh\ncat <<EOF\n{CONFIG}EOF\n",
        "version: v1alpha1\nruncmd: []\n",
        "version: v1beta1\nmachine: {}\n",
        "write_files:\n- content: |\n    version: v1alpha1\n    machine: {}\n",
    ],
)
def test_other_data_is_none(text: str) -> None:
    assert not is_machine_config(text)


def test_what_only_cloud_config_can_do_is_refused_with_the_remedy() -> None:
    with pytest.raises(CloudInitError, match=r"userData is cloud-config, .* write a patch of the TalosConfig"):
        machine_config(CONFIG, files=(), guest=GuestConfig(user_data="#cloud-config\n"))
    with pytest.raises(CloudInitError, match="choose Secret"):
        machine_config(CONFIG, files=kubeconfig_file("x"), guest=STANDARD)
    # What has no meaning for Talos does no harm.
    assert machine_config(CONFIG, files=(), guest=GuestConfig(install_agent=False, disable_fstrim_timer=True)) == CONFIG


def test_cloud_config_is_what_it_was() -> None:
    assert "s3cret" in userdata("#cloud-config\nruncmd: [s3cret]\n")
