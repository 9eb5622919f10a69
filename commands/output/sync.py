"""How `caphv packager sync` prints what it did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from caphv.api import remedies
from commands.options.management import print_data
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.apply import ApplyFailure
    from packager.definitions.builder import BuildResult
    from packager.git.prune import Plan
    from packager.git.result import Result


def print_result(built: BuildResult, result: Result, failures: list[ApplyFailure], flags: dict[str, Any]) -> None:
    """Print what a sync did, in the format of flag `output`."""
    for problem in built.problems:
        echo(f"{'warning' if problem.advice else 'error'}: {problem}", err=True)
    for one in failures:
        echo(f"error: {one}", err=True)
    if flags["output"] == "table":
        for line in _lines(result, flags):
            echo(line)
        return
    print_data(_content(built, result), flags["output"])


def _lines(result: Result, flags: dict[str, Any]) -> Iterator[str]:
    from packager.diff import FOREIGN_FILE

    for verb, names in _changes(result.plan):
        yield from (f"{verb} {name}" for name in names)
    yield from (f"{name}: {', '.join(changes)}" for name, changes in result.plan.details.items())
    yield from (f"foreign {path} {FOREIGN_FILE}" for path in result.plan.foreign)
    if result.plan.is_empty:
        yield "nothing to do"
    elif flags["dry_run"]:
        yield "nothing was written: --dry-run"
    elif result.commit:
        yield f"pushed {result.commit[:12]} to {result.branch}"
    if result.merge_request:
        yield str(result.merge_request)
    if not flags["applied"] and flags["repo"] and not result.plan.is_empty:
        yield f"Fleet applies the manifests: {remedies.APPLY_GIT_REPO(repo=flags['repo'])}"


def _changes(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    yield "added", list(plan.added)
    yield "changed", list(plan.changed)
    yield "removed", [str(removal) for removal in plan.removed]
    yield "left", [f"{one.what}: {one.why}" for one in (*plan.held, *plan.refused)]


def _content(built: BuildResult, result: Result) -> dict[str, Any]:
    from commands.output.bundles import merge_request

    return {
        "commit": result.commit,
        "branch": result.branch,
        **merge_request(result),
        **dict(_changes(result.plan)),
        "foreign": list(result.plan.foreign),
        "settings": {name: list(changes) for name, changes in result.plan.details.items()},
        "clusters": [str(key) for key in sorted(built.objects)],
        "faulty": [str(key) for key in sorted(built.invalid)],
        "problems": [
            {"file": one.file, "line": one.line, "message": one.message, "advice": one.advice} for one in built.problems
        ],
    }
