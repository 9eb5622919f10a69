"""The documentation says what is there: every flag, metric, condition and Event, and only commands that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from caphv.api import crds, names
from commands.main import cli
from tests.support.docpages import METRICS, unknown_fields
from tests.support.metrics import label_names
from tests.support.openapi import object_schema
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PAGES = sorted([CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *(CHECKOUT / "docs").rglob("*.md")])
REFERENCE = {
    name: (CHECKOUT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("flags", "metrics", "conditions", "events")
}
RECONCILER = "".join(
    path.read_text(encoding="utf-8") for part in ("reconciler", "packager") for path in (CHECKOUT / part).rglob("*.py")
)
SCHEMAS = {
    crd["spec"]["names"]["kind"]: object_schema(crd, names.STORED_VERSION) for crd in crds.custom_resource_definitions()
}


def table_row(page: str, first: str) -> list[str]:
    """The cells of the table row whose first cell names `first`."""
    for line in page.splitlines():
        if line.startswith("|") and f"`{first}`" in line.split("|")[1]:
            return [cell.strip() for cell in line.split("|")[1:-1]]
    pytest.fail(f"the page in docs/reference has no table row for {first}")


def visible_options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def command_of(words: list[str]) -> click.Command:
    """The command that `caphv <words>` calls. Raises AssertionError when there is none, or it lacks an option."""
    command: click.Command = cli
    context = click.Context(cli, info_name="caphv")
    for word in words:
        if word.startswith("-"):
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            assert word.partition("=")[0] in {*known, "--help", "-h"}, f"{command.name} has no option {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            assert found, f"{command.name} has no command {word}"
            command = found
    return command


def commands_in(page: str) -> list[str]:
    """Every call of `caphv` in code, up to where the shell's part begins."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    inline = re.findall(r"`(caphv (?!<)[^`]+)`", page)
    calls = re.findall(r"(?:^|\$\()(caphv [^)|>#;\n]+)", "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)
    return [call.strip() for call in (*inline, *calls)]


def objects_in(page: str) -> list[dict[str, Any]]:
    """Every object of our group in YAML, both in blocks of its own and in what is given to kubectl."""
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) + re.findall(r"<<'YAML'\n(.*?)\nYAML", page, re.DOTALL)
    objects = [obj for block in blocks for obj in yaml.safe_load_all(block)]
    return [obj for obj in objects if str(obj.get("apiVersion")).startswith(f"{names.GROUP}/")]


PROCESSES = [command_of(["run"]), command_of(["webhook"]), command_of(["packager", "run"])]


@pytest.mark.parametrize(
    "flag", sorted({name for command in PROCESSES for option in visible_options(command) for name in option.opts})
)
def test_flag_is_explained(flag: str) -> None:
    table_row(REFERENCE["flags"], flag)


def test_defaults_of_flags_are_right() -> None:
    for option in (option for command in PROCESSES for option in visible_options(command)):
        if option.default and isinstance(option.default, str | int | float) and not option.is_flag:
            assert table_row(REFERENCE["flags"], option.opts[0])[1] == f"`{option.default}`"


@pytest.mark.parametrize("name", METRICS)
def test_metric_is_explained(name: str) -> None:
    _, kind, labels, meaning = table_row(REFERENCE["metrics"], name)
    assert kind == type(METRICS[name]).__name__
    assert re.findall(r"`(\w+)`", labels) == label_names(METRICS[name])
    assert meaning


def test_no_metric_is_invented() -> None:
    assert set(re.findall(r"`(caphv_\w+)`", REFERENCE["metrics"])) - METRICS.keys() == set()


@pytest.mark.parametrize("enum", [names.ConditionType, names.Reason])
def test_conditions_and_reasons_in_use_are_explained(enum: type[names.ConditionType] | type[names.Reason]) -> None:
    used = {member for member in enum if f"{enum.__name__}.{member.name}" in RECONCILER}
    assert used
    for member in used:
        table_row(REFERENCE["conditions"], member.value)


def test_events_are_explained() -> None:
    reasons = re.findall(r"\.(?:event|warning_event|tell|warn)\((?:\s*key,)?\s*\"(\w+)\"", RECONCILER)
    assert reasons
    for reason in reasons:
        table_row(REFERENCE["events"], reason)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    for call in commands_in(page.read_text(encoding="utf-8")):
        command_of(shlex.split(call, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    called = re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, re.MULTILINE)
    assert set(called) - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_accepted(page: Path) -> None:
    for obj in objects_in(page.read_text(encoding="utf-8")):
        schema = SCHEMAS[obj["kind"]]
        Draft202012Validator(schema).validate(obj)
        assert unknown_fields(obj["spec"], schema["properties"]["spec"]) == []


def test_the_check_of_examples_finds_what_is_wrong() -> None:
    (obj,) = objects_in(f"```yaml\napiVersion: {names.API_VERSION}\nkind: HarvesterCluster\nspec: {{zone: x}}\n```")
    assert unknown_fields(obj["spec"], SCHEMAS["HarvesterCluster"]["properties"]["spec"]) == [".zone"]


def test_the_check_of_commands_finds_what_is_wrong() -> None:
    assert commands_in("```sh\nexport X=$(caphv sandbox kubeconfig --path)\n```\n`caphv run`") == [
        "caphv run",
        "caphv sandbox kubeconfig --path",
    ]
    with pytest.raises(AssertionError, match="has no command sideways"):
        command_of(["sandbox", "sideways"])
    with pytest.raises(AssertionError, match="has no option --upside"):
        command_of(["run", "--upside", "down"])


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        "docs/architecture.md",
        *sorted(f"docs/adr/{p.name}" for p in (CHECKOUT / "docs" / "adr").glob("*.md")),
    ],
)
def test_files_of_the_project_exist(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:caphv(?!/_)|commands|reconciler|webhooks|packager|overview|sandbox|release|bench|deploy|schemas|tests|docs)/[\w./-]+)`",
        text,
    )
    named += re.findall(r"pytest ([\w./-]+)", text)
    assert [name for name in named if not (CHECKOUT / name).exists()] == []
