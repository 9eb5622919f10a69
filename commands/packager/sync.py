"""`caphv packager sync`: a repository of cluster definitions becomes manifests and bundles, in one commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.main import CONTEXT_SETTINGS
from commands.options.clusters import InputError, Step, progress
from commands.options.repository import (
    commit_options,
    names_repository,
    open_store,
    prune_option,
    repository_options,
    source_options,
)

if TYPE_CHECKING:
    from packager.apply import Applier, Refused
    from packager.bundler import Store
    from packager.definitions.builder import Maker
    from packager.definitions.source import Reader, Source
    from packager.definitions.sync import Options, Outcome
    from packager.git.prune import Plan
    from packager.rendering.gitrepo import GitRepoOptions
    from packager.tree import Tree

DONE, FAULTY = 0, 1


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv packager sync --source-repo https://git.example.com/clusters.git --repo https://git.example.com/fleet.git
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --review caphv/clusters
                                                       from a folder, for a pull request
  caphv packager sync definitions/ --folder fleet/ --dry-run -o json
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --confirm team-a/old
                                                       and let the definition of a deleted cluster go

\b
Exit status: 0 done or nothing to do, 1 definitions that are wrong, or something that was held back or refused, 2
something cannot be read, or wrong usage.
""",
)
@click.argument("definitions", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@source_options
@repository_options
@commit_options
@prune_option
@click.option(
    "--confirm",
    "confirmed",
    multiple=True,
    metavar="NAMESPACE/NAME",
    help="Cluster whose definition is gone and whose end is meant; for each of them.",
)
@click.option("--no-bundles", is_flag=True, help="Write manifests only: a packager in the cluster sees to bundles.")
@click.option("--client-secret", default="", metavar="NAME", help="Secret with which Fleet reads the repository.")
@click.option("--chart-repo", default="", metavar="URL", help="Mirror of all charts, https://… or oci://….")
@click.option(
    "--templates",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with templates over the shipped ones.",
)
@click.option(
    "--interval",
    type=click.FloatRange(1, 86400),
    help="Go on: ask both repositories for new commits every so many seconds.  [default: sync once]",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--apply", "applied", is_flag=True, help="Apply the manifests to the management cluster.")
@click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster.")
@click.option("--context", default="", help="Context of that kubeconfig.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def sync(**flags: Any) -> None:
    """Turn cluster definitions into manifests and bundles, all of it in one commit that names its source.

    Definitions are files of kind ClusterDefinition, or plain manifests of Cluster API with one Cluster a file. One that
    is wrong is told by file and line, and keeps what it has; the others go on. Nothing goes while a file cannot be
    read, and a definition only when somebody confirms it: with --confirm, or with annotation caphv.io/confirm-removal
    before.

    Manifests are applied by Fleet on the management cluster, see `caphv packager gitrepo`, or with --apply.
    """
    logging.basicConfig(format="caphv packager: %(message)s", level=logging.WARNING)
    # What a commit changed and what was left is part of the output.
    logging.getLogger("packager.git.publish").setLevel(logging.ERROR)
    reader, maker, options = _reader(), _maker(flags), _options(flags)
    if not flags["interval"]:
        sys.exit(_once(flags, reader, maker, options))
    if not (flags["source_repo"] and flags["repo"]):
        raise click.UsageError("--interval needs --source-repo and --repo, which can be asked for their commits")
    seen: tuple[str, str] | None = None
    while True:
        try:
            now = _head(_source(flags)), _head(flags)
            if now != seen:
                _once(flags, reader, maker, options)
                # What was just pushed is no news.
                seen = now[0], _head(flags)
        except InputError as error:
            # Hosts come back, and what was not seen is seen then.
            click.echo(f"error: {error.message}", err=True)
        time.sleep(flags["interval"])


def _once(flags: dict[str, Any], reader: Reader, maker: Maker, options: Options) -> int:
    """Sync, tell what came of it, and return the exit status."""
    with progress() as step:
        files, origin = _files(flags, step)
        source = reader.read(files)
        with _target(flags) as store:
            step("reading the repository")
            outcome = _synced(source, origin, store, maker, options, dry_run=flags["dry_run"])
        if flags["applied"] and not flags["dry_run"]:
            step("applying manifests")
            refused = _apply(outcome, flags)
        else:
            refused = []
    _tell(outcome, refused, flags)
    plan = outcome.result.plan
    return FAULTY if outcome.made.errors or refused or plan.held or plan.refused else DONE


def _head(flags: dict[str, Any]) -> str:
    """Return the commit of a remote's branch, by one short exchange."""
    from packager.git.repository import Repository

    with open_store(flags) as store:
        return store.heads().target if isinstance(store, Repository) else ""


def _reader() -> Reader:
    from packager.definitions.source import Reader
    from webhooks import crossobject

    return Reader(crossobject.check)


def _maker(flags: dict[str, Any]) -> Maker:
    from packager.definitions.builder import Maker
    from packager.rendering.renderer import Options, Renderer

    try:
        renderer = Renderer(Options(flags["templates"], flags["chart_repo"]))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Maker(renderer, _git_repos(flags), bundles=not flags["no_bundles"])


def _git_repos(flags: dict[str, Any]) -> GitRepoOptions | None:
    from packager.rendering.gitrepo import GitRepoOptions

    try:
        return GitRepoOptions(
            flags["repo"], flags["branch"], folder=flags["inner"], client_secret_name=flags["client_secret"]
        )
    except ValueError as error:
        if flags["client_secret"]:
            raise click.UsageError(f"{error}; name the repository with --repo") from None
        # A folder, or an address that only this machine knows: whoever commits it knows the one that Fleet reads.
        return None


def _options(flags: dict[str, Any]) -> Options:
    from packager.definitions.sync import WHY, Options

    return Options(flags["max_prune"], flags["confirmed"], flags["message"] or WHY)


def _files(flags: dict[str, Any], step: Step) -> tuple[Tree, str]:
    """Return the files of the source by path, and what it is called in the commit."""
    from packager.definitions.source import manifests

    if bool(flags["definitions"]) == bool(flags["source_repo"]):
        raise click.UsageError("say where the definitions are: a folder, or --source-repo URL")
    if flags["definitions"]:
        step("reading definitions")
        return _of_folder(flags["definitions"]), flags["definitions"].name or "a folder"
    refuse_circles(flags)
    step("reading the source")
    with open_store(_source(flags)) as repository:
        snapshot = repository.sync()
        if not snapshot.commit:
            raise InputError(f"{flags['source_repo']} has no branch {flags['source_branch']}")
        return manifests(snapshot.tree), f"{flags['source_repo']}@{snapshot.commit}"


def _source(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the source as those of a repository."""
    return {
        "repo": flags["source_repo"],
        "branch": flags["source_branch"],
        "inner": flags["source_path"],
        "folder": None,
        "git_credentials": flags["source_credentials"] or flags["git_credentials"],
        "git_cache": flags["git_cache"] / "source" if flags["git_cache"] else None,
        "git_timeout": flags["git_timeout"],
    }


def _of_folder(folder: Path) -> Tree:
    from caphv.validation.yaml.loader import Unreadable, files

    try:
        return {Path(name).relative_to(folder).as_posix(): Path(name).read_bytes() for name, _ in files([str(folder)])}
    except (Unreadable, OSError) as error:
        raise InputError(str(error)) from None


def refuse_circles(flags: dict[str, Any]) -> None:
    """What is written must not be read as a definition the next time."""
    same = (flags["repo"], flags["branch"]) == (flags["source_repo"], flags["source_branch"])
    above, below = flags["source_path"].split("/"), flags["inner"].split("/")
    if same and (not flags["source_path"] or below[: len(above)] == above):
        raise click.UsageError("the source would hold what is written: give --source-path and --path two folders")


@contextlib.contextmanager
def _target(flags: dict[str, Any]) -> Iterator[Store]:
    from packager.definitions.sync import NAMES
    from packager.git.directory import Directory

    with open_store(flags, new=True) as store:
        yield (
            Directory(flags["folder"], flags["inner"], NAMES) if names_repository(flags) and flags["folder"] else store
        )


def _synced(source: Source, origin: str, store: Store, maker: Maker, options: Options, *, dry_run: bool) -> Outcome:
    from packager.definitions.sync import Outcome, plan_of, sync
    from packager.git.repository import Result

    if dry_run:
        made, plan = plan_of(source, store.sync(), maker, options)
        return Outcome(made, Result(plan, "", ""))
    return sync(source, origin, store, maker, options)


def _apply(outcome: Outcome, flags: dict[str, Any]) -> list[Refused]:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager.apply import Applier

    async def run() -> list[Refused]:
        client = ApiClient(await own_configuration(flags["kubeconfig"], flags["context"]), name="management")
        try:
            return await _applied(Applier(client), outcome)
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None


async def _applied(applier: Applier, outcome: Outcome) -> list[Refused]:
    from packager.definitions.files import MANIFESTS

    made = outcome.made
    refused = await applier.apply(await applier.missing(made.groups.values()))
    for key, objects in sorted(made.objects.items()):
        refused += await applier.apply(objects, namespace=key.namespace)
    for removal in outcome.result.plan.removed:
        if removal.definition and not removal.bundle:
            refused += await applier.delete_cluster(removal.folder.removeprefix(f"{MANIFESTS}/"))
    return refused


def _tell(outcome: Outcome, refused: list[Refused], flags: dict[str, Any]) -> None:
    from packager.rendering import yaml

    for problem in outcome.made.problems:
        click.echo(f"{'warning' if problem.advice else 'error'}: {problem}", err=True)
    for one in refused:
        click.echo(f"error: {one}", err=True)
    if flags["output"] == "table":
        click.echo("\n".join(_lines(outcome, flags)))
        return
    content = _content(outcome)
    if flags["output"] == "yaml":
        click.echo(yaml.dump(content), nl=False)
    else:
        import json

        click.echo(json.dumps(content, indent=2))


def _lines(outcome: Outcome, flags: dict[str, Any]) -> Iterator[str]:
    result = outcome.result
    for verb, names in _changes(result.plan):
        yield from (f"{verb} {name}" for name in names)
    if result.plan.is_empty:
        yield "nothing to do"
    elif flags["dry_run"]:
        yield "nothing was written: --dry-run"
    elif result.commit:
        yield f"pushed {result.commit[:12]} to {result.branch}"
    if not flags["applied"] and flags["repo"] and not result.plan.is_empty:
        yield f"Fleet applies the manifests: caphv packager gitrepo --repo {flags['repo']} | kubectl apply -f -"


def _changes(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    yield "added", list(plan.added)
    yield "changed", list(plan.changed)
    yield "removed", [str(removal) for removal in plan.removed]
    yield "left", [f"{one.what}: {one.why}" for one in (*plan.held, *plan.refused)]


def _content(outcome: Outcome) -> dict[str, Any]:
    made, result = outcome.made, outcome.result
    return {
        "commit": result.commit,
        "branch": result.branch,
        **dict(_changes(result.plan)),
        "clusters": [str(key) for key in sorted(made.objects)],
        "faulty": [str(key) for key in sorted(made.bad)],
        "problems": [
            {"file": one.file, "line": one.line, "message": one.message, "advice": one.advice} for one in made.problems
        ],
    }
