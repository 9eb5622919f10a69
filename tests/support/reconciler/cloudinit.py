"""Cloud-init data as a guest reads it, and any document of it."""

from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

KEY = "ssh-ed25519 AAAAC3Nza admin@example"
BASE_PACKAGES = ["qemu-guest-agent", "iptables"]
AGENT = ["systemctl", "enable", "--now", "qemu-guest-agent.service"]


def load(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def render(text: str, **values: Any) -> dict[str, Any]:
    jinja2 = pytest.importorskip("jinja2")
    first, _, rest = text.partition("\n")
    assert first == "## template: jinja"
    assert rest.startswith("#cloud-config\n")
    return load(
        jinja2.Template(rest, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True).render(
            **values
        )
    )


# Values as cloud-init data holds them; the emitter of the test picks the style.
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from(["0644", "yes", "on", "1e3", "12:30", "~", "", " x ", "#"])
) | st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), max_size=40)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=8
)
documents = st.dictionaries(
    st.sampled_from(["hostname", "package_update", "users", "write_files", "x"]), values, max_size=4
).flatmap(
    lambda plain: st.dictionaries(
        st.sampled_from(["packages", "runcmd", "bootcmd", "ssh_authorized_keys"]),
        st.lists(values, max_size=3),
        max_size=4,
    ).map(lambda lists: {**plain, **lists})
)
