"""`caphv generate`: all objects of a cluster from flags, answers or a definition, printed, written or applied."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from caphv.api.object import Obj
from commands.generate_flags import GroupedCommand, cluster_flags
from commands.generate_push import explain, push
from commands.main import CONTEXT_SETTINGS
from commands.options.charts import chart_options, rendering
from commands.options.clusters import CommandError
from commands.output.echo import echo
from packager.definitions.flags import FLAGS

if TYPE_CHECKING:
    from caphv.validation.finding import Finding
    from caphv.validation.yaml.tree import Document
    from commands.generate_answers import Interview
    from overview.surroundings import Surroundings
    from packager.definitions.build import Built

DONE, INVALID, UNREADABLE = 0, 1, 2


@click.command(
    cls=GroupedCommand,
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv generate --interactive
  caphv generate --name production --image default/sles-15-sp7 --ssh-keypair default/admin \\
    --network default/production --ip-pool machines --gateway 172.16.0.1 --subnet-mask 255.255.0.0 \\
    --harvester-kubeconfig harvester.yaml --apply
  caphv generate --definition production.yaml --to manifests/   without the Secret, for a repository
  caphv generate --interactive -o definition > production.yaml  the definition only

\b
Exit status: 0 done, 1 wrong values, or refused by the management cluster, 2 something cannot be read, or wrong usage.
""",
)
@cluster_flags
@chart_options
@click.option(
    "--individual-objects",
    is_flag=True,
    help="Create control plane, templates and pools as individual objects, without a ClusterClass.",
)
@click.option("--fips-required", is_flag=True, help="Let nodes start only if their image runs in FIPS mode.")
@click.option(
    "--stig", is_flag=True, help="Harden RKE2 according to DISA's STIG: CIS profile, audit log, Secure Boot and TPM."
)
@click.option("--disable-fstrim-timer", is_flag=True, help="Turn fstrim.timer off in the guests.")
@click.option("--no-guest-agent", is_flag=True, help="Do not install qemu-guest-agent: the image has it.")
@click.option(
    "--user-data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with more cloud-config for the guests. It must not hold secrets.",
)
@click.option(
    "--rancher-auto-import/--no-rancher-auto-import",
    default=None,
    help="Import the cluster into Rancher.  [default: true]",
)
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Kubeconfig for Harvester, for the identity Secret; without it the Secret must exist.",
)
@click.option(
    "--check-kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Kubeconfig to check against Harvester with; it is never written.  [default: that of --harvester-kubeconfig]",
)
@click.option(
    "--replace-identity",
    is_flag=True,
    help="Replace the kubeconfig of an identity Secret that exists: all clusters that use it get the new one.",
)
@click.option(
    "--definition",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File with a ClusterDefinition, - for standard input; flags take precedence.",
)
@click.option("--interactive", is_flag=True, help="Prompt for values not given by flags, and offer what Harvester has.")
@click.option("--no-harvester", is_flag=True, help="Do not check against Harvester.")
@click.option("--apply", "applied", is_flag=True, help="Apply to the management cluster with server-side apply.")
@click.option(
    "--push",
    "pushed",
    is_flag=True,
    help="Push the cluster's bundles to --fleet-addon-repo first. Credentials come from variables CAPHV_GIT_*.",
)
@click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster.")
@click.option("--context", default="", help="Context of that kubeconfig.")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Write files into this folder.")
@click.option("--overwrite", is_flag=True, help="Let --to replace files that exist and are different.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "definition"]),
    default="yaml",
    show_default=True,
    help="Objects, or the ClusterDefinition that they are generated from.",
)
def generate(**options: Any) -> None:
    """Generate all objects of a cluster: from flags, from answers, or from a ClusterDefinition.

    Objects are printed, unless they are written with --to or applied with --apply. With --harvester-kubeconfig or
    --check-kubeconfig it is checked that Harvester has the image, key pair, networks, storage classes and IPPools, and
    that addresses and quota suffice. All errors are reported at once. The Secret with Harvester's kubeconfig is printed
    and applied only where --harvester-kubeconfig names it, and never written by --to: that is for repositories. A
    Secret that exists keeps its kubeconfig without --replace-identity.
    """
    from commands import generate_output as out

    given = {flag.name: options[flag.parameter] for flag in FLAGS}
    interview = _interview(given, options) if options["interactive"] else None
    if interview:
        given = interview.values
    problems: list[str] = []
    identity = _identity(options["harvester_kubeconfig"], problems)
    document = _read(options["definition"]) if options["definition"] else None
    wanted = _wanted(given, document, options)
    found = _built(wanted, options)
    checked = _preflight(_check_identity(identity, problems, options), wanted, found, problems, options)
    for finding in (*found.findings, *checked):
        line = _line(finding, given, document)
        if finding.advice:
            echo(f"warning: {line}", err=True)
        else:
            problems.append(line)
    if problems:
        _refuse(problems, interview, options)
    if interview:
        _agree(interview, found, identity, options)
    if options["pushed"]:
        found = push(found, lambda previous: _built(wanted, options | {"previous": previous}))
        problems = [_line(finding, given, document) for finding in found.findings if not finding.advice]
        if problems:
            raise CommandError("; ".join(problems))
    elif not options["to"] and options["output"] != "definition":
        explain(found)
    secret = out.identity_objects(found, identity)
    if options["to"]:
        out.write_files(options["to"], wanted, found, options["output"], overwrite=options["overwrite"])
    if options["applied"]:
        out.apply_objects(found, secret, partial(_built, wanted, options), options)
    elif not options["to"]:
        click.echo(out.printed(wanted, found, secret, options["output"]), nl=False)


