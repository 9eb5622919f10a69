"""Bootstrap data that are no cloud-config."""

import base64
import gzip
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.names import ConditionType
from caphv.api.object import Key
from reconciler.blocked import Blocked
from reconciler.machine.bootstrap import bootstrap_data
from reconciler.machine.scope import MachineScope
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


def scope_of(**data: bytes) -> MachineScope:
    """The scope of a machine with a bootstrap Secret."""
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "team", "name": "data"}, "data": encoded}
    values: Any = {
        "machine": {"spec": {"bootstrap": {"dataSecretName": "data"}}},
        "key": Key("team", "m0"),
        "context": SimpleNamespace(client=MemoryServer(secret)),
        "failure": lambda message, source: Blocked(ConditionType.VM_PROVISIONING_READY, "Failed", message, source),
    }
    return cast("MachineScope", SimpleNamespace(**values))


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (
            {"value": gzip.compress(b"#cloud-config")},
            ("is compressed", "set gzipUserData of the bootstrap object to false"),
        ),
        ({"value": b"\xff\xfe"}, ("bootstrap Secret data: key value must hold cloud-config text in UTF-8",)),
        ({}, ("key value must hold cloud-config text",)),
        ({"value": b"{}", "format": b"ignition"}, ("format is 'ignition', not cloud-config",)),
    ],
)
async def test_data_that_are_no_cloud_config_are_refused_with_the_setting_to_change(
    data: dict[str, bytes], texts: tuple[str, ...]
) -> None:
    with pytest.raises(Blocked) as refusal:
        await bootstrap_data(scope_of(**data))
    assert [text for text in texts if text not in refusal.value.message] == []
    assert ("compressed" in refusal.value.message) == ("is compressed" in texts)


async def test_cloud_config_is_read() -> None:
    assert (
        await bootstrap_data(scope_of(value="#cloud-config\n# ü".encode(), format=b"cloud-config"))
        == "#cloud-config\n# ü"
    )
