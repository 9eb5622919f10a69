"""Whatever objects, servers and files say: a terminal gets text, in the line that it belongs to."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import commands
from caphv.api.object import Key
from caphv.api.plaintext import one_line, printable
from caphv.runtime.errors import ApiError, Conflict, Forbidden, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from commands.access.changes import apply_plan
from commands.access.management import run
from commands.errors import CommandError, InputError
from commands.generate_answers import Interview
from commands.options.management import ManagementOptions
from commands.output import bundles, capacity, changes, doctor, etcd, identities, overview, plan, pools, tree
from commands.output.data import data_text
from commands.output.echo import echo
from commands.output.text import Text
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.capacity.free import Capacity, CapacityObjects, Quota, Room
from operations.capacity.machinechanges import Action, Field, PoolEffect
from operations.capacity.needs import Need
from operations.capacity.surroundings import Surroundings
from operations.change.changes import Change, Patch
from operations.change.changes import Plan as ChangePlan
from operations.change.etcd import EtcdMember
from operations.change.plan.model import ClusterPlan, ObjectPlan, Shortcoming
from operations.change.plan.model import Plan as ManifestPlan
from operations.read.management import NoClusterApiError
from operations.read.objects import HarvesterObjects, Unseen
from operations.status.assembly import overview_of
from operations.status.check import Check, Result
from operations.status.identities import Identity
from operations.status.model import AddressPool, Cluster, Disk, Overview, VirtualMachine
from packager.definitions.flags import FLAGS
from packager.upgrade.request import Request
from packager.upgrade.rollout import Rollout, State
from tests.support.clusters import NOW, Builder

pytestmark = pytest.mark.unit

# Moves up a line and erases it, with ESC and with C1, shows the rest from right to left, and begins another line.
HOSTILE = "\x1b[1A\x1b[2K\x9b1A\x9b2K\u202e\x7f\x00\rforged\nforged\x85forged"
Output = Callable[[Callable[[], object]], str]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def hostile(value: Any) -> Any:
    """Return data with all of its plain text hostile; words that choose a style stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.name != "state"}
        return dataclasses.replace(value, **{name: hostile(each) for name, each in fields.items()})
    if type(value) is tuple:
        return tuple(map(hostile, value))
    return f"x{HOSTILE}" if type(value) is str else value


def everything() -> Overview:
    """A cluster with a problem and a VM, hostile throughout."""
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "lost", minutes=3)
    found = overview_of(builder.objects(), NOW)
    (cluster,) = found.clusters
    vm = VirtualMachine("vms", "cp-1", "Running", "host", disks=(Disk("disk", "1Gi"),), addresses=("10.0.0.1",))
    group = cluster.groups[0]
    machines = (dataclasses.replace(group.machines[0], vm=vm), *group.machines[1:])
    cluster = dataclasses.replace(cluster, groups=(dataclasses.replace(group, machines=machines), *cluster.groups[1:]))
    return hostile(dataclasses.replace(found, clusters=(cluster,), unseen=("Machines",)))  # type: ignore[no-any-return]


def the_cluster() -> Cluster:
    return everything().clusters[0]


def progress() -> None:
    shown = changes.Progress(to_stderr=False)
    shown.say(f"x{HOSTILE}")
    shown.problems(the_cluster())
    with contextlib.suppress(SystemExit):
        shown.give_up(f"x{HOSTILE}")


