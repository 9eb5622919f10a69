"""Clients for requests about credentials themselves."""

from __future__ import annotations

import pytest
import yaml

from caphv.api.object import NAMESPACES
from caphv.runtime.errors import Unreachable
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.harvester.sessions import Sessions
from tests.support import kubeconfigs

pytestmark = pytest.mark.unit


async def test_their_errors_tell_nothing_about_the_network() -> None:
    """Errors get into conditions, and a kubeconfig may name any server."""
    config = kubeconfigs.with_cluster(server="https://127.0.0.1:1")
    client = Sessions().client(parse_kubeconfig(yaml.safe_dump(config)))
    try:
        with pytest.raises(Unreachable) as caught:
            await client.get(NAMESPACES, "kube-system")
    finally:
        await client.close()
    assert "no API server can be reached there" in str(caught.value)
    assert "refused" not in str(caught.value)
