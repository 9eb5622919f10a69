"""What `spec.guestConfig` of a machine adds to its cloud-init data."""

import itertools
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.machine.cloudinit import userdata
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guest import guest_config
from tests.support.reconciler.cloudinit import AGENT, BASE_PACKAGES, documents, load, render

pytestmark = pytest.mark.unit

JOINED = ("packages", "runcmd", "ssh_authorized_keys", "groups", "users", "write_files", "bootcmd")
FSTRIM = ["systemctl", "disable", "--now", "fstrim.timer"]


def extra(text: str, bootstrap: str = "#cloud-config\n") -> dict[str, Any]:
    return load(userdata(bootstrap, guest=guest_config({"guestConfig": {"userData": text}})))


def test_guest_agent_can_be_left_to_the_image() -> None:
    data = load(userdata("", guest=guest_config({"guestConfig": {"installGuestAgent": False}})))
    assert data == {"package_update": True, "packages": ["iptables"]}


@pytest.mark.parametrize("found", [{}, {"guestConfig": {}}, {"guestConfig": {"installGuestAgent": True}}])
def test_guest_is_as_ever_without_wishes(found: dict[str, Any]) -> None:
    assert userdata("", guest=guest_config(found)) == userdata("")


def test_fstrim_timer_can_be_turned_off() -> None:
    data = load(userdata("runcmd: [date]\n", guest=guest_config({"guestConfig": {"disableFstrimTimer": True}})))
    assert data["runcmd"] == [AGENT, FSTRIM, "date"]


def test_extra_user_data_ranks_between_base_and_bootstrap_data() -> None:
    text = "#cloud-config\npackages: [jq]\npackage_update: false\ntimezone: UTC\nntp: {servers: [a, b]}\n"
    data = extra(text, "#cloud-config\npackages: [vim]\ntimezone: Europe/Berlin\n")
    assert data["packages"] == [*BASE_PACKAGES, "jq", "vim"]
    assert data["package_update"] is False
    assert data["timezone"] == "Europe/Berlin"
    assert data["ntp"] == {"servers": ["a", "b"]}


def test_lists_of_other_keys_are_not_joined() -> None:
    assert extra("mounts: [[a, b]]\n", "#cloud-config\nmounts: [[c, d]]\n")["mounts"] == [["c", "d"]]
    assert extra("mounts: [[a, b]]\n")["mounts"] == [["a", "b"]]


def test_extra_user_data_means_the_same_next_to_a_template() -> None:
    files = "write_files:\n- path: /a\n  content: |\n    {{ not.a.template }} {% x %}\n    ${#y}\n"
    text = f"{files}runcmd:\n- |\n  echo {{{{ x }}}}\n"
    bootstrap = "## template: jinja\n#cloud-config\nhostname: '{{ name }}'\n"
    written = userdata(bootstrap, guest=guest_config({"guestConfig": {"userData": text}}))
    data = render(written, name="one")
    assert data["hostname"] == "one"
    assert data["write_files"] == yaml.safe_load(text)["write_files"]
    assert data["runcmd"][-1] == "echo {{ x }}\n"


def test_dates_stay_text() -> None:
    assert str(extra("users: [{name: a, expiredate: 2030-01-01}]\n")["users"][0]["expiredate"]) == "2030-01-01"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\nsecret\n", "a shell script"),
        ("## template: jinja\n#cloud-config\na: secret\n", "a Jinja template"),
        ("- secret\n", "not a mapping"),
        ("a: [secret\n", "not valid YAML (line"),
        ("secret: !!binary c2VjcmV0\n", "bytes"),
        ("x: .nan\n", "not finite"),
        ("1: secret\n", "not valid in cloud-config"),
        ("packages: secret\n", "packages of spec.guestConfig.userData is not a list"),
    ],
)
def test_extra_user_data_that_cannot_be_used_is_refused_by_its_field(text: str, words: str) -> None:
    with pytest.raises(CloudInitError) as caught:
        extra(text)
    assert "spec.guestConfig.userData" in str(caught.value)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@given(documents, documents, st.sampled_from([None, True]), st.booleans())
@example(lower={"users": []}, higher={"users": None, "packages": []}, flow=None, template=False)
def test_any_two_documents_are_joined(
    lower: dict[str, Any], higher: dict[str, Any], flow: bool | None, template: bool
) -> None:
    body = yaml.safe_dump(higher, default_flow_style=flow, allow_unicode=True)
    if any(mark in body for mark in ("{{", "{%", "{#")):
        template = False
    header = "## template: jinja\n#cloud-config\n" if template else "#cloud-config\n"
    text = yaml.safe_dump(lower, allow_unicode=True)
    try:
        written = userdata(header + body, guest=guest_config({"guestConfig": {"userData": text}}))
    except CloudInitError as error:
        # The one thing that two sources can disagree in: a list and something else under one key.
        assert "is not a list" in str(error)  # noqa: PT017
        return
    base = load(userdata(""))
    expected = {**base, **{key: value for key, value in lower.items() if key not in JOINED or value is not None}}
    expected |= higher
    for key in JOINED:
        # A key without a value counts as an empty list.
        lists = [part[key] for part in (base, lower, higher) if part.get(key) is not None]
        if lists and all(isinstance(part, list) for part in lists):
            expected[key] = [*itertools.chain(*lists)]
    assert (render(written) if template else load(written)) == expected