CHECKS = [hostile(Check("id", "Cluster", result, "message", "remedy")) for result in Result]
CHANGE = hostile(Change("Cluster", "spec.version", "v1", "v2"))
PATCH = Patch("v1", "Cluster", Key("team", "shop"), {}, (CHANGE,))
FIELD = Field("spec", "a", "b")
CLUSTER_PLAN = ClusterPlan(
    "team/shop",
    (PoolEffect(pool="md-0", before=3, after=0, replaced=1, surge=1, reasons=(FIELD,)),),
    (FIELD,),
    1,
    1,
    (Shortcoming("images", "value", "message", ("field",), "where"),),
    (Need(what="CPU", unit="", needed=1, free=2, note="n"),),
    ("why",),
)
MANIFESTS = hostile(
    ManifestPlan((ObjectPlan("Cluster team/shop", Action.CHANGE, (FIELD,), "error"),), (CLUSTER_PLAN,), ("Secrets",))
)
MEMBERS = [hostile(EtcdMember("a1", "member", "stale", "machine", "https://10.0.0.1:2380"))]
IDENTITY = hostile(Identity("team/identity", "https://harvester", "2026", ("team/shop",), state="valid"))
ENTRY = hostile(
    Entry(pool="machines", address="10.0.0.1", id="team/cp-1", verdict=Verdict.LEAKED, owner="owner", detail="detail")
)
REPORT = dataclasses.replace(
    hostile(
        PoolReport(harvester="https://harvester", name="machines", total=9, available=9, expected=8, error="error")
    ),
    entries=(ENTRY,),
)
ROOM = Room(name="host", hosts="zone", cpu=1, cpu_free=1, memory=2, memory_free=1, zone=2)
CAPACITY = hostile(
    Capacity(
        harvester="https://harvester",
        total=ROOM,
        hosts=(ROOM,),
        zones=(ROOM,),
        pools=(AddressPool("h", "pool", 2, 1),),
        quotas=(Quota("ns", "q", "cpu", 1, 0),),
    )
)

SHOWN: dict[str, Callable[[], object]] = {
    "status": lambda: overview.show(overview.console(), everything(), with_namespace=True, now=NOW),
    "tree": lambda: tree.show(overview.console(), [the_cluster()], conditions=True, now=NOW),
    "doctor": lambda: doctor.show(CHECKS, everything=True),
    "changes": lambda: changes.show(ChangePlan(Key("team", "shop"), (PATCH,), tuple(CHECKS))),
    "progress": progress,
    "plan": lambda: plan.show(MANIFESTS),
    "etcd": lambda: (etcd.show(MEMBERS), etcd.show_removal(MEMBERS, [HOSTILE])),
    "identities": lambda: identities.show(overview.console(), [IDENTITY]),
    "pools": lambda: (pools.show(overview.console(), [REPORT], only_wrong=False, now=NOW), pools.show_plan([REPORT])),
    "capacity": lambda: capacity.show([CAPACITY], hosts=True),
    "unseen": lambda: (overview.show_unseen(everything()), pools.show_unseen([Unseen(HOSTILE, HOSTILE)])),
    "echo": lambda: echo(f"x{HOSTILE}"),
}


