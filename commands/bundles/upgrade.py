"""`caphv bundles upgrade`: other versions of add-ons, in waves that continue when Fleet reports them ready."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.common import DIFFERENT, bundler_of, finish, output, release_of, render_options
from commands.main import CONTEXT_SETTINGS
from commands.options.changes import Duration
from commands.options.clusters import InputError, SelectedClusters, Step, cluster_options, progress, read_clusters
from commands.options.management import management_client, run
from commands.options.repository import commit_options, open_store, prune_option, repository_options

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.addons.gather import ClusterFacts
    from packager.addons.versions import Versions
    from packager.bundler import Bundler
    from packager.controller.fleet import ExpectedBundles, Report
    from packager.git.repository import Result
    from packager.planner import Planned, Store
    from packager.waves import Wave


class Gate(click.ParamType[float]):
    """`ready=10m`: how long Fleet may take to report a wave ready; the value is in seconds."""

    name = "gate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text. Raises `click.BadParameter`."""
        condition, equals, time = str(value).partition("=")
        if condition != "ready" or not equals:
            self.fail(f"{value!r} is not a gate such as ready=10m", param, ctx)
        return Duration().convert(time, param, ctx)


@click.command(
    context_settings=CONTEXT_SETTINGS,
    short_help="Change versions of add-ons, in waves.",
    epilog="""\b
Examples:
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git --dry-run
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git
  caphv bundles upgrade --count 10 --repo https://git.example.com/fleet.git --review caphv/upgrade
  caphv bundles upgrade --all --release 2026.11 --repo https://git.example.com/fleet.git
  caphv bundles upgrade --waves canary,10%,rest --gate ready=10m --repo https://git.example.com/fleet.git
                        one commit a wave: first clusters with label caphv.io/wave=canary, then a tenth, then the rest

\b
Exit status: 0 done or nothing to do, 1 clusters that cannot be rendered, or a wave that did not become ready and was
reverted, 2 unreadable input, or wrong usage.
""",
)
@cluster_options
@render_options
@repository_options
@commit_options
@click.option("--count", type=click.IntRange(1), help="Maximum number of clusters, in order of namespace and name.")
@click.option("--all", "everything", is_flag=True, help="All given clusters.")
@click.option(
    "--waves",
    metavar="WAVES",
    help="Several commits, e.g. canary,10%,rest: values of label caphv.io/wave, numbers, percentages. Needs --gate.",
)
@click.option(
    "--gate",
    type=Gate(),
    metavar="ready=TIME",
    help="Commit the next wave when Fleet reports one ready; revert it if that takes longer.",
)
@click.option("--release", default="", help="Release of the bundles, may be an older one.  [default: the newest]")
@click.option("--dry-run", is_flag=True, help="Show the differences, or the waves, without committing.")
@prune_option
@output("table", "json", "yaml")
def upgrade(**flags: Any) -> None:
    """Change the pinned versions of charts and templates: by --selector, by --count, in --waves, or --all.

    No other command changes pinned versions. Clusters outside of the wave are not touched. With --waves, the command
    reads Fleet's Bundles in the management cluster. A wave that does not become ready gets its former versions back in
    one commit, and the command stops. Run it again to continue: clusters that are upgraded already are left out.
    """
    _check(flags)
    with progress() as step:
        given = read_clusters(flags, step)
        bundler = bundler_of(flags, step)
        target = release_of(bundler, flags["release"])
        with open_store(flags) as store:
            step("reading the repository")
            work = _Upgrade(flags, given, bundler, store, target)
            if flags["waves"]:
                sys.exit(_in_waves(work, step))
            text, summary, planned, different = _at_once(work)
    from commands.output import bundles as out

    click.echo(text, nl=False, color=out.colour())
    click.echo(summary, err=True)
    finish(given, planned.batch, different=different)


