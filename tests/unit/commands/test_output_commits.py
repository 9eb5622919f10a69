"""What `caphv bundles` and `caphv packager sync` write about commits and differences, line by line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from caphv.api.object import Key
from caphv.validation.finding import Fault, Finding
from commands.access.clusters import SelectedClusters
from commands.output import bundles
from commands.output.sync import print_result
from packager.addons.inputs import Input
from packager.addons.settings import settings_of
from packager.addons.versions import load_table as versions
from packager.contents.diff import FOREIGN_FILE, ClusterDiff, FileChange, State
from packager.contents.inventory import UpgradeWave
from packager.definitions.apply import ApplyFailure
from packager.definitions.buildresult import BuildResult
from packager.git.changeplan import Plan
from packager.git.mergerequest import MergeRequest
from packager.git.pruning import Removal, Skipped
from packager.git.result import Result
from packager.rendering.bundler import Batch
from packager.rendering.rendered import TEMPLATE_RULE, Rendered
from packager.upgrade.waves import Wave
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit

PLAN = Plan(
    write={"clusters/team/a/x": b"", "clusters/team/b/x": b""},
    delete=("clusters/team/c/x",),
    added=("clusters/team/a",),
    changed=("clusters/team/b",),
    removed=(Removal("clusters/team/c", "", ("x",)),),
    held=(Skipped("clusters/team/d", "exceeds the budget"),),
    refused=(Skipped("clusters/team/e", "is a file"),),
    foreign=("clusters/team/f/y",),
    details={"team/b": ("mtu none→1400", "hubble on")},
)
RESULT = Result(
    PLAN,
    "0" * 40,
    "main",
    commit="0123456789abcdef",
    merge_request=MergeRequest("caphv/x", "https://git.example.com/1", is_open=True),
)
NOTHING = Result(Plan(), "0" * 40, "main")


def lines(text: str) -> list[str]:
    return click.unstyle(text).splitlines()


# caphv bundles push


def test_a_push_names_all_that_it_did_and_left() -> None:
    assert lines(bundles.PUSHED["text"](RESULT)) == [
        "commit 0123456789ab on main: 2 written, 1 removed",
        "  added   clusters/team/a",
        "  changed clusters/team/b",
        "  removed clusters/team/c",
        "  left    clusters/team/d: exceeds the budget",
        "  left    clusters/team/e: is a file",
        f"  foreign clusters/team/f/y {FOREIGN_FILE}",
        "  review  merge https://git.example.com/1",
    ]
    assert bundles.PUSHED["text"](NOTHING) == "nothing changed\n"
    assert lines(bundles.PUSHED["text"](replace(NOTHING, plan=Plan(delete=("x",))))) == [
        "wrote files: 0 written, 1 removed"
    ]


def test_data_of_a_push_has_the_same() -> None:
    assert json.loads(bundles.PUSHED["json"](RESULT)) == {
        "commit": "0123456789abcdef",
        "branch": "main",
        "mergeRequest": {"address": "https://git.example.com/1", "open": True},
        "files": {"written": ["clusters/team/a/x", "clusters/team/b/x"], "removed": ["clusters/team/c/x"]},
        "items": [
            {"name": "clusters/team/a", "change": "added", "wrong": False},
            {"name": "clusters/team/b", "change": "changed", "wrong": False},
            {"name": "clusters/team/c", "change": "removed", "wrong": False},
            {"name": "clusters/team/d", "change": "left", "wrong": True, "why": "exceeds the budget"},
            {"name": "clusters/team/e", "change": "left", "wrong": True, "why": "is a file"},
            {"name": "clusters/team/f/y", "change": "foreign", "wrong": True, "why": FOREIGN_FILE},
        ],
    }
    assert "mergeRequest" not in json.loads(bundles.PUSHED["json"](NOTHING))


# caphv bundles diff and verify


CHANGE = FileChange("clusters/team/b/cni/fleet.yaml", b"a\nb\n", b"a\nc\nd\n")
DIFFS = [
    ClusterDiff("team/a", State.MATCHES),
    ClusterDiff("team/b", State.DIFFERS, (CHANGE,), ("csi stays: it is in use",)),
    ClusterDiff("team/s", State.SUSPENDED),
    ClusterDiff("team/x", State.INVALID, why=("mtu is too small",)),
]


def test_differences_are_a_line_a_file_and_a_count_of_states() -> None:
    assert lines(bundles.DIFFERENCES["text"](DIFFS)) == [
        "CLUSTER  STATE    FILE            LINES",
        "team/b   differs  cni/fleet.yaml  +2 -1",
        "1 differs, 1 invalid, 1 matches, 1 suspended",
    ]
    assert bundles.DIFFERENCES["text"]([]) == "no clusters\n"
    assert bundles.DIFFERENCES["text"](DIFFS[:1]) == "1 matches\n"


def test_a_unified_diff_has_the_colours_of_git() -> None:
    text = bundles.DIFFERENCES["diff"](DIFFS)
    assert lines(text) == CHANGE.lines
    for line, style in (("+c", {"fg": "green"}), ("-b", {"fg": "red"}), (CHANGE.lines[0], {"bold": True})):
        assert click.style(line, **style) + "\n" in text  # type: ignore[arg-type]
    assert "\n a\n" in text
    assert click.style(CHANGE.lines[2], fg="cyan") in text


def test_a_verification_names_only_what_is_wrong() -> None:
    assert lines(bundles.VERIFIED["text"](DIFFS)) == [
        "CLUSTER  STATE    WHERE",
        "team/b   differs  cni/fleet.yaml; csi stays: it is in use",
        "team/x   invalid  mtu is too small",
        "1 differs, 1 invalid, 1 matches, 1 suspended",
    ]
    assert bundles.VERIFIED["text"]([DIFFS[0], DIFFS[2]]) == "1 matches, 1 suspended\n"
    assert [item["wrong"] for item in json.loads(bundles.VERIFIED["json"](DIFFS))["items"]] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("state", "colour"), [(State.MATCHES, "green"), (State.SUSPENDED, "cyan"), (State.MISSING, "red")]
)
def test_a_state_has_a_colour(state: State, colour: str) -> None:
    change = FileChange("clusters/team/b/x", None, b"a\n")
    text = bundles.DIFFERENCES["text"]([ClusterDiff("team/b", state, (change,))])
    assert click.style(state.value, fg=colour) in text


# What cannot be rendered


def given(*unreadable: str, clusters: tuple[Any, ...] = ()) -> SelectedClusters:
    return SelectedClusters(Input(clusters, unreadable), "", False)


def finding(message: str, *, advice: bool = False, rule: str = "rule") -> Finding:
    return Finding(("mtu",), Fault.INVALID, message, rule, advice=advice)


def test_each_problem_has_a_line_and_one_of_templates_only_one() -> None:
    template = finding("no such name", rule=TEMPLATE_RULE)
    batch = Batch(
        (
            Rendered(Key("team", "a"), findings=(finding("is too small"), template)),
            Rendered(Key("team", "b"), findings=(finding("is odd", advice=True), template)),
        ),
        frozenset({Key("team", "s")}),
    )
    found = list(bundles.problems(given("c.yaml: no such file"), batch))
    assert found == [
        "c.yaml: no such file",
        "cluster team/s: suspended by annotation addons.caphv.io/suspend, keeps what it has",
        f"cluster team/a: error: {finding('is too small')}",
        f"cluster team/b: advice: {finding('is odd', advice=True)}",
        f"error: {template} (2 clusters)",
    ]


def test_without_clusters_there_is_a_hint_unless_a_file_could_not_be_read() -> None:
    (hint,) = bundles.problems(given(), Batch())
    assert hint.startswith("no such cluster")
    assert list(bundles.problems(given("a.yaml: no"), Batch())) == ["a.yaml: no"]
    assert list(bundles.problems(given(clusters=(object(),)), Batch())) == []


def test_a_folder_that_was_written_counts_files_of_clusters_without_errors() -> None:
    settings, _ = settings_of(cluster("a"))
    batch = Batch(
        (
            Rendered(Key("team", "a"), settings=settings, tree={"x": b"", "y": b""}),
            Rendered(Key("team", "b"), settings=settings, tree={"z": b""}, findings=(finding("odd", advice=True),)),
            Rendered(Key("team", "c"), settings=settings, findings=(finding("bad"),)),
        )
    )
    assert bundles.summary(batch, Path("out")) == "wrote 3 files of 2 clusters into out\n"
    assert bundles.summary(Batch((batch.rendered[1],)), Path("out")) == "wrote 1 file of 1 cluster into out\n"


def test_a_tree_shows_each_folder_once() -> None:
    tree = {"clusters/team/a/cni/fleet.yaml": b"", "clusters/team/a/caphv.yaml": b"", "clusters/team/a/cni/x.yaml": b""}
    batch = Batch(
        (Rendered(Key("team", "a"), tree=tree), Rendered(Key("u", "a"), tree={"clusters/u/a/caphv.yaml": b""}))
    )
    assert lines(bundles.RENDERED["tree"](batch)) == [
        "clusters/",
        "  team/",
        "    a/",
        "      caphv.yaml",
        "      cni/",
        "        fleet.yaml",
        "        x.yaml",
        "  u/",
        "    a/",
        "      caphv.yaml",
    ]


# Waves


def test_waves_are_numbered_and_their_clusters_counted() -> None:
    target = versions().newest
    facts = [SimpleNamespace(key=Key("team", name)) for name in "abc"]
    waves: Any = [Wave("canary", facts[:1]), Wave("rest", facts[1:])]  # type: ignore[arg-type]
    assert lines(bundles.WAVES["text"](waves, target)) == [
        "WAVE  NAME    COUNT  CLUSTERS",
        "1     canary  1      team/a",
        "2     rest    2      team/b, team/c",
        f"3 clusters for release {target.release}",
    ]
    assert bundles.WAVES["text"]([], target) == f"0 clusters for release {target.release}\n"


@pytest.mark.parametrize(
    ("waiting", "unknown", "more"),
    [
        (0, 0, ""),
        (3, 0, ", 3 more wait"),
        (0, 1, "; 1 are not in the repository yet and will start with the newest"),
        (3, 1, ", 3 more wait; 1 are not in the repository yet and will start with the newest"),
    ],
)
def test_what_a_wave_leaves_is_counted(waiting: int, unknown: int, more: str) -> None:
    target = versions().newest
    chosen: Any = (object(),)
    assert (
        bundles.wave(UpgradeWave(chosen, waiting, unknown), target) == f"1 cluster for release {target.release}{more}"
    )


# caphv packager sync


def synced(
    result: Result, capsys: pytest.CaptureFixture[str], built: BuildResult | None = None, **flags: Any
) -> list[str]:
    options = {"output": "text", "dry_run": False, "applied": False}
    repository = {"repo": "", "branch": "main", "inner": "", "client_secret": ""}
    given: Any = SimpleNamespace(**{**options, **repository, **flags})
    print_result(built or BuildResult(), result, [], given)
    return capsys.readouterr().out.splitlines()


def test_a_sync_names_all_that_it_did_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    every = [
        "added clusters/team/a",
        "changed clusters/team/b",
        "removed clusters/team/c",
        "left clusters/team/d: exceeds the budget",
        "left clusters/team/e: is a file",
        "team/b: mtu none→1400, hubble on",
        f"foreign clusters/team/f/y {FOREIGN_FILE}",
    ]
    pushed, merge = "pushed 0123456789ab to main", "merge https://git.example.com/1"
    hint = "Fleet applies the manifests: caphv packager gitrepo --repo URL | kubectl apply -f -"
    assert synced(RESULT, capsys, repo="URL") == [*every, pushed, merge, hint]
    assert synced(RESULT, capsys, repo="URL", applied=True) == [*every, pushed, merge]
    assert synced(RESULT, capsys, repo="file:///fleet.git") == [*every, pushed, merge], "Fleet cannot read it"
    words = "--branch live --path team/a --client-secret fleet-git"
    other = {"branch": "live", "inner": "team/a", "client_secret": "fleet-git"}
    assert synced(RESULT, capsys, repo="URL", **other)[-1] == hint.replace("URL", f"URL {words}")
    assert synced(RESULT, capsys) == [*every, pushed, merge]
    bare = replace(RESULT, commit="", merge_request=None)
    assert synced(bare, capsys) == every
    assert synced(bare, capsys, dry_run=True) == [*every, "nothing was written: --dry-run"]
    assert synced(NOTHING, capsys, repo="URL", dry_run=True) == ["nothing to do"]


def test_a_sync_names_the_clusters_that_it_applied_and_deletes(capsys: pytest.CaptureFixture[str]) -> None:
    built = BuildResult(objects={Key("t", "b"): [], Key("t", "a"): []})
    applied = "applied the objects of t/a, t/b"
    assert synced(NOTHING, capsys, built, applied=True) == ["nothing to commit", applied]
    assert synced(NOTHING, capsys, built, applied=True, dry_run=True) == ["nothing to do"]

    removed = tuple(Removal(f"manifests/t/{name}", "", ("x",), definition=True) for name in ("old", "kept"))
    plan = Plan(delete=("manifests/t/old/x",), removed=removed)
    refused = ApplyFailure({"kind": "Cluster", "metadata": {"name": "kept", "namespace": "t"}}, "forbidden")
    options: Any = SimpleNamespace(output="text", dry_run=False, applied=True, repo="")
    print_result(built, replace(NOTHING, plan=plan, commit="0123456789abcdef"), [refused], options)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "pushed 0123456789ab to main",
        f"{applied}, except what the errors name",
        "asked for the deletion of Cluster t/old",
    ]


def test_problems_of_a_sync_are_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Problem(SimpleNamespace):
        def __str__(self) -> str:
            return f"{self.file}:{self.line}: {self.message}"

    wrong = Problem(file="a.yaml", line=1, message="wrong", advice=False)
    odd = Problem(file="b.yaml", line=2, message="odd", advice=True)
    built = BuildResult(objects={Key("t", "b"): [], Key("t", "a"): []}, problems=[wrong, odd], invalid={Key("t", "x")})  # type: ignore[list-item]
    failure = ApplyFailure({"kind": "Cluster", "metadata": {"name": "a", "namespace": "t"}}, "denied")
    options: Any = SimpleNamespace(output="json")
    print_result(built, RESULT, [failure], options)
    written = capsys.readouterr()
    assert written.err.splitlines() == [
        "error: a.yaml:1: wrong",
        "warning: b.yaml:2: odd",
        "error: Cluster t/a: denied",
    ]
    content = json.loads(written.out)
    assert (content["clusters"], content["faulty"]) == (["t/a", "t/b"], ["t/x"])
    assert content["settings"] == {"team/b": ["mtu none→1400", "hubble on"]}
    assert [problem["advice"] for problem in content["problems"]] == [False, True]
    assert content["mergeRequest"]["open"] is True
