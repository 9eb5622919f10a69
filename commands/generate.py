"""`caphv generate`: all objects of a cluster from flags, answers or a definition."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from caphv.api.object import Obj
from commands.errors import CommandError, InputError
from commands.generate_definition import DefinitionOptions, make_definition, read_document
from commands.generate_flags import ClusterFlags, GroupedCommand, cluster_flags, flag_values
from commands.generate_push import explain, push
from commands.main import CONTEXT_SETTINGS
from commands.options.charts import ChartOptions, chart_options, rendering
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.management import CONTEXT, KUBECONFIG, ManagementOptions
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.validation.finding import Finding
    from caphv.validation.yaml.tree import Document
    from commands.generate_answers import Interview
    from operations.capacity.surroundings import Surroundings
    from packager.definitions.build import Built
    from packager.tree import Tree

DONE = 0
INVALID = 1
UNREADABLE = 2


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(DefinitionOptions, ChartOptions, ManagementOptions):
    """Options for the definition, its charts, the checks against Harvester, and the output."""

    harvester_kubeconfig: Path | None
    check_kubeconfig: Path | None
    replace_identity: bool
    definition: str | None
    interactive: bool
    no_harvester: bool
    applied: bool
    pushed: bool
    to: Path | None
    overwrite: bool
    output: str


@click.command(
    cls=GroupedCommand,
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv generate --interactive
  caphv generate --name production --image default/sles-15-sp7 --ssh-keypair default/admin \\
    --network default/production --ip-pool machines --gateway 172.16.0.1 --subnet-mask \
255.255.0.0 \\
    --harvester-kubeconfig harvester.yaml --apply
  caphv generate --definition production.yaml --to manifests/   for a repository, without the Secret
  caphv generate --interactive -o definition > production.yaml  the definition only

Exit status: 0 done, 1 values are invalid, or the management cluster refused objects, 2 usage
error or unreadable input.
""",
)
@cluster_flags
@chart_options
@click.option(
    "--individual-objects",
    is_flag=True,
    help=(
        "Create the control plane, templates and pools as individual objects, without "
        "a ClusterClass."
    ),
)
@click.option(
    "--fips-required", is_flag=True, help="Let nodes start only if their image runs in FIPS mode."
)
@click.option(
    "--stig",
    is_flag=True,
    help="Harden RKE2 according to the DISA STIG: CIS profile, audit log, Secure Boot and TPM.",
)
@click.option("--disable-fstrim-timer", is_flag=True, help="Disable fstrim.timer in the guests.")
@click.option(
    "--no-guest-agent",
    is_flag=True,
    help="Do not install qemu-guest-agent, because the image contains it.",
)
@click.option(
    "--user-data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with additional cloud-config for the guests; it must not contain secrets.",
)
@click.option(
    "--rancher-auto-import/--no-rancher-auto-import",
    default=None,
    help="Import the cluster into Rancher.  [default: true]",
)
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help=(
        "Kubeconfig for Harvester, to check the cluster and to write into the identity Secret. "
        "Without it, the Secret must exist. With --cluster-identity, it is only for the checks."
    ),
)
@click.option(
    "--check-kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help=(
        "Kubeconfig for the checks against Harvester; it is never written.  [default: "
        "that of --harvester-kubeconfig]"
    ),
)
@click.option(
    "--replace-identity",
    is_flag=True,
    help="Replace the kubeconfig in an existing identity Secret, for all clusters that use it.",
)
@click.option(
    "--definition",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File with a ClusterDefinition, or - for standard input. Flags take precedence.",
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Prompt for values that no flag gives, and offer what Harvester has.",
)
@click.option("--no-harvester", is_flag=True, help="Skip the checks against Harvester.")
@click.option(
    "--apply/--dry-run",
    "applied",
    default=False,
    help="Apply the objects to the management cluster, by server-side apply, or only print them.",
)
@click.option(
    "--push",
    "pushed",
    is_flag=True,
    help=(
        "First push the cluster's bundles to --fleet-addon-repo, with credentials from "
        "environment variables CAPHV_GIT_*."
    ),
)
@KUBECONFIG
@CONTEXT
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the objects to files in this directory.",
)
@click.option("--overwrite", is_flag=True, help="Let --to overwrite existing files that differ.")
@output_option("yaml", "json", "definition")
@fill(flags=ClusterFlags, options=GenerateOptions)
def generate(flags: object, options: GenerateOptions) -> None:
    """Generate all objects of a cluster from flags, from answers, or from a ClusterDefinition.

    The command prints the objects, or the ClusterDefinition that they are generated from. It writes
    them to files with --to, or applies them with --apply. With --harvester-kubeconfig or
    --check-kubeconfig, it checks that Harvester has the image, key pair, networks, storage classes
    and IPPools, and that addresses and quota suffice. It reports all errors at once.

    The identity Secret with Harvester's kubeconfig is printed and applied only with
    --harvester-kubeconfig, and never written by --to, because those files are for a repository. An
    existing Secret keeps its kubeconfig unless you pass --replace-identity.
    """
    values = flag_values(flags)
    if options.interactive:
        answers = _interview(values, options)
        _generate(answers.interview.values, answers.options, answers.interview)
    else:
        _generate(values, options, None)


