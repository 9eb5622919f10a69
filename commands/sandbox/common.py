"""Shared parts of the `caphv sandbox` commands: options, error messages and progress."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sandbox.environment import Sandbox
    from sandbox.processes.gobuild import Report
    from sandbox.state import SandboxSettings

_Command = TypeVar("_Command", bound=Callable[..., Any])

BOOT_SECONDS = click.option(
    "--boot-seconds",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Boot time of a virtual machine, in seconds.",
)


def sandbox_options(command: _Command) -> _Command:
    """Add the options that select a sandbox: `name` and `folder`."""
    command = click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        help="Directory of the sandbox, instead of a name.",
    )(command)
    return click.option(
        "--name",
        metavar="NAME",
        help="Name of the sandbox.  [default: default]",
        callback=_check_name,
    )(command)


def _check_name(_ctx: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    if name is not None and not (
        name.replace("-", "").isalnum() and name.isascii() and name[0].isalnum()
    ):
        raise click.BadParameter(
            f"{name!r}: must consist of letters, digits and dashes, because it names a folder"
        )
    return name


def named_sandbox(
    name: str | None, folder: Path | None, settings: "SandboxSettings | None" = None
) -> "Sandbox":
    """Return the sandbox that `sandbox_options` select; it may not exist."""
    from sandbox.environment import Sandbox, default_folder

    if name and folder:
        raise click.UsageError("--name and --dir are mutually exclusive")
    return Sandbox(folder or default_folder(name or "default"), settings)


def running_sandbox(name: str | None, folder: Path | None) -> "Sandbox":
    """Return the existing sandbox of a name or folder; parts of it may have stopped."""
    box = named_sandbox(name, folder)
    if box.status()["status"] == "absent":
        options = selecting_options(name, folder)
        raise click.ClickException(
            f"no sandbox in {box.folder}: start it with `caphv sandbox up{options}`"
        )
    return box


def selecting_options(name: str | None, folder: Path | None) -> str:
    """Return the options that select the same sandbox in another command."""
    if folder:
        return f" --dir {shlex.quote(str(folder))}"
    return f" --name {name}" if name else ""


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn errors into a message and exit status 1."""
    from caphv.runtime.errors import ApiError, Unreachable
    from sandbox.environment import SandboxError
    from sandbox.processes.children import ProcessError
    from sandbox.processes.gobuild import BuildError
    from sandbox.processes.network import NoNetworkError

    try:
        yield
    except (
        ApiError,
        BuildError,
        NoNetworkError,
        OSError,
        ProcessError,
        SandboxError,
        Unreachable,
    ) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def build_report() -> Iterator["Report"]:
    """Show the progress of builds: bars on a terminal, otherwise occasional lines."""
    from sandbox.processes import binaries

    if not sys.stderr.isatty():
        yield binaries.plain_report(_print_build)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # Bars need a terminal, because they would write a line per step into a log.
    times = (
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def report(name: str, step: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=None)
            bars.update(
                tasks[name], description=f"{name}: {step}", completed=done, total=total or None
            )

        yield report


def _print_build(name: str, step: str, done: int, total: int) -> None:
    progress = ""
    if total:
        progress = f", {done} of {total} packages"
    elif done:
        progress = f", {done} so far"
    click.echo(f"{name}: {step}{progress}", err=True)


def print_part(part: str, seconds: float) -> None:
    """Print a line for a component that has started."""
    click.echo(f"  {part:<22} {seconds:5.1f} s")
