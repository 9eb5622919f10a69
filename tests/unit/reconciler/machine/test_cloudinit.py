import base64
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.ownership import Owner
from reconciler.machine import dhclient
from reconciler.machine.cloudinit import cloud_init_secret, kubeconfig_file, userdata
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.network import StaticAddress
from reconciler.machine.networkdata import networkdata
from tests.support.reconciler.cloudinit import AGENT, BASE_PACKAGES, KEY, documents, load, render

pytestmark = pytest.mark.unit


def test_base_alone() -> None:
    text = userdata("", ssh_public_key=KEY)
    assert text.startswith("#cloud-config\n")
    assert load(text) == {
        "package_update": True,
        "packages": BASE_PACKAGES,
        "runcmd": [AGENT],
        "ssh_authorized_keys": [KEY],
    }


def test_lists_are_joined_base_first_and_other_keys_are_the_bootstrap_datas() -> None:
    data = load(
        userdata(
            "#cloud-config\n"
            "package_update: false\n"
            "hostname: node\n"
            "packages:\n  - curl\n"
            "runcmd:\n- install rke2\n- [systemctl, start, rke2]\n"
            "ssh_authorized_keys: [other]\n"
            "users:\n- name: extra\n"
            "groups: [staff]\n"
            "write_files:\n- path: /a\n  content: x\n",
            ssh_public_key=KEY,
        )
    )
    assert data == {
        "package_update": False,
        "hostname": "node",
        "packages": [*BASE_PACKAGES, "curl"],
        "runcmd": [AGENT, "install rke2", ["systemctl", "start", "rke2"]],
        "ssh_authorized_keys": [KEY, "other"],
        "users": [{"name": "extra"}],
        "groups": ["staff"],
        "write_files": [{"path": "/a", "content": "x"}],
    }


def test_bootstrap_text_is_kept_byte_for_byte() -> None:
    body = (
        "# a comment\n"
        "write_files:\n"
        "- path: /etc/a\n"
        "  permissions: '0644'\n"
        "  content: |\n"
        "    first\n"
        "      indented\n"
        "    \ttabs and trailing   \n"
        "    ünïcödé 🚀\n"
        "- {path: /b, permissions: 0600, content: yes}\n"
        "other: " + "long " * 1000 + "\n"
    )
    assert userdata("#cloud-config\n" + body).endswith(body)


@pytest.mark.parametrize(
    "body",
    [
        "runcmd:\n- a\n",
        "runcmd:\n  - a\n",
        "runcmd: [a]\n",
        "runcmd: # why\n- a\n",
        "runcmd: &anchor\n- a\n",
        "runcmd: &anchor [a]\n",
        "runcmd: [\n a ]\n",
        "---\nruncmd:\n- a",
        "# c\n---\nruncmd:\n- a\n...\n",
        "%YAML 1.1\n---\nruncmd: [a,]\n",
        "  runcmd:\n  - a\n",
        '{"runcmd": ["a"]}',
        '{"runcmd": ["a"], }\n',
        "--- {runcmd: [a]}\n",
        "\n\n#cloud-config\nruncmd:\n- a\n",
        "\r\nruncmd:\r\n- a\r\n",
        "x: |\n  a\u2028  b\nruncmd:\n- a\n",
        "runcmd:\n- overridden\nruncmd:\n- a\n",
    ],
)
def test_every_form_of_a_list_is_extended(body: str) -> None:
    data = load(userdata(body))
    assert data["runcmd"] == [AGENT, "a"]
    assert data["packages"] == BASE_PACKAGES


@pytest.mark.parametrize(
    "body",
    ["runcmd:\nx: 1\n", "runcmd: null\nx: 1", "x: 1\nruncmd: ~ # none\n", "x: 1\nruncmd:", '{"x": 1, "runcmd": null}'],
)
def test_an_empty_list_key_gets_the_base(body: str) -> None:
    data = load(userdata(body))
    assert data["runcmd"] == [AGENT]
    assert data["x"] == 1


