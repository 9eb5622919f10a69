"""A command on a terminal, as a person uses it: what it shows is awaited, and answers are typed."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tests.support.paths import CHECKOUT
from tests.support.waiting import PATIENCE


class Terminal:
    """A `caphv` command whose input, output and errors are one pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process, self._descriptor = process, descriptor
        self.shown = ""
        self._seen = 0

    def expect(self, text: str) -> str:
        """Wait until the command shows a text after what was expected before; answers what came up to its end."""
        end = time.monotonic() + PATIENCE
        while (found := self.shown.find(text, self._seen)) < 0:
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"{text!r} is not shown:\n{self.shown[self._seen :]}")
        begin, self._seen = self._seen, found + len(text)
        return self.shown[begin : self._seen]

    def answer(self, question: str, text: str) -> str:
        """Type a line when a question is shown; answers what was shown until then."""
        shown = self.expect(question)
        os.write(self._descriptor, f"{text}\n".encode())
        return shown

    def wait(self) -> int:
        """Read the rest, and return the exit status."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Read what is there within a second; false when the command has ended."""
        if not select.select([self._descriptor], [], [], 1.0)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the other side is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


@contextlib.contextmanager
def caphv(arguments: Sequence[str]) -> Iterator[Terminal]:
    """Run a command; it ends with the block."""
    master, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "TERM": "dumb", "COLUMNS": "120"}
    command = [sys.executable, "-P", "-m", "caphv", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
