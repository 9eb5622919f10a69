"""Format findings of `caphv validate` for people, scripts, code scanners and GitHub."""

import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from caphv.api.object import Obj
from caphv.api.plaintext import printable
from caphv.validation.finding import Fault, Finding
from caphv.validation.yaml import yaml_rules
from caphv.validation.yaml.loader import Source
from caphv.validation.yaml.tree import Document, FieldPath
from caphv.validation.yaml.yaml_rules import Position, TextFinding, text_finding
from commands.output.data import data_text

_MAX_EXCERPT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Item:
    """One object and its place: a document, or an item of a List."""

    source: Source
    document: Document
    base: FieldPath
    obj: Obj

    def __str__(self) -> str:
        metadata = self.obj.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        name = "/".join(str(names[key]) for key in ("namespace", "name") if names.get(key))
        return f"{self.obj.get('kind')} {name}".strip()


@dataclass(frozen=True, slots=True)
class OtherPlace:
    """Another object that a finding concerns, with its place."""

    file: str
    position: Position
    object: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finding as it is reported. `help` says what to do; `other` is a second affected place."""

    file: str
    position: Position
    severity: str
    rule: str
    message: str
    help: str = ""
    field: str = ""
    object: str = ""
    other: OtherPlace | None = None
    excerpt: str = ""


@dataclass(slots=True)
class Report:
    """All findings of a call."""

    files: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    rules: dict[str, str] = field(default_factory=dict)
    objects: int = 0
    passed_over: int = 0

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(line.severity == "error" for line in self.lines)

    @property
    def warnings(self) -> int:
        """The number of warnings."""
        return len(self.lines) - self.errors

    def add_text(self, source: Source, problem: TextFinding) -> None:
        """Add a finding about the text of a file."""
        self.lines.append(
            Line(
                file=source.name,
                position=problem.place,
                severity=_severity(problem.finding),
                rule=problem.finding.rule,
                message=str(problem.finding),
                help=problem.finding.remedy,
                excerpt=source.excerpt(problem.place.line),
            )
        )

    def add(self, item: Item, finding: Finding, other: Item | None) -> None:
        """Add a finding about an object."""
        path = (*item.base, *finding.path)
        at = (
            item.document.key_position(path)
            if finding.fault is Fault.UNKNOWN
            else item.document.position(path)
        )

        self.lines.append(
            Line(
                file=item.source.name,
                position=at,
                severity=_severity(finding),
                rule=finding.rule,
                message=str(finding),
                help=_hint(item.document, path, finding),
                field=finding.field,
                object=str(item),
                other=_other_place(other) if other else None,
                excerpt=item.source.excerpt(at.line),
            )
        )

    def sort(self) -> None:
        """Bring the lines into the order of files and places."""
        order = {name: index for index, name in enumerate(self.files)}
        self.lines.sort(key=lambda line: (order[line.file], line.position, line.rule, line.message))


def _severity(finding: Finding) -> str:
    return "warning" if finding.advice else "error"


def _other_place(item: Item) -> OtherPlace:
    return OtherPlace(item.source.name, item.document.position(item.base), str(item))


def items(source: Source, document: Document, report: Report) -> Iterator[Item]:
    """Yield the objects of a document and the items of a List; report all other values."""
    waiting: list[tuple[FieldPath, Any]] = [((), document.value)]
    while waiting:
        base, value = waiting.pop(0)
        if problem := _object_problem(source, document, base, value):
            report.add_text(source, problem)
        elif isinstance(value, dict) and isinstance(value.get("kind"), str):
            listed = value.get("items")
            if value["kind"].endswith("List") and isinstance(listed, list):
                waiting = [
                    ((*base, "items", index), item) for index, item in enumerate(listed)
                ] + waiting
            else:
                yield Item(source=source, document=document, base=base, obj=value)


def _looks_like_object(value: Mapping[str, Any]) -> bool:
    return bool(value.keys() & {"apiVersion", "kind"}) or value.keys() >= {"metadata", "spec"}


def _object_problem(
    source: Source, document: Document, base: FieldPath, value: Any
) -> TextFinding | None:
    """Return the reason why a value is not a Kubernetes object.

    None if it is an object, or if a file in a folder belongs to another program.
    """
    at = document.position(base)
    # A file that the user did not name is in a folder, which may also hold files of other programs.
    may_be_other = not source.named and not base
    if may_be_other and isinstance(value, list):
        mappings = [item for item in value if isinstance(item, dict)]
        if not any(map(_looks_like_object, mappings)):
            return None

    if not isinstance(value, dict):
        form = "a list" if isinstance(value, list) else "a single value"
        remedy = (
            "begin a mapping with apiVersion and kind; several objects are separated by lines ---"
        )
        return text_finding(
            yaml_rules.DOCUMENT, at, f"this is {form}, and not a Kubernetes object", remedy
        )
    if may_be_other and not _looks_like_object(value):
        return None

    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            message = f"{key}: Required value: must be text, as in every Kubernetes object"
            return text_finding(
                yaml_rules.DOCUMENT,
                document.position((*base, key)),
                message,
                f"add {key} at the top of the object",
            )
    return None


def _hint(document: Document, path: FieldPath, finding: Finding) -> str:
    """Return a hint at a value that YAML read as another type, or at an unfilled template."""
    if isinstance(finding.value, str) and "${" in finding.value:
        return (
            "variables in ${} are substituted first: check the output of clusterctl, Flux or "
            "envsubst"
        )

    # YAML guesses the type only of a plain scalar, which has no quotes.
    node = document.node(path)
    if (
        finding.fault is not Fault.WRONG_TYPE
        or node is None
        or node.plain is None
        or isinstance(node.value, str)
    ):
        return ""
    if node.plain == "":
        return "nothing follows the colon: write a value, or remove the key"
    if "string" not in finding.detail:
        return ""
    return (
        f'YAML reads {node.plain} as {json.dumps(node.value)}: write "{node.plain}", in quotes, to'
        " mean the text"
    )


def colour() -> bool | None:
    """Return whether to write colours; None lets the terminal decide."""
    return False if os.environ.get("NO_COLOR") else None


def _text(report: Report) -> str:
    blocks = [_block(line) for line in report.lines]
    return "\n\n".join([*blocks, _summary(report)])


def _block(line: Line) -> str:
    """Return a finding with the line that it is about."""
    place = f"{printable(line.file)}:{line.position.line}:{line.position.column}"
    severity = click.style(
        line.severity, fg="red" if line.severity == "error" else "yellow", bold=True
    )
    rows = [f"{click.style(place, bold=True)}: {severity}: {printable(line.message)} [{line.rule}]"]

    if line.excerpt:
        number = str(line.position.line)
        shown, caret = _excerpt(line.excerpt, line.position.column)
        rows.append(f"  {number} | {shown}")
        rows.append(
            f"  {' ' * len(number)} | {' ' * caret}{click.style('^', fg='green', bold=True)}"
        )

    if line.help:
        rows.append(f"  {click.style('help:', fg='cyan')} {printable(line.help)}")
    if line.other:
        at = line.other.position
        rows.append(
            f"  {click.style('see:', fg='cyan')} {printable(line.other.file)}:{at.line}:"
            f"{at.column} {printable(line.other.object)}"
        )
    return "\n".join(rows)


def _excerpt(text: str, column: int) -> tuple[str, int]:
    """Return the part of a line around a column, and the offset of the column in it."""
    start = max(0, column - _MAX_EXCERPT_WIDTH // 2) if len(text) > _MAX_EXCERPT_WIDTH else 0
    cut = text[start : start + _MAX_EXCERPT_WIDTH].replace("\t", " ")
    ahead = "…" if start else ""
    behind = "…" if start + _MAX_EXCERPT_WIDTH < len(text) else ""
    before = printable(cut[: column - 1 - start])
    return f"{ahead}{printable(cut)}{behind}".rstrip(), len(ahead) + len(before)


def _summary(report: Report) -> str:
    others = f", {report.passed_over} of them of other kinds" if report.passed_over else ""
    counted = f"{_count(report.objects, 'object')} in {_count(len(report.files), 'file')}{others}"
    if not report.lines:
        verdict = "nothing was found in what could be read" if report.unreadable else "valid"
        return f"{counted}: {verdict}"
    return f"{counted}: {_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _data(output: str, report: Report) -> str:
    """Return a report as data."""
    return data_text(
        output,
        files=len(report.files),
        objects=report.objects,
        passedOver=report.passed_over,
        errors=report.errors,
        warnings=report.warnings,
        unseen=report.unreadable,
        items=[_finding(line) for line in report.lines],
    ).rstrip()


def _finding(line: Line) -> Obj:
    """Return a finding as data."""
    content: Obj = {
        "file": line.file,
        "line": line.position.line,
        "column": line.position.column,
        "severity": line.severity,
        "wrong": line.severity == "error",
        "rule": line.rule,
        "message": line.message,
    }
    content |= {key: value for key in ("field", "object", "help") if (value := getattr(line, key))}
    if line.other:
        content["related"] = {
            "file": line.other.file,
            "line": line.other.position.line,
            "column": line.other.position.column,
            "object": line.other.object,
        }
    return content


def _sarif(report: Report) -> str:
    """Return a report in SARIF 2.1.0, the standard of OASIS for results of static analysis."""
    names = sorted({line.rule for line in report.lines})
    rules = [{"id": name} | _description(report.rules.get(name, "")) for name in names]
    notes = [{"level": "error", "message": {"text": text}} for text in report.unreadable]

    try:
        version = importlib.metadata.version("caphv")
    except importlib.metadata.PackageNotFoundError:
        version = "0"

    run = {
        "tool": {"driver": {"name": "caphv", "version": version, "rules": rules}},
        # Python counts code points. SARIF also allows UTF-16 code units.
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
        "results": [_result(line, names) for line in report.lines],
    }
    schema = (
        "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    )
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


def _description(text: str) -> Obj:
    return {"shortDescription": {"text": text}} if text else {}


def _result(line: Line, names: list[str]) -> Obj:
    """Return a finding as a result of SARIF."""
    result: Obj = {
        "ruleId": line.rule,
        "ruleIndex": names.index(line.rule),
        "level": line.severity,
        "message": {"text": " — ".join(filter(None, (line.message, line.help)))},
        "locations": [_location(line.file, line.position)],
    }
    if line.other:
        related = {"id": 1, "message": {"text": line.other.object}}
        related |= _location(line.other.file, line.other.position)
        result["relatedLocations"] = [related]
    return result


def _location(name: str, at: Position) -> Obj:
    path = Path(name)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    region = {"startLine": at.line, "startColumn": at.column}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def _github(report: Report) -> str:
    """Write workflow commands, which GitHub shows next to the lines of a pull request.

    The summary stays in the log.
    """
    rows = []
    for line in report.lines:
        properties = {
            "file": line.file,
            "line": line.position.line,
            "col": line.position.column,
            "title": line.rule,
        }
        parameters = ",".join(
            f"{key}={_escape(str(value), property_too=True)}" for key, value in properties.items()
        )
        text = "\n".join(filter(None, (line.message, line.help)))
        rows.append(f"::{line.severity} {parameters}::{_escape(text)}")
    return "\n".join([*rows, _summary(report)])


def _escape(text: str, *, property_too: bool = False) -> str:
    # The percent sign comes first, because the other escapes begin with it.
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C") if property_too else escaped


FORMATS: dict[str, Callable[[Report], str]] = {
    "text": _text,
    "json": partial(_data, "json"),
    "yaml": partial(_data, "yaml"),
    "sarif": _sarif,
    "github": _github,
}