@pytest.mark.parametrize("body", ["", "\n", "# only a comment\n", "---\n", "{}", "null\n", "#cloud-config"])
def test_empty_bootstrap_data(body: str) -> None:
    assert load(userdata(body)) == load(userdata(""))


class TestJinja:
    HEADER = "## template: jinja\n#cloud-config\n"

    def test_header_stays_first_line(self) -> None:
        assert userdata(self.HEADER + "a: 1\n").startswith(self.HEADER)

    def test_unquoted_expression_survives(self) -> None:
        text = userdata(self.HEADER + "hostname: {{ ds.meta_data.hostname }}\nruncmd: [{{ x }}]\n", ssh_public_key=KEY)
        data = render(text, ds={"meta_data": {"hostname": "node-1"}}, x="go")
        assert data["hostname"] == "node-1"
        assert data["runcmd"] == [AGENT, "go"]

    def test_quoting_around_an_expression_survives(self) -> None:
        text = userdata(self.HEADER + 'a: \'{{ v }}\'\nb: "{{ v }}"\nc: {{ v }}\nd: "{{ "x" }}"\n')
        assert "a: '{{ v }}'\nb: \"{{ v }}\"\nc: {{ v }}\n" in text
        data = render(text, v="0644")
        assert (data["a"], data["b"], data["c"], data["d"]) == ("0644", "0644", 0o644, "x")

    def test_block_scalar_survives_values_with_quotes(self) -> None:
        body = 'write_files:\n- path: /x\n  content: |\n    name: {{ v }}\n    \t"{{ v }}"  \n'
        data = render(userdata(self.HEADER + body), v="a\"b'c\\d")
        assert data["write_files"][0]["content"] == 'name: a"b\'c\\d\n\t"a"b\'c\\d"  \n'

    def test_data_of_rancher_keeps_its_installer(self) -> None:
        """Rancher (v2.15.0, `capr/bootstrap/controller.go`) serializes the user's cloud-config with its own entries."""
        script = base64.b64encode(gzip.compress(b"#!/bin/sh\nCATTLE_TOKEN=x\n")).decode()
        file = {
            "content": script,
            "encoding": "gzip+b64",
            "path": "/usr/local/custom_script/install.sh",
            "permissions": "0600",
        }
        body = (
            "runcmd:\n    - sh /usr/local/custom_script/install.sh\n    - echo {{ v1.local_hostname }}\n"
            f"write_files:\n    - content: {script}\n      encoding: gzip+b64\n"
            '      path: /usr/local/custom_script/install.sh\n      permissions: "0600"\n'
        )
        text = userdata(self.HEADER + body, ssh_public_key=KEY, files=kubeconfig_file("a: {{ no template }}"))
        data = render(text, v1={"local_hostname": "node-1"})
        assert data["runcmd"] == [AGENT, "sh /usr/local/custom_script/install.sh", "echo node-1"]
        assert data["write_files"][-1] == file
        assert data["write_files"][0]["content"] == "a: {{ no template }}"
        assert data["ssh_authorized_keys"] == [KEY]

    def test_statement_lines_survive(self) -> None:
        body = (
            "{% set z = 3 %}\n"
            "{% if big %}\n"
            "big: yes\n"
            "{% endif %}\n"
            "runcmd:\n"
            "{% if big %}\n"
            "- only when big\n"
            "{% endif %}\n"
            "- always {{ z }}\n"
            "write_files:\n"
            "- path: /x\n"
            "  content: |\n"
            "{% for i in range(2) %}\n"
            "    line {{ i }}\n"
            "{% endfor %}\n"
            "    end{# note #}\n"
        )
        text = userdata(self.HEADER + body, dhcp_interfaces=["eth0"], ssh_public_key="k {{ odd }} {%")
        assert render(text, big=True)["runcmd"] == [AGENT, "only when big", "always 3"]
        small = render(text, big=False)
        assert small["runcmd"] == [AGENT, "always 3"]
        assert "big" not in small
        assert "line 1\n" in small["write_files"][0]["content"]
        assert small["ssh_authorized_keys"] == ["k {{ odd }} {%"]
        assert len(small["bootcmd"]) == 2

    def test_statement_before_the_first_line_of_a_block_scalar(self) -> None:
        body = "write_files:\n- path: /x\n  content: |\n    {% if a %}\n    one\n    {% endif %}\n    two\n"
        text = userdata(self.HEADER + body)
        assert render(text, a=False)["write_files"][0]["content"] == "two\n"
        assert render(text, a=True)["write_files"][0]["content"] == "one\ntwo\n"

    def test_statement_within_a_line(self) -> None:
        text = userdata(self.HEADER + "runcmd:\n- {% if a %}x{% else %}y{% endif %}\n")
        assert render(text, a=False)["runcmd"] == [AGENT, "y"]

    def test_list_inside_a_block_is_refused(self) -> None:
        with pytest.raises(CloudInitError, match=r"runcmd .* Jinja block"):
            userdata(self.HEADER + "{% if a %}\nruncmd:\n- x\n{% endif %}\n")

    def test_without_header_nothing_is_a_template(self) -> None:
        body = "write_files:\n- content: '{{ not jinja }}'\n"
        text = userdata(body)
        assert text.startswith("#cloud-config\n")
        assert load(text)["write_files"] == [{"content": "{{ not jinja }}"}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("#!/bin/bash\necho s3cret\n", "shell script"),
        ("Content-Type: multipart/mixed; boundary=s3cret\n\nx", "MIME"),
        ('{"ignition": {"version": "3.4.0"}, "x": "s3cret"}', "Ignition"),
        ("variant: fcos\nversion: 1.4.0\nx: s3cret", "Butane"),
        ("#include\nhttps://s3cret\n", "URLs"),
        ("- s3cret\n", "not a mapping"),
        ("just s3cret\n", "not a mapping"),
        ("a: [s3cret\n", r"not valid YAML \(line"),
        ("a: {{ s3cret }}\n", "not valid YAML"),
        ("a: 1\n---\nb: s3cret\n", "not valid YAML"),
        ("runcmd: s3cret\n", "runcmd .* not a list"),
        ("runcmd: {s3cret: 1}\n", "runcmd .* not a list"),
        ("x: &x\n  runcmd: [s3cret]\n<<: *x\n", "merge key"),
        ("x: &x [s3cret]\nruncmd: *x\n", "cannot be extended safely"),
        ("a: !!python/object:os.system s3cret\n", "not valid YAML"),
        ("a: 2024-13-45 \n# s3cret\n", "not valid YAML"),
        ("a: \x00s3cret", "not valid YAML"),
    ],
)
def test_refusals_say_what_to_do_and_quote_nothing(data: str, words: str) -> None:
    with pytest.raises(CloudInitError, match=words) as caught:
        userdata(data)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(CloudInitError, match="aliases"):
        userdata("\n".join(lines))