def _check(flags: dict[str, Any]) -> None:
    from packager.waves import parse

    if not flags["waves"]:
        if flags["gate"]:
            raise click.UsageError("--gate needs --waves, e.g. --waves canary,10%,rest")
        if not (flags["selector"] or flags["count"] or flags["everything"]):
            raise click.UsageError("select clusters with --selector, --count, --waves or --all")
        return
    try:
        flags["waves"] = parse(flags["waves"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--waves") from None
    if not flags["gate"]:
        raise click.UsageError(
            "--waves needs --gate, e.g. --gate ready=10m: without it, the waves would follow at once"
        )
    excluded = {"--count": "count", "--all": "everything", "--review": "review", "--folder": "folder", "files": "paths"}
    if wrong := [name for name, key in excluded.items() if flags[key]]:
        raise click.UsageError(
            f"--waves cannot be combined with {', '.join(wrong)}: it follows commits through Fleet to the clusters of "
            "a management cluster"
        )


@dataclass
class _Upgrade:
    """What all waves share. `earlier` are the commits before the one that is awaited."""

    flags: dict[str, Any]
    given: SelectedClusters
    bundler: Bundler
    store: Store
    target: Versions
    earlier: set[str] = field(default_factory=set)

    def state(self, clusters: Iterable[ClusterFacts], pins: Mapping[Key, Versions]) -> Any:
        """Return what the planner needs to know to change these clusters alone."""
        from packager.git.prune import Pruning
        from packager.planner import ManagementState
        from packager.tree import CLUSTERS

        chosen = tuple(clusters)
        scope = {f"{CLUSTERS}/{facts.key}" for facts in chosen}
        pruning = Pruning(complete=not self.given.input.unreadable, budget=self.flags["max_prune"], scope=scope)
        return ManagementState(chosen, live=False, pruning=pruning, pins=pins)

    def push(self, clusters: Iterable[ClusterFacts], pins: Mapping[Key, Versions], why: str) -> tuple[Planned, Result]:
        """Commit other versions of these clusters."""
        from packager.git.commit import Reason
        from packager.planner import Planner, publish

        reason = Reason(" ".join(filter(None, (self.flags["message"], why))))
        return publish(self.store, Planner(self.bundler), self.state(clusters, pins), reason=reason)


def _at_once(work: _Upgrade) -> tuple[str, str, Planned, bool]:
    """Upgrade the clusters of one wave; return what to print, a summary, what was rendered, and whether parts wait."""
    from commands.output import bundles as out
    from packager.diff import diff_clusters
    from packager.inventory import wave
    from packager.planner import Planner

    flags, snapshot = work.flags, work.store.sync()
    chosen = wave(work.given.clusters, snapshot.tree, work.target, flags["count"])
    pins = {facts.key: work.target for facts in chosen.chosen}
    if flags["dry_run"]:
        planned = Planner(work.bundler).plan(snapshot, work.state(chosen.chosen, pins))
        plan = planned.plan
        form = "diff" if flags["output"] == "table" else flags["output"]
        text = out.DIFFERENCES[form](diff_clusters(planned.batch, plan, snapshot))
    else:
        why = "" if flags["message"] else f"Upgrade to release {work.target.release} of the bundles."
        planned, result = work.push(chosen.chosen, pins, why)
        text, plan = out.PUSHED[flags["output"]](result), result.plan
    return text, out.wave(chosen, work.target), planned, bool(plan.held or plan.refused)


def _in_waves(work: _Upgrade, step: Step) -> int:
    """Upgrade wave by wave, and return the exit status."""
    from commands.output import bundles as out
    from packager.inventory import pinned, wave
    from packager.waves import split

    snapshot = work.store.sync()
    outdated = wave(work.given.clusters, snapshot.tree, work.target, None)
    waves = split(work.flags["waves"], outdated.chosen)
    if work.flags["dry_run"] or not waves:
        click.echo(out.WAVES[work.flags["output"]](waves, work.target), nl=False)
        return 0
    done = []
    for number, one in enumerate(waves, 1):
        name = f"wave {number} of {len(waves)} ({one.name})"
        before = {facts.key: versions for facts in one.clusters if (versions := pinned(facts, snapshot.tree))}
        work.earlier.add(work.store.sync().commit)
        outcome = _wave(work, one, name, before, step)
        done.append(outcome)
        if work.flags["output"] == "table":
            click.echo(out.wave_line(outcome))
        if outcome["state"] != "ready":
            break
    if work.flags["output"] != "table":
        click.echo(out.WAVES_DONE[work.flags["output"]](done), nl=False)
    return 0 if done[-1]["state"] == "ready" else DIFFERENT


def _wave(work: _Upgrade, one: Wave, name: str, before: Mapping[Key, Versions], step: Step) -> dict[str, Any]:
    """Commit a wave, await Fleet, and revert the wave if it does not become ready. Return what happened."""
    release = work.target.release
    outcome = {"wave": one.name, "clusters": [str(facts.key) for facts in one.clusters], "problems": {}}
    # Before anything is committed: without the right to read Bundles, every wave would be reverted.
    _await(work, {}, 0, step, name)
    planned, result = work.push(
        one.clusters, dict.fromkeys(before, work.target), f"Upgrade to release {release}: {name}."
    )
    outcome |= {"commit": result.commit}
    failed = {
        str(bad.cluster): [str(found) for found in bad.findings if not found.advice] for bad in planned.batch.failed
    }
    failed |= {skipped.what: [skipped.why] for skipped in (*result.plan.held, *result.plan.refused)}
    if not failed:
        wanted = _expected(work, planned, result.head)
        waiting = _await(work, wanted, work.flags["gate"], step, name)
        if not waiting:
            return outcome | {"state": "ready"}
        failed = {str(key): list(report.problems) for key, report in waiting.items()}
    step(f"{name} is not ready: reverting it")
    work.earlier.add(result.head)
    _, reverted = work.push(one.clusters, before, f"Revert {name} of release {release}: it did not become ready.")
    return outcome | {"state": "reverted", "revert": reverted.commit, "problems": failed}


def _expected(work: _Upgrade, planned: Planned, commit: str) -> dict[Key, ExpectedBundles]:
    from packager.controller.fleet import expected_bundles

    return {
        rendered.cluster: expected_bundles(rendered, rendered.settings, commit, work.flags["inner"])
        for rendered in planned.batch.rendered
        if rendered.settings
    }


def _await(
    work: _Upgrade, wanted: Mapping[Key, ExpectedBundles], seconds: float, step: Step, name: str
) -> dict[Key, Report]:
    """Wait for Fleet; with nothing to wait for, check that its Bundles can be read."""
    from caphv.api.resources import FLEET_BUNDLES
    from caphv.runtime.errors import ApiError
    from packager.waves import until_ready

    async def wait() -> dict[Key, Report]:
        async with management_client(work.flags) as client:
            try:
                if not wanted:
                    await client.list(FLEET_BUNDLES, limit=1)
                return await until_ready(
                    client,
                    wanted,
                    lambda commit, _: commit in work.earlier,
                    seconds,
                    lambda ready: step(f"{name}: {ready} of {len(wanted)} clusters ready"),
                )
            except ApiError as error:
                raise InputError(f"Bundles of Fleet cannot be read in the management cluster: {error}") from None

    return run(wait())
