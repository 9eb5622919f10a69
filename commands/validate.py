"""`caphv validate`: the webhook's rules without an API server, for files, folders and streams."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from caphv.api.object import Obj
from caphv.api.quantity import readable
from commands.main import CONTEXT_SETTINGS
from commands.options.charts import FLEET_VERSION
from commands.options.formats import DATA_FORMATS, output_option
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.validation.finding import LocatedFinding
    from caphv.validation.ruleset import RuleSet
    from caphv.validation.yaml.loader import Source
    from commands.output.validate import Item, Report


VALID = 0
INVALID = 1
UNREADABLE = 2
_LARGE = 1024 * 1024


# Modules that are a `RuleSet`.
RULE_SETS = (
    "webhooks.crossobject",
    "packager.definitions.validation",
    "packager.addons.validation",
)


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv validate cluster.yaml
  caphv validate clusters/                        all *.yaml, *.yml and *.json files below
  kubectl kustomize overlays/prod | caphv validate -
  helm template chart/ | caphv validate -
  caphv validate --fail-on warning -o github .    in a GitHub workflow
  caphv validate -o sarif . > caphv.sarif         for a code scanner
  caphv validate --skip-other-files *.yaml        skip files without objects, such as fleet.yaml

Exit status: 0 valid, 1 invalid, 2 usage error or unreadable input.
""",
)
@click.argument(
    "paths",
    metavar="FILE|DIRECTORY|-...",
    nargs=-1,
    required=True,
    type=click.Path(allow_dash=True),
)
@output_option(*DATA_FORMATS, "sarif", "github")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="Lowest severity of a finding that makes the exit status 1.",
)
@click.option(
    "--skip-other-files",
    "skip_others",
    is_flag=True,
    help=(
        "Skip hidden files, kustomizations and files without Kubernetes objects even "
        "if they are named, as in directories."
    ),
)
@FLEET_VERSION
def validate(
    paths: tuple[str, ...], output: str, fail_on: str, skip_others: bool, fleet_version: str
) -> None:
    """Check manifests offline with the rules of the admission webhooks, and across all given files.

    HarvesterClusters, HarvesterMachines and their templates are checked as by the admission
    webhooks, including unknown fields. Clusters, ClusterClasses, control planes and
    MachineDeployments are checked against them across all files: references, address ranges,
    replicas and variables. ClusterDefinitions are checked with their add-ons. Other kinds are
    ignored.

    Errors would be rejected or cannot work; warnings are valid but not recommended. Each finding
    has file, line and column. The content of Secrets is never shown.
    """
    from commands.output import validate

    try:
        report = examine(paths, skip_others=skip_others, fleet_version=fleet_version)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fleet-version") from None

    click.echo(validate.FORMATS[output](report), color=validate.colour())
    for message in report.unreadable:
        echo(f"caphv validate: {message}", err=True)
    refused = report.errors or (fail_on == "warning" and report.warnings)
    if report.unreadable:
        sys.exit(UNREADABLE)
    sys.exit(INVALID if refused else VALID)


def examine(
    paths: Sequence[str], *, skip_others: bool = False, fleet_version: str = ""
) -> "Report":
    """Read and validate all files that the paths name; `-` is standard input.

    Errors of files are in the report. Raises `ValueError` if `fleet_version` does not name a
    release of Fleet. With `skip_others`, a named file need not hold Kubernetes objects, like a file
    in a folder.
    """
    from caphv.validation.yaml.loader import read_all
    from commands.output.validate import Report

    report = Report()
    sets = _rule_sets(fleet_version)
    sources, unreadable = read_all(paths, sys.stdin.buffer, _announce, skip_others=skip_others)
    report.unreadable.extend(unreadable)
    report.files = [source.name for source in sources]
    _validate(sources, sets, report)
    return report


def _announce(name: str) -> None:
    """Tell the user at a terminal about a large file, which takes two seconds per MiB."""
    with contextlib.suppress(OSError):
        if sys.stderr.isatty() and (size := Path(name).stat().st_size) > _LARGE:
            echo(f"reading {name}, {readable(size, 'B')} ...", err=True)


def _rule_sets(fleet_version: str) -> "list[RuleSet]":
    from packager.definitions import validation

    sets = [cast("RuleSet", importlib.import_module(name)) for name in RULE_SETS]
    return [
        cast("RuleSet", validation.ForFleet(fleet_version)) if rules is validation else rules
        for rules in sets
    ]


def _validate(sources: "Sequence[Source]", sets: "list[RuleSet]", report: "Report") -> None:
    """Add the findings about all files, and about the objects in them, to a report."""
    from caphv.validation.yaml import yaml_rules

    every_rule = (*yaml_rules.RULES, *(rule for rules in sets for rule in rules.rules()))
    report.rules = {rule.name: rule.description for rule in every_rule}
    all_objects = [item for source in sources for item in _check_text(source, sets, report)]

    # Rules compare objects of all files with each other, so that all files must be read before.
    report.objects = len(all_objects)
    report.passed_over = sum(
        not any(rules.concerns(item.obj) for rules in sets) for item in all_objects
    )
    for rules in sets:
        for located in _findings(rules, [item.obj for item in all_objects]):
            other = all_objects[located.other] if located.other is not None else None
            report.add(all_objects[located.place], located.finding, other)
    report.sort()


def _check_text(source: "Source", sets: "list[RuleSet]", report: "Report") -> "list[Item]":
    """Add the findings about the text of a file to a report, and return the objects in it."""
    from caphv.validation.yaml import yaml_rules
    from caphv.validation.yaml.yaml_rules import Position, text_finding
    from commands.output.validate import items

    if source.named and not source.problems and not source.documents:
        detail = "the file contains no object"
        remedy = "add one, or check the tool that generates it"
        report.add_text(source, text_finding(yaml_rules.DOCUMENT, Position(1, 1), detail, remedy))
    for problem in source.problems:
        report.add_text(source, problem)

    all_objects = []
    for document in source.documents:
        objects = list(items(source, document, report))
        all_objects += objects
        if not objects and not source.named:
            continue  # another kind of file, such as a workflow with its key `on`
        ours = any(rules.concerns(item.obj) for rules in sets for item in objects)
        for problem in document.problems:
            # Advice about foreign objects is useless. For example, an octal mode is intended there.
            if ours or not problem.finding.advice:
                report.add_text(source, problem)
    return all_objects


def _findings(rules: "RuleSet", objs: list[Obj]) -> "Iterator[LocatedFinding[int]]":
    from caphv.validation.finding import LocatedFinding

    for index, obj in enumerate(objs):
        for finding in rules.check(obj):
            yield LocatedFinding(index, finding)
    yield from rules.check_together(objs)