def test_node_within_itself_is_refused() -> None:
    with pytest.raises(CloudInitError, match="aliases"):
        userdata("a: &a [*a]\n")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CloudInitError):
        userdata("a: " + "[" * 5000)


def test_harmless_aliases_are_kept() -> None:
    assert load(userdata("a: &a {x: 1}\nb: *a\n"))["b"] == {"x": 1}


def test_value_that_is_not_equal_to_itself() -> None:
    assert "a: .nan\n" in userdata("a: .nan\n")


def test_too_large() -> None:
    with pytest.raises(CloudInitError, match="larger than a Secret"):
        userdata("a: " + "x" * 1024 * 1024)


def test_key_of_several_lines_is_refused() -> None:
    with pytest.raises(CloudInitError, match="not one line"):
        userdata("", ssh_public_key="ssh-rsa A\nruncmd: [evil]")


def test_dhcp_part() -> None:
    commands = load(userdata("bootcmd:\n- mine\n", dhcp_interfaces=["eth0", "eth1"]))["bootcmd"]
    install, first, second, mine = commands
    assert mine == "mine"
    script = install.partition("<<'CAPHV'\n")[2].partition("CAPHV\n")[0]
    assert script.startswith("#!/bin/sh\n")
    path = install.partition("cat > ")[2].partition(" ")[0]
    for command, interface in ((first, "eth0"), (second, "eth1")):
        assert f"-sf {path} " in command
        assert command.endswith(f" {interface}")
    assert not any(mark in install for mark in ("{{", "{%", "{#"))


