"""Commands run as they are printed, by a person at a terminal with kubeconfigs of both clusters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import shutil
import signal
import string
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caphv.api.remedies import Command
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file

SECONDS = 120.0
CAPHV = Path(sys.executable).parent

# What the fields of commands are filled with: a word, several words, or further options.
_WORD = r"[^\s,;]+?"
_FIELDS = {
    "clusters": rf"{_WORD}(?: {_WORD})*?",
    "options": rf"(?: --[a-z-]+ {_WORD})*",
    "pools": r"(?: --[a-z-]+)?",
    "scope": r"(?: -n \S+)?",
}


@dataclass
class Person:
    """A person who follows what is printed; `words` are what they fill in for words in capitals."""

    folder: Path
    management: ApiServer
    harvester: ApiServer
    words: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed")
        for name, server in self._servers().items():
            private_file(self.kubeconfig(name), pki.to_yaml(server.kubeconfig()))

    async def sees(self, command: str, *, status: int | None = None) -> str:
        """Run a command that prints remedies; answers its output."""
        code, output = await self._run(command, "management")
        assert status in (None, code), output
        return output

    async def follows(
        self, remedy: Command, output: str, *, on_harvester: bool = False, editor: str = "", options: str = ""
    ) -> str:
        """Run a command as an output has it, and answer questions with yes; answers what it prints.

        :param remedy: what is expected in the output
        :param output: what was printed: by a command, or in a condition
        :param on_harvester: whether it is for Harvester
        :param editor: a command that edits a file in place of the person
        :param options: what the text around the command tells to add to it
        """
        command = f"{printed_in(remedy, output)} {options}"
        for word, value in {"FILE": str(self.kubeconfig("harvester")), **self.words}.items():
            command = re.sub(rf"\b{word}\b", value, command)
        code, answer = await self._run(command, "harvester" if on_harvester else "management", editor=editor)
        assert code == 0, f"{command}: {answer}"
        return answer

    async def runs(self, command: str, *, on_harvester: bool = False) -> tuple[int, str]:
        """Run a command, and answer questions with yes; answers exit status and output."""
        return await self._run(command, "harvester" if on_harvester else "management")

    def _servers(self) -> dict[str, ApiServer]:
        return {"management": self.management, "harvester": self.harvester}

    def kubeconfig(self, name: str) -> Path:
        """Kubeconfig of an administrator of one of the clusters."""
        return self.folder / f"{name}.kubeconfig"

    async def _run(self, command: str, server: str, *, editor: str = "") -> tuple[int, str]:
        environment = {
            "PATH": f"{CAPHV}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.kubeconfig(server)),
            "KUBE_EDITOR": editor or "false",
            "NO_COLOR": "1",
            "COLUMNS": "300",
        }
        with terminal("y\n") as stdin:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-o", "pipefail", "-c", command),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(SECONDS):
                    output, _ = await process.communicate()
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"not within {SECONDS:.0f} s: {command}") from None
        return process.returncode or 0, output.decode()


@contextlib.contextmanager
def terminal(typed: str) -> Iterator[int]:
    """A terminal at which this was typed."""
    keyboard, screen = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        yield screen
    finally:
        os.close(keyboard)
        os.close(screen)


def printed_in(command: Command, output: str) -> str:
    """Return a command as an output has it, without what ends the sentence around it."""
    parts = [
        re.escape(text) + (_FIELDS.get(name, _WORD) if name is not None else "")
        for text, name, _, _ in string.Formatter().parse(command.template)
    ]
    match = re.search(rf"{''.join(parts)}(?=[.,;:)]*(?:\s|$))", output)
    assert match, f"{command}: not in: {output}"
    return match[0]