def _generate(
    values: Mapping[str, str], options: GenerateOptions, interview: Interview | None
) -> None:
    """Build the objects, check them, and write, apply or print them.

    :param values: the values of flags, and answers
    :param options: the sources of values, and the destination of the objects
    :param interview: the interview that asked for values; None without one
    """
    # Problems of files, of the definition and of Harvester are collected and reported at once.
    problems: list[str] = []
    identity = _identity(options.harvester_kubeconfig, problems)
    document = read_document(options.definition) if options.definition else None
    definition = make_definition(values, document, options)
    cluster = _build(definition, options)
    findings = [*cluster.findings, *_preflight(identity, definition, cluster, problems, options)]
    for finding in findings:
        line = _line(finding, values, document)
        if finding.advice:
            echo(f"warning: {line}", err=True)
        else:
            problems.append(line)
    if problems:
        _refuse(problems, interview, options)

    decided = _agree(interview, cluster, identity, options) if interview else options
    if decided.pushed:
        # The objects may differ after the push, because the repository may pin older charts.
        pushed = push(cluster, lambda previous: _build(definition, decided, previous))
        errors = [
            _line(finding, values, document) for finding in pushed.findings if not finding.advice
        ]
        if errors:
            raise CommandError("; ".join(errors))
        _deliver(definition, pushed, identity, decided)
        return

    if not decided.to and decided.output != "definition":
        explain(cluster)
    _deliver(definition, cluster, identity, decided)


def _deliver(definition: Obj, cluster: Built, identity: str, options: GenerateOptions) -> None:
    """Write, apply or print the objects.

    :param definition: the definition of the cluster
    :param cluster: the objects of the cluster
    :param identity: the kubeconfig for Harvester, empty without one
    :param options: the destination of the objects
    """
    from commands import generate_output as out

    # Files are for a repository, which must not contain the Secret.
    secret = out.identity_objects(cluster, identity)
    if options.to:
        out.write_files(
            options.to, definition, cluster, options.output, overwrite=options.overwrite
        )
    if options.applied:

        def rebuild(existing: Sequence[Obj]) -> Built:
            return _build(definition, options, existing=existing)

        out.apply_objects(
            cluster, secret, rebuild, options, replace_identity=options.replace_identity
        )
    elif not options.to:
        click.echo(out.output_text(definition, cluster, secret, options.output), nl=False)


class _Answers(NamedTuple):
    """An interview with all values, and the options with the kubeconfig that it asked for."""

    interview: Interview
    options: GenerateOptions


def _interview(values: Mapping[str, str], options: GenerateOptions) -> _Answers:
    """Ask for missing values, the kubeconfig for Harvester first."""
    from commands.generate_answers import Interview

    def read_harvester(path: Path) -> Surroundings | None:
        """Return what may be suggested; None if the Harvester is not asked or does not answer."""
        from commands import generate_harvester as harvester

        problems: list[str] = []
        try:
            content = _identity(path, problems)
        except click.ClickException as error:
            raise click.UsageError(error.format_message()) from None
        if problems:
            raise click.UsageError("; ".join(problems))
        if options.no_harvester:
            return None

        try:
            return harvester.read(content)
        except harvester.HarvesterRefusedError as error:
            raise click.UsageError(str(error)) from None
        except harvester.HarvesterUnreachableError as error:
            echo(
                f"warning: Harvester does not answer, so there are no suggestions: {error}",
                err=True,
            )
            return None

    interview = Interview(values, read_harvester)
    kubeconfig = interview.ask_kubeconfig(options.harvester_kubeconfig)
    interview.ask()
    return _Answers(interview, replace(options, harvester_kubeconfig=kubeconfig))


