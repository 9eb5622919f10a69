"""Show the current step of a command."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from commands.output.echo import echo

Step = Callable[[str], None]
"""Called with a description of the current step."""

_PATIENCE_SECONDS = 1.0
_QUIET_SECONDS = 5.0


@contextlib.contextmanager
def patient_progress() -> Iterator[Step]:
    """Show the current step on a terminal if the work takes longer than a second."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console

    from commands.output.text import Text

    # A spinner that appears only for a moment flickers.
    status = Console(stderr=True).status("connecting …")
    timer = threading.Timer(_PATIENCE_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: status.update(Text(f"{text} …"))
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextlib.contextmanager
def progress() -> Iterator[Step]:
    """Show the current step: by a spinner on a terminal, otherwise by a line if it takes long."""
    if not sys.stderr.isatty():
        reported = time.monotonic()

        def report(text: str) -> None:
            nonlocal reported
            if time.monotonic() - reported > _QUIET_SECONDS:
                reported = time.monotonic()
                echo(f"{text} …", err=True)

        yield report
        return
    from rich.console import Console

    from commands.output.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(f"{text} …"))
