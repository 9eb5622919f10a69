"""Addresses in use on the simulated networks, and the TCP proxy in front of them."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.harvester.config import Host, SimulatorConfig
from sandbox.harvester.releases import NEWEST_STABLE, RELEASES
from sandbox.processes.proxy import TcpProxy

pytestmark = pytest.mark.unit

DHCP = "127.10.32.1-127.10.32.3"


def test_settings_replace_parts_of_the_world() -> None:
    world = SimulatorConfig.from_settings("127.10.0.0/16", {"boot_seconds": 9, "hosts": [{"name": "one", "cpu": 4}]})
    assert world.boot_seconds == 9
    assert world.hosts == (Host("one", cpu=4),)
    assert world.networks[0].gateway == "127.10.0.1"


def test_newest_stable_harvester_is_simulated_by_default() -> None:
    assert SimulatorConfig.from_settings("127.10.0.0/16").release == RELEASES[NEWEST_STABLE]
    assert SimulatorConfig.from_settings("127.10.0.0/16", {"harvester": "1.5"}).release.name == "1.5"


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        ("10.0.0.0/16", {}, "must have the form"),
        ("127.10.0.0/24", {}, "must have the form"),
        ("127.10.0.0/16", {"bot_seconds": 1}, "bot_seconds: unknown setting"),
        ("127.10.0.0/16", {"harvester": "1.3"}, "harvester: '1.3' is not simulated; use one of 1.5, "),
    ],
)
def test_wrong_settings_are_named(network: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatorConfig.from_settings(network, settings)


async def test_proxy_forwards_and_cuts_connections_of_a_lost_backend() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    backend = server.sockets[0].getsockname()
    holder = await asyncio.start_server(echo, "127.0.0.1", 0)
    listen = holder.sockets[0].getsockname()
    holder.close()
    await holder.wait_closed()
    proxy = TcpProxy(listen, [backend])
    await proxy.start()
    reader, writer = await asyncio.open_connection(*listen)
    sent = bytes(range(256)) * 20_000  # more than the buffers hold
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    proxy.set_backends([])
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readexactly(1)
    await proxy.close()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(*listen)
    server.close()
