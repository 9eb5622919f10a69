"""Run scripts on machines, with the user's own SSH client, keys and known hosts."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import IO, cast

import click

from caphv.api.plaintext import one_line
from commands.errors import InputError

# No questions, which a step in the middle would wait for. The machines are those of tenants: root
# there must not use the user's keys, display or commands.
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=15",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
)
_LONGEST_LINE = 4096


def run_script(user: str, address: str, script: str) -> int:
    """Run a script as root, show what it prints, and return its exit status.

    Raises `InputError` without an SSH client.

    :param user: the user, who needs sudo without a password; empty for that of the SSH client
    :param address: the machine's IP address
    :param script: for `sh`, which reads it from its standard input
    """
    command = ["ssh", "-a", "-x", *(word for option in _OPTIONS for word in ("-o", option))]
    command += ["-l", user] if user else []
    command += [address, "sudo", "-n", "sh", "-s"]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise InputError(f"ssh cannot be run: {error}; run the steps by hand") from None

    with process:
        standard_input = cast("IO[bytes]", process.stdin)
        # The exit status says why the client reads nothing.
        with suppress(BrokenPipeError), standard_input:
            standard_input.write(script.encode())
        # A machine may print anything.
        while line := cast("IO[bytes]", process.stdout).readline(_LONGEST_LINE):
            text = one_line(line.decode(errors="replace")).rstrip()
            click.echo(f"  {text}", err=True)
        return process.wait()
