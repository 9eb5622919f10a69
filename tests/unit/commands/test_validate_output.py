"""How `caphv validate` shows the line of a finding, and each finding in each format."""

from __future__ import annotations

import json

import click
import pytest

from caphv.validation.yaml.yaml_rules import Position
from commands.output import validate
from commands.output.validate import Line, OtherPlace, Report

pytestmark = pytest.mark.unit

DIGITS = "".join(str(number % 10) for number in range(300))


@pytest.mark.parametrize(
    ("text", "column", "shown", "caret"),
    [
        ("name: x", 1, "name: x", 0),
        ("name: x", 7, "name: x", 6),
        ("a:\tb", 4, "a: b", 3),
        (DIGITS[:120], 120, DIGITS[:120], 119),
        (DIGITS[:121], 1, f"{DIGITS[:120]}…", 0),
        (DIGITS[:121], 60, f"{DIGITS[:120]}…", 59),
        (DIGITS[:121], 61, f"…{DIGITS[1:121]}", 60),
        (DIGITS, 150, f"…{DIGITS[90:210]}…", 60),
        (DIGITS, 240, f"…{DIGITS[180:]}", 60),
        (DIGITS, 241, f"…{DIGITS[181:]}", 60),
        ("\x1bx", 2, "\\u001bx", 6),
    ],
)
def test_a_long_line_is_cut_around_the_column(text: str, column: int, shown: str, caret: int) -> None:
    report = Report(lines=[reported("a", Position(1, column), "error", "rule", "wrong", excerpt=text)])
    _, line, mark, *_ = click.unstyle(validate.FORMATS["text"](report)).splitlines()
    assert (line, mark) == (f"  1 | {shown}", f"    | {' ' * caret}^")


def reported(file: str, position: Position, severity: str, rule: str, message: str, excerpt: str = "") -> Line:
    return Line(file=file, position=position, severity=severity, rule=rule, message=message, excerpt=excerpt)


ERROR = Line(
    file="a.yaml",
    position=Position(3, 5),
    severity="error",
    rule="rule",
    message="spec.x: wrong",
    help="correct it",
    field="spec.x",
    object="Cluster team/a",
    other=OtherPlace("b.yaml", Position(1, 2), "Cluster team/b"),
    excerpt="    x: 1",
)
WARNING = reported("c d.yaml", Position(1, 1), "warning", "other", "odd: 10%, or\nso")
REPORT = Report(["a.yaml", "c d.yaml"], [], [ERROR, WARNING], {"rule": "About it"}, 2, 0)


def test_text_shows_place_line_remedy_and_the_other_place() -> None:
    text = validate.FORMATS["text"](REPORT)
    assert click.unstyle(text).splitlines() == [
        "a.yaml:3:5: error: spec.x: wrong [rule]",
        "  3 |     x: 1",
        "    |     ^",
        "  help: correct it",
        "  see: b.yaml:1:2 Cluster team/b",
        "",
        "c d.yaml:1:1: warning: odd: 10%, or\\u000aso [other]",
        "",
        "2 objects in 2 files: 1 error, 1 warning",
    ]
    assert click.style("error", fg="red", bold=True) in text
    assert click.style("warning", fg="yellow", bold=True) in text
    for part, style in (("a.yaml:3:5", {"bold": True}), ("help:", {"fg": "cyan"}), ("see:", {"fg": "cyan"})):
        assert click.style(part, **style) in text  # type: ignore[arg-type]
    assert click.style("^", fg="green", bold=True) in text


def test_data_has_only_what_is_known() -> None:
    found = json.loads(validate.FORMATS["json"](REPORT))
    assert {name: found[name] for name in ("files", "objects", "passedOver", "errors", "warnings", "unseen")} == {
        "files": 2,
        "objects": 2,
        "passedOver": 0,
        "errors": 1,
        "warnings": 1,
        "unseen": [],
    }
    first, second = found["items"]
    assert first["related"] == {"file": "b.yaml", "line": 1, "column": 2, "object": "Cluster team/b"}
    assert (first["field"], first["object"], first["help"]) == ("spec.x", "Cluster team/a", "correct it")
    assert second == {
        "file": "c d.yaml",
        "line": 1,
        "column": 1,
        "severity": "warning",
        "wrong": False,
        "rule": "other",
        "message": "odd: 10%, or\nso",
    }


def test_code_scanners_get_rules_results_and_what_could_not_be_read() -> None:
    (run,) = json.loads(validate.FORMATS["sarif"](REPORT))["runs"]
    assert run["tool"]["driver"]["rules"] == [{"id": "other"}, {"id": "rule", "shortDescription": {"text": "About it"}}]
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]
    first, second = run["results"]
    assert (first["ruleIndex"], first["level"], first["message"]) == (
        1,
        "error",
        {"text": "spec.x: wrong — correct it"},
    )
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a.yaml"}, "region": {"startLine": 3, "startColumn": 5}}
    assert first["relatedLocations"][0]["message"] == {"text": "Cluster team/b"}
    assert "relatedLocations" not in second
    assert second["message"] == {"text": WARNING.message}
    assert second["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "c%20d.yaml"}
    (run,) = json.loads(validate.FORMATS["sarif"](Report(unreadable=["x: no such file"])))["runs"]
    assert run["invocations"][0] == {
        "executionSuccessful": False,
        "toolExecutionNotifications": [{"level": "error", "message": {"text": "x: no such file"}}],
    }


def test_an_absolute_path_is_a_uri() -> None:
    absolute = reported("/srv/a b.yaml", Position(1, 1), "error", "rule", "wrong")
    (run,) = json.loads(validate.FORMATS["sarif"](Report(lines=[absolute])))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "file:///srv/a%20b.yaml"}


def test_annotations_of_a_workflow_escape_what_would_end_them() -> None:
    assert validate.FORMATS["github"](REPORT).splitlines() == [
        "::error file=a.yaml,line=3,col=5,title=rule::spec.x: wrong%0Acorrect it",
        "::warning file=c d.yaml,line=1,col=1,title=other::odd: 10%25, or%0Aso",
        "2 objects in 2 files: 1 error, 1 warning",
    ]
    odd = reported("a,b:c%.yaml", Position(1, 1), "error", "rule", "x\ry")
    (line, _) = validate.FORMATS["github"](Report(lines=[odd])).splitlines()
    assert line == "::error file=a%2Cb%3Ac%25.yaml,line=1,col=1,title=rule::x%0Dy"


def test_lines_are_in_the_order_of_files_and_places() -> None:
    def at(file: str, line: int, column: int = 1, rule: str = "r", message: str = "m") -> Line:
        return Line(file=file, position=Position(line, column), severity="error", rule=rule, message=message)

    wanted = [at("b", 1), at("b", 2), at("b", 2, 2), at("b", 2, 2, "s"), at("b", 2, 2, "s", "n"), at("a", 1)]
    report = Report(["b", "a"], lines=wanted[::-1])
    report.sort()
    assert report.lines == wanted


@pytest.mark.parametrize(("value", "colour"), [("1", False), ("", None)])
def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch, value: str, colour: bool | None) -> None:
    monkeypatch.setenv("NO_COLOR", value)
    assert validate.colour() is colour
