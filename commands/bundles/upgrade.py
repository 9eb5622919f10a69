"""`caphv bundles upgrade`: other versions of add-ons, in waves that continue when Fleet reports them ready."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
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
    from packager import rollout
    from packager.addons.gather import ClusterFacts
    from packager.addons.versions import Versions
    from packager.bundler import Bundler
    from packager.controller.fleet import ExpectedBundles, Report
    from packager.git.result import Result
    from packager.planner import Planned, Store
    from packager.rollout import LeftOut, Outdated


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
    """What all waves share."""

    flags: dict[str, Any]
    given: SelectedClusters
    bundler: Bundler
    store: Store
    target: Versions

    def state(self, clusters: Iterable[ClusterFacts], pins: Mapping[Key, Versions]) -> Any:
        """Return what the planner needs to know to change these clusters alone."""
        from packager.git.prune import Pruning
        from packager.planner import ManagementState
        from packager.tree import CLUSTERS

        chosen = tuple(clusters)
        scope = {f"{CLUSTERS}/{facts.key}" for facts in chosen}
        pruning = Pruning(complete=not self.given.input.unreadable, budget=self.flags["max_prune"], scope=scope)
        return ManagementState(chosen, live=False, pruning=pruning, pins=pins)

    def step(self, find: Callable[[Outdated], rollout.Step | None]) -> rollout.Step | None:
        """Return what `find` finds, given which clusters can be upgraded; the others are left out."""
        from packager import rollout

        facts = {one.key: one for one in self.given.clusters}

        def fit(left_out: LeftOut) -> rollout.Step | None:
            outdated = rollout.outdated_in(self.store.sync(), facts, self.target)
            return rollout.noting(find(rollout.without(outdated, left_out)), left_out, outdated)

        return rollout.fitting(fit, self.unfit)

    def heads(self) -> set[str]:
        """Return the newest commits of the branch and of the branches of groups. Raises GitErrors."""
        self.store.sync()
        return self.store.commits()

    def unfit(self, wave: rollout.Step | None) -> LeftOut:
        """Return the clusters of a wave that cannot be upgraded now, each with the reasons."""
        from packager.planner import Planner

        if wave is None or not wave.rollout.is_active:
            return {}
        chosen = [facts for facts in self.given.clusters if facts.key in wave.pins]
        return _problems(Planner(self.bundler).plan(self.store.sync(), self.state(chosen, wave.pins)), wave.pins)

    def push(self, clusters: Collection[Key], pins: Mapping[Key, Versions], why: str) -> tuple[Planned, Result]:
        """Commit other versions of these clusters."""
        from packager.git.commit import Reason
        from packager.planner import Planner, publish

        reason = Reason(" ".join(filter(None, (self.flags["message"], why))))
        chosen = [facts for facts in self.given.clusters if facts.key in clusters]
        return publish(self.store, Planner(self.bundler), self.state(chosen, pins), reason=reason)


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
        planned, result = work.push(pins, pins, why)
        text, plan = out.PUSHED[flags["output"]](result), result.plan
    return text, out.wave(chosen, work.target), planned, bool(plan.held or plan.refused)


def _in_waves(work: _Upgrade, step: Step) -> int:
    """Upgrade wave by wave, and return the exit status."""
    from commands.output import bundles as out
    from packager import rollout
    from packager.inventory import wave
    from packager.waves import split

    snapshot = work.store.sync()
    waves = split(work.flags["waves"], wave(work.given.clusters, snapshot.tree, work.target, None).chosen)
    if work.flags["dry_run"] or not waves:
        click.echo(out.WAVES[work.flags["output"]](waves, work.target), nl=False)
        return 0
    done = []
    upgrade = rollout.begin(waves, work.target.release, work.flags["gate"])
    following = work.step(lambda outdated: rollout.next_wave(upgrade, outdated, work.target, time.time()))
    _report(following)
    while following and following.rollout.is_active:
        outcome, following = _wave(work, following, step)
        done.append(outcome)
        if work.flags["output"] == "table":
            click.echo(out.wave_line(outcome))
        _report(following)
    if work.flags["output"] != "table":
        left_out = rollout.messages(following.rollout.left_out) if following else []
        click.echo(out.WAVES_DONE[work.flags["output"]](done, left_out), nl=False)
    is_whole = following is not None and not following.rollout.left_out
    # Without a wave, another client has upgraded all clusters meanwhile.
    return 0 if is_whole and (not done or done[-1]["state"] == "ready") else DIFFERENT


def _report(following: rollout.Step | None) -> None:
    """Tell which clusters are not upgraded."""
    from caphv.api.plaintext import printable

    for key, why in sorted(following.left_out.items()) if following else ():
        click.echo(f"caphv bundles: {printable(f'cluster {key}: left out: ' + '; '.join(why))}", err=True)


def _wave(work: _Upgrade, wave: rollout.Step, step: Step) -> tuple[dict[str, Any], rollout.Step | None]:
    """Commit a wave, await Fleet, and revert the wave if it does not become ready. Return what happened and follows."""
    from packager import rollout
    from packager.controller.fleet import Report
    from packager.planner import unfit

    upgrade = wave.rollout
    # Before anything is committed: without the right to read Bundles, every wave would be reverted.
    _await(work, {}, (), step, upgrade)
    planned, result = work.push(upgrade.before, wave.pins, wave.why)
    outcome = {"wave": upgrade.name, "clusters": [str(key) for key in upgrade.before], "problems": {}}
    outcome |= {"commit": result.commit}
    # Only what has changed since the wave was chosen.
    failed = _problems(planned, upgrade.before)
    reports = {}
    if not failed:
        awaited = (result.head, *result.groups.values())
        waiting = _await(work, _expected(work, planned, result), awaited, step, upgrade)
        reports = {key: waiting.get(key, Report(())) for key in upgrade.before}
    # All are ready, or the gate's time is over.
    now = max(time.time(), upgrade.since + upgrade.gate)
    following = work.step(
        lambda outdated: rollout.advance(upgrade, outdated, reports, work.target, now=now, failed=failed)
    )
    if following is None or following.rollout.state is not rollout.State.REVERTED:
        return outcome | {"state": "ready"}, following
    step(f"{upgrade.title} is not ready: reverting it")
    planned, reverted = work.push(upgrade.before, following.pins, following.why)
    following = rollout.keeping(following, unfit(planned, following.pins))
    problems = {str(key): [*found] for key, found in following.rollout.problems.items()}
    return outcome | {"state": "reverted", "revert": reverted.commit, "problems": problems}, following


def _problems(planned: Planned, keys: Collection[Key]) -> dict[Key, tuple[str, ...]]:
    """Return the clusters that a commit would not upgrade completely, each with the reasons."""
    from caphv.api.object import Key
    from packager.planner import unfit

    found = unfit(planned, keys)
    for held in planned.plan.held:
        key = Key(*held.what.split("/")[1:3])
        found[key] = (*found.get(key, ()), f"{held.what}: {held.why}")
    return {key: why for key, why in found.items() if key in keys}


def _expected(work: _Upgrade, planned: Planned, result: Result) -> dict[Key, ExpectedBundles]:
    from packager.controller.fleet import expected_bundles

    return {
        rendered.cluster: expected_bundles(
            rendered, rendered.settings, result.head_of(rendered.branch), work.flags["inner"]
        )
        for rendered in planned.batch.rendered
        if rendered.settings
    }


def _await(
    work: _Upgrade,
    wanted: Mapping[Key, ExpectedBundles],
    awaited: Collection[str],
    step: Step,
    upgrade: rollout.Rollout,
) -> dict[Key, Report]:
    """Wait for Fleet; with nothing to wait for, check that its Bundles can be read."""
    from caphv.api.resources import FLEET_BUNDLES
    from caphv.runtime.errors import ApiError
    from packager.waves import CommitOrder, until_ready

    order = CommitOrder(awaited, work.heads)

    async def wait() -> dict[Key, Report]:
        async with management_client(work.flags) as client:
            try:
                if not wanted:
                    await client.list(FLEET_BUNDLES, limit=1)
                return await until_ready(
                    client,
                    wanted,
                    order.may_be_before,
                    upgrade.gate,
                    lambda ready: step(f"{upgrade.title}: {ready} of {len(wanted)} clusters ready"),
                )
            except ApiError as error:
                raise InputError(f"Bundles of Fleet cannot be read in the management cluster: {error}") from None

    return run(wait())