def _agree(
    interview: Interview, cluster: Built, identity: str, options: GenerateOptions
) -> GenerateOptions:
    """Show a summary of the cluster, and ask before anything is written.

    Return the options with the user's decision whether to apply the objects.
    """
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from commands.generate_answers import show_summary

    if cluster.definition:
        server = parse_kubeconfig(identity).server if identity else ""
        # Neither a definition nor files for a repository contain the Secret.
        has_secret = options.applied or not (options.to or options.output == "definition")
        show_summary(
            cluster.definition,
            interview.harvester,
            server,
            creates_identity=bool(identity) and has_secret,
        )

    # Without --apply and --to, the user decides now.
    if options.applied:
        click.confirm("Apply to the management cluster?", default=True, abort=True, err=True)
    elif options.to:
        click.confirm(f"Write to {options.to}?", default=True, abort=True, err=True)
    elif options.output == "yaml":
        question = "Apply to the management cluster"
        return replace(options, applied=click.confirm(question, default=False, err=True))
    return options


def _refuse(
    problems: Sequence[str], interview: Interview | None, options: GenerateOptions
) -> NoReturn:
    """Report all problems, and end the command with a command line that repeats the answers."""
    for problem in problems:
        echo(f"error: {problem}", err=True)

    if interview:
        from commands.generate_answers import command_line

        line = command_line(interview.values, options.harvester_kubeconfig)
        click.echo(
            "To answer only the invalid values again, run this without their flags:", err=True
        )
        echo(f"  {line}", err=True)
    sys.exit(INVALID)


def _preflight(
    identity: str, definition: Obj, cluster: Built, problems: list[str], options: GenerateOptions
) -> Sequence[Finding]:
    """Return findings about the Harvester.

    :param identity: the kubeconfig for the identity Secret, which `--check-kubeconfig` overrides
    :param definition: the definition
    :param cluster: the objects of the cluster
    :param problems: gets problems of the kubeconfig itself
    :param options: whether to check, and with which kubeconfig
    """
    kubeconfig = identity
    if options.check_kubeconfig:
        kubeconfig = _identity(options.check_kubeconfig, problems, "--check-kubeconfig")
    if not kubeconfig or options.no_harvester:
        return ()
    from commands.generate_harvester import preflight

    result = preflight(kubeconfig, definition, cluster.definition)
    if result.refused:
        flag = "--check-kubeconfig" if options.check_kubeconfig else "--harvester-kubeconfig"
        file = options.check_kubeconfig or options.harvester_kubeconfig
        problems.append(f"{flag} {file}: {result.refused}")
    for note in result.unchecked:
        echo(f"warning: {note}", err=True)
    return result.findings


def _identity(file: Path | None, problems: list[str], flag: str = "--harvester-kubeconfig") -> str:
    """Return the kubeconfig for Harvester, or report its problems.

    Programs in it are not run, and files are not read.
    """
    # A command that asks no server returns before the slow import of a client.
    if file is None:
        return ""

    from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig

    try:
        content = file.expanduser().read_bytes()
        parse_kubeconfig(content).connection()
    except OSError as error:
        raise InputError(f"{flag} {file}: {error.strerror}") from None
    except KubeconfigError as error:
        problems.append(f"{flag} {file}: {error}")
        return ""
    return content.decode()


def _build(
    definition: Obj,
    options: GenerateOptions,
    previous: Tree | None = None,
    existing: Sequence[Obj] = (),
) -> Built:
    """Build the cluster of a definition.

    :param definition: the definition
    :param options: the sources of charts and templates
    :param previous: the current files of the repository with the bundles
    :param existing: existing objects, parts of which are kept
    """
    from packager.definitions.build import build
    from packager.rendering.renderer import Renderer

    try:
        renderer = Renderer(rendering(options))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return build(definition, renderer, previous or {}, existing)


def _line(finding: Finding, values: Mapping[str, str], document: Document | None) -> str:
    """Return a finding, prefixed by its flag or by its line in the definition."""
    from packager.definitions.fromflags import flag_of

    flag = flag_of(finding, values)
    # The value comes from the file, unless the user gave the flag.
    if document and not values.get(flag):
        return f"line {document.position(finding.path).line}: {finding}"
    return f"{flag}: {finding}" if flag else str(finding)