class Terminal(io.StringIO):
    """Standard output that says what it is."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Output:
    """Answer what a call writes, to a terminal or a pipe."""
    monkeypatch.setenv("COLUMNS", "9000")
    monkeypatch.setenv("TERM", "xterm-256color")

    def written(call: Callable[[], object]) -> str:
        found = Terminal(terminal=request.param)
        with redirect_stdout(found), redirect_stderr(found):
            call()
        return found.getvalue()

    return written


def assert_harmless(text: str) -> None:
    lines = _COLOUR.sub("", text).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in lines if line.lstrip().startswith("forged")] == []


@pytest.mark.parametrize("name", SHOWN)
def test_no_command_passes_on_what_a_terminal_obeys(output: Output, name: str) -> None:
    text = output(SHOWN[name])
    assert "forged" in text
    assert_harmless(text)


def test_a_plan_shows_the_line_that_a_manifest_would_erase(output: Output) -> None:
    field = Field("metadata.annotations.description", "", "x\x1b[1A\x1b[2K")
    pool = PoolEffect(pool="md-0", before=3, after=0, reasons=(field,))
    text = output(lambda: plan.show(ManifestPlan(clusters=(ClusterPlan("team/shop", (pool,)),))))
    lines = _COLOUR.sub("", text).splitlines()
    assert "  - worker pool md-0: 3 machines are deleted (3 → 0)" in lines
    assert "      metadata.annotations.description: (none) → x\\u001b[1A\\u001b[2K" in lines


@pytest.mark.parametrize("kind", [CommandError, InputError])
def test_errors_of_commands_are_harmless_and_keep_their_lines(kind: type[CommandError]) -> None:
    first, second = kind("pr/a\x1b[2K.yaml: no\tobject", "pr/b\x9b.yaml:\nno object").format_message().split("\n")
    assert (first, second) == ("pr/a\\u001b[2K.yaml: no object", "pr/b\\u009b.yaml: no object")


async def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", HOSTILE),
        ApiError(500, "InternalError", HOSTILE),
        Unreachable(HOSTILE),
        KubeconfigError(HOSTILE),
        NoClusterApiError(HOSTILE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_server_says_stays_in_the_line_of_its_error(error: Exception) -> None:
    with pytest.raises(InputError) as caught:
        run(fails(error))
    assert "forged" in caught.value.format_message()
    assert caught.value.format_message().isprintable()


def test_a_conflict_stays_in_the_line_of_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def client(_flags: dict[str, Any]) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr("commands.access.changes.management_client", client)
    monkeypatch.setattr(
        "operations.change.patchwriter.write_patches", lambda *_: fails(Conflict(409, "Conflict", HOSTILE))
    )
    with pytest.raises(click.ClickException) as caught:
        apply_plan(ChangePlan(Key("team", "shop"), (PATCH,), ()), ManagementOptions())
    assert (caught.value.exit_code, "was modified meanwhile" in caught.value.format_message()) == (1, True)
    assert caught.value.format_message().isprintable()


def test_every_error_of_a_command_is_harmless() -> None:
    """The sandbox quotes no one: its servers are its own."""
    root = Path(commands.__file__).parent
    files = [file for file in root.rglob("*.py") if root / "sandbox" not in file.parents]
    assert [str(file) for file in files if "raise click.ClickException(" in file.read_text(encoding="utf-8")] == []


def test_lines_of_bundles_are_harmless() -> None:
    cluster = Key(HOSTILE, HOSTILE)
    upgrade = Rollout(HOSTILE, Request((HOSTILE,), 60.0), ((HOSTILE, (cluster,)),), State.REVERTED, wave=1)
    upgrade = dataclasses.replace(upgrade, problems={cluster: (HOSTILE,)}, left_out={cluster: (HOSTILE,)})
    assert_harmless(bundles.UPGRADED["text"](upgrade))


def test_data_has_escapes_of_its_own_form() -> None:
    text = data_text("json", items=[{"text": HOSTILE}])
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text) == {"items": [{"text": HOSTILE}]}
    text = data_text("yaml", items=[{"text": HOSTILE}])
    assert text.isascii()
    assert not {"\x1b", "\x00", "\x7f"} & set(text)
    assert yaml.safe_load(text) == {"items": [{"text": HOSTILE}]}


def test_text_keeps_what_is_readable() -> None:
    assert printable("a\u00e9→…✓ b") == "a\u00e9→…✓ b"
    assert printable("a\nb\u202e") == "a\\u000ab\\u202e"
    assert one_line("a\n\tb\x1b") == "a  b\\u001b"
    assert Text.assemble(("✗ ", "red"), "a\x1b").append("\nb").plain == "✗ a\\u001b b"


def test_questions_offer_only_names_that_can_be_shown() -> None:
    images = [
        {"metadata": {"namespace": "default", "name": name}, "spec": {"displayName": shown}}
        for name, shown in (("a", "sles\x1b[2K"), ("b", "sles-15"))
    ]
    given = {flag.name: "x" for flag in FLAGS} | {"--image": "", "--image-lookup": ""}

    @click.command()
    def ask() -> None:
        interview = Interview(given, lambda _path: None)
        interview.harvester = Surroundings(CapacityObjects(HarvesterObjects(images=images)))
        interview._check_harvester = lambda _flag, _text: None  # type: ignore[method-assign]
        interview.ask()
        click.echo(interview.answers["--image"])

    result = CliRunner().invoke(ask, input="1\n")
    assert result.output.splitlines()[-1] == "default/sles-15"
    assert_harmless(result.output)