def _interview(given: Mapping[str, str], options: dict[str, Any]) -> Interview:
    """Ask for what is missing, the kubeconfig for Harvester first."""
    from commands.generate_answers import Interview

    def read(path: Path) -> Surroundings | None:
        from commands import generate_harvester as harvester

        problems: list[str] = []
        try:
            content = _identity(path, problems)
        except click.ClickException as error:
            raise click.UsageError(error.format_message()) from None
        if problems:
            raise click.UsageError("; ".join(problems))
        if options["no_harvester"]:
            return None
        try:
            return harvester.read(content)
        except harvester.HarvesterRefusedError as error:
            raise click.UsageError(str(error)) from None
        except harvester.HarvesterUnreachableError as error:
            echo(f"warning: Harvester does not answer, so there are no suggestions: {error}", err=True)
            return None

    interview = Interview(given, read)
    options["harvester_kubeconfig"] = interview.ask_kubeconfig(options["harvester_kubeconfig"])
    interview.ask()
    return interview


def _agree(interview: Interview, found: Built, identity: str, options: dict[str, Any]) -> None:
    """Show what the answers make, and ask before anything is written."""
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from commands.generate_answers import show_summary

    if found.definition:
        server = parse_kubeconfig(identity).server if identity else ""
        show_summary(found.definition, interview.harvester, server)
    if options["applied"]:
        click.confirm("Apply to the management cluster?", default=True, abort=True, err=True)
    elif options["to"]:
        click.confirm(f"Write to {options['to']}?", default=True, abort=True, err=True)
    elif options["output"] == "yaml":
        options["applied"] = click.confirm("Apply to the management cluster", default=False, err=True)


def _refuse(problems: Sequence[str], interview: Interview | None, options: dict[str, Any]) -> NoReturn:
    """Report all problems and end the command; answers can be given again as flags."""
    for problem in problems:
        echo(f"error: {problem}", err=True)
    if interview:
        from commands.generate_answers import command_line

        line = command_line(interview.values, options["harvester_kubeconfig"])
        click.echo("To correct this without answering again, leave out what is wrong:", err=True)
        echo(f"  {line}", err=True)
    sys.exit(INVALID)


def _check_identity(identity: str, problems: list[str], options: dict[str, Any]) -> str:
    """Return the kubeconfig to check with."""
    file = options["check_kubeconfig"]
    return _identity(file, problems, "--check-kubeconfig") if file else identity