def test_dhcp_part_is_the_same_in_flow_style() -> None:
    block = load(userdata("bootcmd:\n- x\n", dhcp_interfaces=["eth0"]))
    assert load(userdata("{bootcmd: [x]}", dhcp_interfaces=["eth0"])) == block


@given(documents, st.sampled_from([None, True, False]), st.booleans())
def test_any_document_means_base_plus_itself(document: dict[str, Any], flow: bool | None, template: bool) -> None:
    body = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True, width=80)
    if template and any(mark in body for mark in ("{{", "{%", "{#")):
        template = False
    header = "## template: jinja\n#cloud-config\n" if template else "#cloud-config\n"
    text = userdata(header + body, ssh_public_key=KEY, dhcp_interfaces=["eth0"])
    base = load(userdata("", ssh_public_key=KEY, dhcp_interfaces=["eth0"]))
    expected = {**base, **document}
    expected |= {
        key: base[key] + document.get(key, []) for key in ("packages", "runcmd", "bootcmd", "ssh_authorized_keys")
    }
    assert text.startswith(header)
    assert load(text) == expected


def test_networkdata() -> None:
    address = StaticAddress("10.0.0.5", "255.255.0.0", "10.0.0.1", ("10.0.0.53", "1.1.1.1"), ("example.com",))
    assert load(networkdata(address, 2)) == {
        "version": 1,
        "config": [
            {
                "type": "physical",
                "name": "eth0",
                "subnets": [{"type": "static", "address": "10.0.0.5", "netmask": "255.255.0.0", "gateway": "10.0.0.1"}],
            },
            {"type": "physical", "name": "eth1", "subnets": [{"type": "dhcp"}]},
            {"type": "nameserver", "address": ["10.0.0.53", "1.1.1.1"], "search": ["example.com"]},
        ],
    }


def test_networkdata_without_name_servers() -> None:
    kinds = [
        part["type"] for part in load(networkdata(StaticAddress("10.0.0.5", "255.0.0.0", "10.0.0.1"), 1))["config"]
    ]
    assert kinds == ["physical"]


class TestSecret:
    OWNER = Owner("HarvesterMachine", "ns", "vm", "uid", "mgmt")

    def test_content(self) -> None:
        secret = cloud_init_secret(vm_name="vm", namespace="target", owner=self.OWNER, user_data="ü", network_data="n")
        assert json.loads(json.dumps(secret)) == secret
        assert secret["metadata"]["name"] == "vm-cloud-init"
        assert secret["metadata"]["namespace"] == "target"
        assert secret["metadata"]["annotations"]["caphv.io/owner"] == "HarvesterMachine/ns/vm"
        assert secret["data"] == {"userdata": "w7w=", "networkdata": "bg=="}

    def test_no_network_data_with_dhcp(self) -> None:
        secret = cloud_init_secret(vm_name="vm", namespace="target", owner=self.OWNER, user_data="u")
        assert set(secret["data"]) == {"userdata"}

    def test_sum_of_the_values_is_bounded(self) -> None:
        half = "x" * 600_000
        with pytest.raises(CloudInitError):
            cloud_init_secret(vm_name="v", namespace="t", owner=self.OWNER, user_data=half, network_data=half)


# The kubeconfig in the guest

CLOUD_CONFIG = "apiVersion: v1\nkind: Config\nusers:\n- {name: default, user: {token: '{{ x }}'}}\n"


