"""Text of objects in user data and network data means itself, whatever it looks like to YAML, Jinja or a shell."""

from __future__ import annotations

from dataclasses import replace

import jinja2
import pytest
import yaml

from reconciler.machine.cloudinit import userdata
from reconciler.machine.guest import STANDARD
from reconciler.machine.network import StaticAddress
from reconciler.machine.networkdata import networkdata

pytestmark = pytest.mark.unit

BOOTSTRAP = {
    "a template": '## template: jinja\n#cloud-config\nruncmd: ["echo {{ ds }}"]\n',
    "no template": "#cloud-config\nruncmd: [echo 1]\n",
}
HOSTILE = (
    *("{{ 7*7 }}", "{% raw %}", "{# c", "}}", "%}", "${HOME}", "$(id)", "a\n- b: c\nruncmd: [x]", "': \"", "# x", "*a"),
    *("\u2028x", "!!python/object:os.system x", "key: {{ ds.meta_data }}", "{{ cycler.__init__.__globals__ }}"),
)


@pytest.mark.parametrize("bootstrap", BOOTSTRAP.values(), ids=BOOTSTRAP)
@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_machine_means_itself_in_user_data(bootstrap: str, text: str) -> None:
    files = [{"path": "/x", "content": text, "permissions": "0600"}]
    guest = replace(STANDARD, user_data=yaml.safe_dump({"write_files": [{"path": text}], "timezone": text}))
    key = f"ssh-ed25519 {text}" if text.isprintable() else ""
    made = userdata(bootstrap, files=files, guest=guest, ssh_public_key=key)
    is_template = made.startswith("## template: jinja")
    assert is_template is bootstrap.startswith("##")
    # As cloud-init renders it.
    rendered = jinja2.Environment(autoescape=False).from_string(made).render(ds=1) if is_template else made
    value = yaml.safe_load(rendered)
    assert value["write_files"] == [*files, {"path": text}]
    assert value["timezone"] == text
    assert value.get("ssh_authorized_keys") == ([key] if key else None)
    assert value["runcmd"][-1] == "echo 1"


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_network_means_itself(text: str) -> None:
    address = StaticAddress(text, text, text, (text,), (text,))
    config = yaml.safe_load(networkdata(address, 2))["config"]
    assert config[0]["subnets"] == [{"type": "static", "address": text, "netmask": text, "gateway": text}]
    assert config[-1] == {"type": "nameserver", "address": [text], "search": [text]}