def _preflight(
    identity: str, wanted: Obj, found: Built, problems: list[str], options: dict[str, Any]
) -> Sequence[Finding]:
    """Return what Harvester lacks; what is wrong with the kubeconfig itself is added to the problems."""
    if not identity or options["no_harvester"]:
        return ()
    from commands.generate_harvester import preflight

    result = preflight(identity, wanted, found.definition)
    if result.refused:
        flag = "--check-kubeconfig" if options["check_kubeconfig"] else "--harvester-kubeconfig"
        file = options["check_kubeconfig"] or options["harvester_kubeconfig"]
        problems.append(f"{flag} {file}: {result.refused}")
    for note in result.unchecked:
        echo(f"warning: {note}", err=True)
    return result.findings


def _wanted(given: Mapping[str, str], document: Document | None, options: dict[str, Any]) -> Obj:
    from packager.addons.merge import merged
    from packager.definitions.flags import definition

    wanted = definition(given, document.value if document else None)
    spec: Obj = {"individualObjects": True} if options["individual_objects"] else {}
    if options["rancher_auto_import"] is not None:
        spec["rancherAutoImport"] = options["rancher_auto_import"]
    hardening: Obj = {"fipsRequired": True} if options["fips_required"] else {}
    machines: Obj = {}
    if options["stig"]:
        hardening |= {"stig": True, "cisProfile": given["--cis-profile"] or "cis"}
        machines |= {"firmware": {"efi": True, "secureBoot": True}, "tpm": {"enabled": True, "persistent": True}}
    if guest := _guest_config(options):
        machines["guestConfig"] = guest
    spec |= {name: value for name, value in (("hardening", hardening), ("machines", machines)) if value}
    return merged(wanted, {"spec": spec}) if spec else wanted


def _guest_config(options: dict[str, Any]) -> Obj:
    from commands.options.clusters import InputError

    found: Obj = {"disableFstrimTimer": True} if options["disable_fstrim_timer"] else {}
    if options["no_guest_agent"]:
        found["installGuestAgent"] = False
    if file := options["user_data"]:
        try:
            found["userData"] = file.expanduser().read_bytes().decode()
        except OSError as error:
            raise InputError(f"--user-data {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"--user-data {file}: must be text in UTF-8") from None
    return found


def _read(file: str) -> Document:
    from caphv.validation.yaml.loader import Unreadable, read
    from commands.options.clusters import InputError

    try:
        source = read(file, sys.stdin.buffer)
    except Unreadable as error:
        raise InputError(str(error)) from None
    problems = [*source.problems, *(one for document in source.documents for one in document.problems)]
    if problems:
        raise InputError("; ".join(f"{source.name}:{one.place.line}: {one.finding.detail}" for one in problems))
    if len(source.documents) != 1 or not isinstance(source.documents[0].value, dict):
        raise InputError(f"{source.name}: must hold one ClusterDefinition")
    return source.documents[0]


def _identity(file: Path | None, problems: list[str], flag: str = "--harvester-kubeconfig") -> str:
    """Return the kubeconfig for Harvester, or report what is wrong with it: nothing in it is run or followed."""
    from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
    from commands.options.clusters import InputError

    if file is None:
        return ""
    try:
        content = file.expanduser().read_bytes()
        parse_kubeconfig(content).connection()
    except OSError as error:
        raise InputError(f"{flag} {file}: {error.strerror}") from None
    except KubeconfigError as error:
        problems.append(f"{flag} {file}: {error}")
        return ""
    return content.decode()


def _built(wanted: Obj, options: dict[str, Any], existing: Sequence[Obj] = ()) -> Built:
    from packager.definitions.build import build
    from packager.rendering.renderer import Renderer

    try:
        renderer = Renderer(rendering(options))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return build(wanted, renderer, options.get("previous", {}), existing)


def _line(finding: Finding, given: Mapping[str, str], document: Document | None) -> str:
    """Return a finding behind the flag that it is about, or the line of the definition."""
    from packager.definitions.flags import flag_of

    flag = flag_of(finding, given)
    if document and not given.get(flag):
        return f"line {document.position(finding.path).line}: {finding}"
    return f"{flag}: {finding}" if flag else str(finding)