@pytest.mark.parametrize(
    "bootstrap",
    [
        "#cloud-config\nruncmd: [echo]\n",
        "#cloud-config\nwrite_files:\n- path: /a\n  content: b\n",
        '#cloud-config\nwrite_files: [{"path": "/a", "content": "b"}]\n',
        "## template: jinja\n#cloud-config\nwrite_files:\n  - path: /a\n    content: b\n",
    ],
    ids=["no list", "block", "flow", "template"],
)
def test_files_are_written_next_to_those_of_the_bootstrap_data(bootstrap: str) -> None:
    text = userdata(bootstrap, files=kubeconfig_file(CLOUD_CONFIG))
    data = render(text, x="filled in") if text.startswith("##") else load(text)
    first, second, *others = data["write_files"]
    assert first["path"] == "/etc/kubernetes/cloud-config"
    assert (first["content"], first["permissions"]) == (CLOUD_CONFIG, "0600")
    # The CSI driver knows no other name.
    assert second == {**first, "path": "/etc/kubernetes/cloud-provider-config"}
    assert others == (yaml.safe_load(bootstrap).get("write_files") or [])


def test_a_template_that_cloud_init_would_refuse_names_line_and_mark() -> None:
    """CAPRKE2 and CAPK3s write templates, and a shell's length of a variable begins a comment."""
    data = "## template: jinja\n#cloud-config\nruncmd:\n- echo ${#HOME}\n"
    with pytest.raises(CloudInitError, match=r"Jinja template, and \{# in line 2, counted after its header"):
        userdata(data)
    assert "{#HOME}" in userdata(data.replace("## template: jinja\n", ""))


# The DHCP client of guests whose own one drops answers


def run_script(folder: Path, reason: str, *, answers: bool, **lease: str) -> tuple[int, list[str]]:
    """Run the script of dhclient with stubs of `ip` and `ping`; its exit status, and the commands that it ran."""
    install = dhclient.boot_commands(["eth0"])[0]
    text = install.partition("<<'CAPHV'\n")[2].partition("CAPHV\n")[0]
    (folder / "script").write_text(text)
    log = folder / "log"
    log.write_text("")
    for name, status in (("ip", 0), ("ping", 0 if answers else 1)):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\nexit {status}\n')
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "interface": "eth0", "reason": reason, **lease}
    done = subprocess.run(["/bin/sh", str(folder / "script")], env=environment, capture_output=True, check=False)
    assert done.stderr == b""
    return done.returncode, log.read_text().splitlines()


LEASE = {"new_ip_address": "10.0.0.7", "new_subnet_mask": "255.255.255.0", "new_routers": "10.0.0.1 10.0.0.2"}
SET, FLUSH = "ip -4 address replace 10.0.0.7/24 dev eth0", "ip -4 address flush dev eth0 scope global"
ROUTE = "ip -4 route add default via 10.0.0.1 dev eth0"


def test_recorded_lease_is_used_while_no_server_answers(tmp_path: Path) -> None:
    status, commands = run_script(tmp_path, "TIMEOUT", answers=True, **LEASE)
    assert (status, commands[0], commands[-1]) == (0, SET, ROUTE)
    status, commands = run_script(tmp_path, "TIMEOUT", answers=False, **{**LEASE, "new_routers": ""})
    assert (status, commands) == (0, [SET])


def test_recorded_lease_of_another_network_is_refused(tmp_path: Path) -> None:
    status, commands = run_script(tmp_path, "TIMEOUT", answers=False, **LEASE)
    assert (status, commands) == (1, [SET, "ping -q -c 1 -w 3 10.0.0.1", FLUSH])


def test_lease_of_a_server_needs_no_router_that_answers(tmp_path: Path) -> None:
    status, commands = run_script(tmp_path, "BOUND", answers=False, **LEASE)
    assert (status, commands[0], commands[-1]) == (0, SET, ROUTE)


def test_dhclient_does_not_give_up_when_no_server_answers() -> None:
    (_, request) = dhclient.boot_commands(["eth0"])
    assert " -1 " not in request
