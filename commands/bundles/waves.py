"""Request an upgrade in waves from the packager, for `caphv bundles upgrade --waves`.

The command only commits a file, which the packager follows. So a wave is reverted even if the
command ends or the laptop is closed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from caphv.api.counting import counted
from caphv.api.plaintext import printable
from commands.access.clusters import read_clusters
from commands.access.repository import open_store
from commands.bundles.common import DIFFERENT, DONE, BundleOptions, bundler_of, release_of
from commands.errors import CommandError, InputError
from commands.options.changes import Duration
from commands.output.progress import Step, progress

if TYPE_CHECKING:
    from packager.git.result import Result
    from packager.git.snapshot import Snapshot
    from packager.planning.commitplan import Store
    from packager.upgrade.request import Request
    from packager.upgrade.rollout import Rollout

_INTERVAL_SECONDS = 5.0
"""The time between two reads of the repository, each of which is a short request."""


@dataclass(frozen=True, kw_only=True)
class UpgradeOptions(BundleOptions):
    """Options for the clusters to upgrade, the release, and the waves."""

    count: int | None
    everything: bool
    waves: str
    gate: float | None
    packager: str
    wait: bool
    timeout: float
    stop: bool
    release: str
    dry_run: bool
    max_prune: int


class Gate(click.ParamType[float]):
    """The time in seconds that Fleet may take to report a wave ready, written as `ready=10m`."""

    name = "gate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the text. Raises `click.BadParameter`."""
        condition, equals, time = str(value).partition("=")
        if condition != "ready" or not equals:
            self.fail(f"{value!r} is not a gate such as ready=10m", param, ctx)
        return Duration().convert(time, param, ctx)


def check(options: UpgradeOptions) -> None:
    """Raise `click.UsageError` for options that exclude or need `--waves` or `--stop`."""
    if options.waves and options.stop:
        raise click.UsageError("--waves and --stop are mutually exclusive")
    if not (options.waves or options.stop):
        needy = {"--gate": "gate", "--wait": "wait", "--packager": "packager"}
        if useless := [name for name, key in needy.items() if getattr(options, key)]:
            raise click.UsageError(
                f"{', '.join(useless)} must be used with --waves, e.g. --waves canary,10%,rest"
            )
        return

    if options.waves:
        _require_gate(options)
    excluded = {
        "--count": "count",
        "--all": "everything",
        "--namespace": "namespace",
        "--force": "force",
        "files": "paths",
    }
    if options.stop:
        excluded |= {
            "--gate": "gate",
            "--selector": "selector",
            "--release": "release",
            "--dry-run": "dry_run",
        }
    if options.wait:
        excluded |= {"--wait with --review": "review", "--wait with --folder": "folder"}
        excluded |= {"--wait with --dry-run": "dry_run"}
    if wrong := [name for name, key in excluded.items() if getattr(options, key)]:
        raise click.UsageError(
            f"{', '.join(wrong)}: cannot be combined with "
            f"--{'waves' if options.waves else 'stop'}: the packager upgrades its clusters once "
            "the request is in the branch that Fleet reads"
        )


def _require_gate(options: UpgradeOptions) -> float:
    """Return the seconds that a wave may take. Raises `click.UsageError` without `--gate`."""
    if not options.gate:
        raise click.UsageError(
            "--waves needs --gate, e.g. --gate ready=10m: how long a wave may take to become ready"
        )
    return options.gate


def packager_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Return the name of a packager's share of the clusters. Raises `click.BadParameter`."""
    if name and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise click.BadParameter(
            f"{name!r} must be lower-case letters, digits and '-', as in the name of its Lease"
        )
    return name


def request_of(options: UpgradeOptions) -> Request:
    """Return the request that flags describe. Raises `click.BadParameter`, `click.UsageError`."""
    from packager.upgrade import request as upgrade_request
    from packager.upgrade import waves

    gate = _require_gate(options)
    try:
        names = waves.parse(options.waves)
        request = upgrade_request.Request(names, gate, options.release, options.selector)
        return upgrade_request.parse(request.as_data())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--waves, --gate, --selector") from None


