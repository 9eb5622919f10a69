"""Run a command in a container over a WebSocket, as `kubectl exec` does.

API servers of all versions pass protocol `v4.channel.k8s.io` on to the kubelet. Each binary message
starts with the number of its channel. The last message, on the error channel, is a Status with the
exit code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp

from caphv.api.object import PODS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from caphv.runtime.text import TextError, load_json

PROTOCOL = "v4.channel.k8s.io"
STDOUT = 1
STDERR = 2
STATUS = 3
_MAX_OUTPUT = 1024 * 1024
_MAX_SHOWN = 300


class ExecError(Exception):
    """The command failed or returned no valid status. The text ends with its last output."""


async def pod_exec(
    client: ApiClient,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    *,
    timeout: float,
) -> bytes:
    """Run a command and return its standard output.

    Raises `ExecError` if the command fails, `ApiError` if the API server refuses, and `Unreachable`
    if the connection breaks or `timeout` seconds are over.
    """
    path = PODS.path(namespace, pod, "exec")
    query = [
        ("container", container),
        ("stdout", "true"),
        ("stderr", "true"),
        *(("command", argument) for argument in command),
    ]

    program = command[0]
    output = {STDOUT: bytearray(), STDERR: bytearray(), STATUS: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout),
            client.websocket(path, query, protocol=PROTOCOL) as socket,
        ):
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data:
                    channel = message.data[0]
                    if channel in output:
                        output[channel] += message.data[1:]
                if sum(map(len, output.values())) > _MAX_OUTPUT:
                    raise ExecError(f"{program} in Pod {pod} printed more than {_MAX_OUTPUT} bytes")
    except TimeoutError:
        raise Unreachable(
            f"{client.server}: {program} in Pod {pod} did not end within {timeout:.0f} s"
        ) from None

    if not output[STATUS]:
        raise Unreachable(f"{client.server}: the connection to Pod {pod} broke")
    _check(program, pod, output)
    return bytes(output[STDOUT])


def _check(program: str, pod: str, output: dict[int, bytearray]) -> None:
    """Raise `ExecError` unless the command ended with success."""
    try:
        status = load_json(bytes(output[STATUS]))
        if status["status"] == "Success":
            return
        message = str(status.get("message") or "")
    except (TextError, KeyError, TypeError, AttributeError):
        message = "no valid exit status"
    stderr = output[STDERR].decode("utf-8", "replace").strip()[-_MAX_SHOWN:]
    raise ExecError(f"{program} in Pod {pod}: {message}{': ' if stderr else ''}{stderr}")
