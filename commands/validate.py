"""`caphv validate`: the verdicts of the webhook without an API server, for files, folders and streams."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from caphv.api.object import Obj
from commands.main import CONTEXT_SETTINGS
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.validation.finding import LocatedFinding
    from caphv.validation.ruleset import RuleSet
    from caphv.validation.yaml.loader import Source
    from commands.output.validate import Report


VALID, INVALID, UNREADABLE = 0, 1, 2
_LARGE = 1024 * 1024


# Modules that are a `RuleSet`.
RULE_SETS = ("webhooks.crossobject", "packager.definitions.validation", "packager.addons.validation")


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv validate cluster.yaml
  caphv validate clusters/                        all *.yaml, *.yml and *.json below
  kubectl kustomize overlays/prod | caphv validate -
  helm template chart/ | caphv validate -
  caphv validate --fail-on warning -o github .    in a GitHub workflow
  caphv validate -o sarif . > caphv.sarif         for a code scanner
  caphv validate --skip-other-files *.yaml        although some are not objects, like fleet.yaml

\b
Exit status: 0 valid, 1 invalid, 2 a file could not be read, or wrong usage.
""",
)
@click.argument("paths", metavar="FILE|FOLDER|-...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="text for people, json for scripts, sarif for code scanners, github for annotations of a workflow.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="What makes the exit status 1.",
)
@click.option(
    "--skip-other-files",
    "skip_others",
    is_flag=True,
    help="Read files like those of folders: skip hidden files, kustomizations and what is not a Kubernetes object.",
)
def validate(paths: tuple[str, ...], output: str, fail_on: str, skip_others: bool) -> None:
    """Check manifests without a cluster, as the webhook would, and all of them together.

    HarvesterClusters, HarvesterMachines and their templates are checked by the rules of the admission webhook, unknown
    fields included. Clusters, ClusterClasses, control planes and MachineDeployments are checked against them across all
    files given: references, address ranges, replicas, variables. ClusterDefinitions are checked with their add-ons.
    Other kinds are ignored.

    Errors would be refused or cannot work; warnings are valid but not recommended. Each comes with file, line and
    column. The content of Secrets is never shown.
    """
    from commands.output import validate

    found = examine(paths, skip_others=skip_others)
    click.echo(validate.FORMATS[output](found), color=validate.colour())
    for message in found.unreadable:
        echo(f"caphv validate: {message}", err=True)
    refused = found.errors or (fail_on == "warning" and found.warnings)
    sys.exit(UNREADABLE if found.unreadable else INVALID if refused else VALID)


def examine(paths: Sequence[str], *, skip_others: bool = False) -> "Report":
    """Read and validate everything that the paths name; `-` is standard input. Raises nothing that files can cause.

    With `skip_others`, a file that is named may be something else than a Kubernetes object, like one in a folder.
    """
    from caphv.validation.yaml.loader import read_all
    from commands.output.validate import Report

    result = Report()
    sources, unreadable = read_all(paths, sys.stdin.buffer, _announce, skip_others=skip_others)
    result.unreadable.extend(unreadable)
    result.files = [source.name for source in sources]
    _validate(sources, result)
    return result


def _announce(name: str) -> None:
    """Tell the user at a terminal about a file that takes long: a MiB takes two seconds."""
    with contextlib.suppress(OSError):
        if sys.stderr.isatty() and (size := Path(name).stat().st_size) > _LARGE:
            echo(f"reading {name}, {size / 1024**2:.1f} MiB ...", err=True)


def _validate(sources: "Sequence[Source]", result: "Report") -> None:
    from caphv.validation.yaml import yaml_rules
    from caphv.validation.yaml.yaml_rules import Position, text_finding
    from commands.output.validate import Item, items

    sets: list[RuleSet] = [cast("RuleSet", importlib.import_module(name)) for name in RULE_SETS]
    every_rule = (*yaml_rules.RULES, *(rule for one in sets for rule in one.rules()))
    result.rules = {rule.name: rule.description for rule in every_rule}
    every: list[Item] = []
    for source in sources:
        if source.named and not source.problems and not source.documents:
            detail = "the file contains no object"
            remedy = "add one, or check the tool that generates it"
            result.add_text(source, text_finding(yaml_rules.DOCUMENT, Position(1, 1), detail, remedy))
        for problem in source.problems:
            result.add_text(source, problem)
        for document in source.documents:
            found = list(items(source, document, result))
            every += found
            if not found and not source.named:
                continue  # for example a workflow, whose key `on` is fine
            ours = any(one.concerns(item.obj) for one in sets for item in found)
            for problem in document.problems:
                # Advice is for those who can follow it: an octal mode in a foreign object is intended.
                if ours or not problem.finding.advice:
                    result.add_text(source, problem)
    result.objects = len(every)
    result.passed_over = sum(not any(one.concerns(item.obj) for one in sets) for item in every)
    for one in sets:
        for located in _findings(one, [item.obj for item in every]):
            other = every[located.other] if located.other is not None else None
            result.add(every[located.place], located.finding, other)
    result.sort()


def _findings(rules: "RuleSet", objs: list[Obj]) -> "Iterator[LocatedFinding[int]]":
    from caphv.validation.finding import LocatedFinding

    for index, obj in enumerate(objs):
        for finding in rules.check(obj):
            yield LocatedFinding(index, finding)
    yield from rules.check_together(objs)