def upgrade(options: UpgradeOptions) -> int:
    """Request an upgrade in waves, or show its waves; return the exit status."""
    from commands.output import bundles as out
    from packager.upgrade import request as upgrade_request
    from packager.upgrade import rollout, rolloutfile

    request = request_of(options)
    file = upgrade_request.file_of(options.packager)
    with progress() as step:
        target = release_of(bundler_of(options, step), request.release)
        if options.dry_run:
            _show(options, request, target, step)
            return DONE

        with open_store(options, more=(file, rolloutfile.status_file_of(file))) as store:
            step("reading the repository")
            result = _commit_request(store, options.message, file, request)
            if not options.wait:
                click.echo(out.PUSHED[options.output](result), nl=False)
                click.echo(
                    f"the packager follows {file}, and removes it at the end; to wait, add --wait",
                    err=True,
                )
                return DONE
            ended = _wait(store, request, file, time.monotonic() + options.timeout, step)

    click.echo(out.UPGRADED[options.output](ended), nl=False)
    is_whole = ended.state is rollout.State.COMPLETE and not ended.left_out
    return DONE if is_whole else DIFFERENT


def stop(options: UpgradeOptions) -> int:
    """Remove the request; return the exit status."""
    from commands.output import bundles as out
    from packager.upgrade import request as upgrade_request

    file = upgrade_request.file_of(options.packager)
    with progress() as step, open_store(options, more=(file,)) as store:
        step("reading the repository")
        result = _commit_request(store, options.message, file, None)
    click.echo(out.PUSHED[options.output](result), nl=False)
    return DONE


def _show(options: UpgradeOptions, request: Request, target: Any, step: Step) -> None:
    """Show the clusters of each wave."""
    from commands.output import bundles as out
    from packager.contents.inventory import wave
    from packager.upgrade.waves import split

    selected = read_clusters(options, step)
    with open_store(options) as store:
        step("reading the repository")
        chosen = store.read(
            lambda snapshot: wave(selected.clusters, snapshot.tree, target, None).chosen
        )
        waves = split(request.waves, chosen)
    click.echo(out.WAVES[options.output](waves, target), nl=False)


def _commit_request(store: Store, message: str, file: str, request: Request | None) -> Result:
    """Commit the file of a request, or its removal without a request.

    Nothing is committed if the repository is already in this state.
    """
    from packager.git.changeplan import Plan
    from packager.git.commit import Reason
    from packager.upgrade import request as upgrade_request

    content = upgrade_request.serialize(request) if request else None
    subject = "Stop the upgrade of add-ons"
    if request:
        subject = f"Upgrade add-ons in waves: {', '.join(request.waves)}"

    def plan(snapshot: Snapshot) -> Plan:
        if snapshot.read(file) == content:
            return Plan()
        if content is None:
            return Plan(delete=(file,), subject=subject)
        return Plan(write={file: content}, subject=subject)

    return store.commit(plan, Reason(message))


def _wait(store: Store, request: Request, file: str, deadline: float, step: Step) -> Rollout:
    """Wait for the end of an upgrade, and return it.

    Raises `CommandError` after the deadline, and if the upgrade is no longer requested.

    :param store: the repository
    :param request: the upgrade
    :param file: the file of the request
    :param deadline: the monotonic time until which to wait
    :param step: called with a description of each state
    """
    from packager.git.errors import AccessDenied, GitError, InvalidRemote, UnknownHost
    from packager.upgrade import request as upgrade_request

    state = "the packager has not started the upgrade"
    continues = failure = ""
    while True:
        try:
            content, rollout = store.read(
                lambda snapshot: (snapshot.read(file), _status(snapshot, file))
            )
            failure = ""
        except (AccessDenied, InvalidRemote, UnknownHost):
            raise
        except GitError as error:
            # The next read may succeed.
            failure = f"; the repository cannot be read: {error}"
        else:
            if content is not None and content != upgrade_request.serialize(request):
                raise CommandError(
                    f"{file} now requests another upgrade: stopped waiting for this one"
                )
            if rollout and rollout.request == request:
                if rollout.is_active:
                    count = counted(len(rollout.before), "cluster")
                    state = f"{printable(rollout.title)}, {count}"
                    continues = "; it continues"
                elif content is None:
                    # While the request file exists, a final status is that of an equal request.
                    return rollout
            elif content is None:
                # The packager removes a request in a commit with the status of its upgrade.
                raise CommandError(
                    f"{file} was removed before the packager started the upgrade: no cluster was "
                    "upgraded"
                )
            step(state)

        if time.monotonic() >= deadline:
            raise CommandError(
                f"timed out: {state}{continues}{failure}. Events of the packager's Lease "
                "say what it waits for"
            )
        time.sleep(_INTERVAL_SECONDS)


def _status(snapshot: Snapshot, file: str) -> Rollout | None:
    from packager.upgrade import rolloutfile

    status_file = rolloutfile.status_file_of(file)
    try:
        return rolloutfile.parse(snapshot.read(status_file))
    except ValueError as error:
        raise InputError(f"{status_file} is damaged: {error}") from None
