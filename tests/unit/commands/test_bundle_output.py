"""What `caphv bundles check`, `images` and `trace` write, for people and for scripts."""

from __future__ import annotations

import json

import click
import pytest
import yaml

from caphv.api.object import Key
from caphv.validation.finding import Fault, Finding, LocatedFinding
from commands.output.bundle_checks import CHECKED, IMAGES
from commands.output.trace import TRACED
from packager.checks.check import Checked, CheckedChart
from packager.checks.contents import ChartRef
from packager.checks.images import ChartImages
from packager.trace import Stage, Trace

pytestmark = pytest.mark.unit

REPO = "https://charts.example.com"
CCM = ChartRef("ccm", REPO, "0.2.4")
CSI = ChartRef("csi", "oci://registry.example.com/charts", "0.1.0")


def finding(*, advice: bool) -> LocatedFinding[str]:
    return LocatedFinding(
        "ccm/values.yaml:3", Finding(("replicas",), Fault.INVALID, "must be a number", "values", advice=advice)
    )


ERROR, WARNING = finding(advice=False), finding(advice=True)
FOUND = (
    Checked("team/a", (ERROR, WARNING), (CheckedChart("ccm", CCM, True), CheckedChart("csi", CSI, False))),
    Checked("team/b", (WARNING,), (CheckedChart("ccm", CCM, True),)),
)


def test_checks_are_counted_by_weight() -> None:
    lines = click.unstyle(CHECKED["text"](FOUND)).splitlines()
    assert [line.split(": ")[1] for line in lines[:3]] == ["error", "warning", "warning"]
    assert lines[3] == f"not rendered: {CSI}"
    assert lines[4] == "2 clusters, 2 charts rendered: 1 error, 2 warnings"
    (line,) = click.unstyle(CHECKED["text"]([Checked("team/c")])).splitlines()
    assert line == "1 cluster, 0 charts rendered: 0 errors, 0 warnings"


def test_only_errors_make_checks_fail() -> None:
    content = json.loads(CHECKED["json"](FOUND))
    assert [(item["name"], item["wrong"]) for item in content["items"]] == [("team/a", True), ("team/b", False)]
    assert [chart["rendered"] for chart in content["items"][0]["charts"]] == [True, False]
    assert content["items"][0]["findings"][0] == {
        "file": "ccm/values.yaml:3",
        "field": "replicas",
        "rule": "values",
        "advice": False,
        "message": str(ERROR.finding),
    }
    assert yaml.safe_load(CHECKED["yaml"](FOUND)) == content


IMAGES_FOUND = [
    ChartImages(CCM, {"registry/b:1", "registry/a:1"}, "rendered"),
    ChartImages(CSI, {"registry/a:1"}),
]


def test_images_are_listed_once_and_charts_with_their_address() -> None:
    assert IMAGES["images"](IMAGES_FOUND) == "registry/a:1\nregistry/b:1\n"
    assert IMAGES["charts"](IMAGES_FOUND) == (f"{REPO} ccm 0.2.4\noci://registry.example.com/charts/csi csi 0.1.0\n")
    content = json.loads(IMAGES["json"](IMAGES_FOUND))
    assert content["images"] == ["registry/a:1", "registry/b:1"]
    assert [(chart["source"], chart["images"]) for chart in content["items"]] == [
        ("rendered", ["registry/a:1", "registry/b:1"]),
        ("", ["registry/a:1"]),
    ]


def test_the_table_of_images_has_a_part_for_each_that_is_not_empty() -> None:
    charts, images = IMAGES["text"](IMAGES_FOUND).split("\n\n")
    assert [line.split() for line in charts.splitlines()] == [
        ["CHART", "VERSION", "REPOSITORY", "IMAGES"],
        ["ccm", "0.2.4", REPO, "rendered"],
        ["csi", "0.1.0", "oci://registry.example.com/charts/csi", "-"],
    ]
    assert len(images.splitlines()) == 4
    assert "IMAGE " not in IMAGES["text"]([ChartImages(CSI)])
    assert IMAGES["text"]([]) == ""


SETTING = Stage("definition", "clusters/a.yaml:7", True, "mtu 1400")
STOPPED = Trace(
    "a-cni", (Stage("commit", "", True, "1a2b"), Stage("Bundle", "fleet/a-cni", False), Stage("object", "", None))
)


def test_a_trace_names_the_stage_at_which_it_stopped() -> None:
    lines = click.unstyle(TRACED["text"](Key("team", "a"), SETTING, [STOPPED])).splitlines()
    assert lines[0] == "cluster team/a"
    assert lines[1].split() == ["ok", "definition", "clusters/a.yaml:7:", "mtu", "1400"]
    assert lines[2] == "bundle a-cni"
    assert [line.split()[0] for line in lines[3:6]] == ["ok", "stopped", "unknown"]
    assert lines[6] == "  It stopped at: Bundle."
    content = json.loads(TRACED["json"](Key("team", "a"), SETTING, [STOPPED]))
    assert (content["setting"]["detail"], content["items"][0]["stopped"]) == ("mtu 1400", "Bundle")
    assert [stage["ok"] for stage in content["items"][0]["stages"]] == [True, False, None]


def test_a_trace_that_arrived_or_has_no_bundle_stops_nowhere() -> None:
    arrived = Trace("a-cni", STOPPED.stages[:1])
    text = click.unstyle(TRACED["text"](Key("team", "a"), None, [arrived]))
    assert "stopped" not in text
    content = json.loads(TRACED["json"](Key("team", "a"), None, [arrived]))
    assert "setting" not in content
    assert "stopped" not in content["items"][0]
    assert click.unstyle(TRACED["text"](Key("team", "a"), None, [])).splitlines() == [
        "cluster team/a",
        "no bundle is rendered for it",
    ]
