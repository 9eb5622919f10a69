"""Print the result of `caphv packager sync`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from caphv.api import remedies
from caphv.api.counting import name_some
from caphv.api.object import key_of
from commands.output.data import print_data
from commands.output.echo import echo

if TYPE_CHECKING:
    from commands.packager.sync import SyncOptions
    from packager.definitions.apply import ApplyFailure
    from packager.definitions.buildresult import BuildResult
    from packager.git.changeplan import Plan
    from packager.git.result import Result


def print_result(
    built: BuildResult, result: Result, failures: list[ApplyFailure], options: SyncOptions
) -> None:
    """Print the result of a sync in the format of flag `output`."""
    for problem in built.problems:
        echo(f"{'warning' if problem.advice else 'error'}: {problem}", err=True)
    for failure in failures:
        echo(f"error: {failure}", err=True)
    if options.output == "text":
        for line in _lines(built, result, failures, options):
            echo(line)
        return
    print_data(options.output, **_fields(built, result))


def _lines(
    built: BuildResult, result: Result, failures: list[ApplyFailure], options: SyncOptions
) -> Iterator[str]:
    """Yield what a sync has changed in the repository and on the management cluster."""
    from packager.contents.diff import FOREIGN_FILE

    for verb, names in _changes(result.plan):
        yield from (f"{verb} {name}" for name in names)
    yield from (f"{name}: {', '.join(changes)}" for name, changes in result.plan.details.items())
    yield from (f"foreign {path} {FOREIGN_FILE}" for path in result.plan.foreign)
    is_applied = options.applied and not options.dry_run
    if result.plan.is_empty:
        yield "nothing to commit" if is_applied else "nothing to do"
    elif options.dry_run:
        yield "nothing was written: --dry-run"
    elif result.commit:
        yield f"pushed {result.commit[:12]} to {result.branch}"
    if result.merge_request:
        yield str(result.merge_request)
    if is_applied:
        yield from _applied(built, result.plan, failures)
    elif _fleet_can_read(options) and not result.plan.is_empty:
        yield f"Fleet applies the manifests: {_gitrepo_command(options)}"


def _fleet_can_read(options: SyncOptions) -> bool:
    """Whether Fleet applies what this sync pushes, once it has a GitRepo."""
    from packager.rendering.gitrepo import is_remote

    return bool(options.repo) and not options.applied and is_remote(options.repo)


def _gitrepo_command(options: SyncOptions) -> str:
    """Return the command that makes Fleet read the same folder of the same branch."""
    given = {
        "branch": options.branch if options.branch != "main" else "",
        "path": options.inner,
        "client-secret": options.client_secret,
    }
    words = "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)
    return remedies.APPLY_GIT_REPO(repo=shlex.quote(options.repo), options=words)


def _applied(built: BuildResult, plan: Plan, failures: list[ApplyFailure]) -> Iterator[str]:
    """Say which clusters `--apply` applied to the management cluster, and which it deletes."""
    if names := [str(key) for key in sorted(built.objects)]:
        exception = ", except what the errors name" if failures else ""
        yield f"applied the objects of {name_some(names)}{exception}"

    refused = {str(key_of(failure.obj)) for failure in failures}
    removed = [
        removal.folder.partition("/")[2]
        for removal in plan.removed
        if removal.definition and not removal.bundle
    ]
    if deleted := [name for name in removed if name not in refused]:
        yield f"asked for the deletion of {name_some([f'Cluster {name}' for name in deleted])}"


def _changes(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    yield "added", list(plan.added)
    yield "changed", list(plan.changed)
    yield "removed", [str(removal) for removal in plan.removed]
    yield "left", [f"{item.what}: {item.why}" for item in (*plan.held, *plan.refused)]


def _fields(built: BuildResult, result: Result) -> dict[str, Any]:
    """Return a sync as data."""
    from commands.output.bundles import commit_fields

    return {
        **commit_fields(result),
        "settings": {name: list(details) for name, details in result.plan.details.items()},
        "clusters": [str(key) for key in sorted(built.objects)],
        "faulty": [str(key) for key in sorted(built.invalid)],
        "problems": [
            {
                "file": problem.file,
                "line": problem.line,
                "message": problem.message,
                "advice": problem.advice,
            }
            for problem in built.problems
        ],
    }
