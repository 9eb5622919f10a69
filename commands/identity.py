"""`caphv identity`: accounts for the provider on Harvester, and their identity Secrets."""

from __future__ import annotations

import asyncio
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.options.clusters import CommandError
from commands.options.management import (
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    run,
    selection,
)
from commands.options.outputfile import file_options, write_private
from commands.output.echo import echo
from commands.rotate import rotate

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from overview.identities import Identity
    from reconciler.harvester.identityaccount import Account, Existing


def _check_names(_ctx: click.Context, _option: click.Parameter, value: Any) -> Any:
    for name in (value,) if isinstance(value, str) else value:
        if not (name.isascii() and name.replace("-", "").isalnum() and name == name.lower()):
            raise click.BadParameter(f"{name!r}: must consist of lower case letters, digits and dashes")
    return value


@click.group(
    epilog="""\b
Examples:
  caphv identity create --harvester-kubeconfig harvester.yaml --dry-run
  caphv identity create --harvester-kubeconfig harvester.yaml --target-namespace team-a | kubectl apply -f -
"""
)
def identity() -> None:
    """Manage accounts for the provider on Harvester."""


identity.add_command(rotate)


@identity.command(
    short_help="Create an account on Harvester and its identity Secret.",
    context_settings={"show_default": True},
    epilog="""\b
Examples:
  caphv identity create --harvester-kubeconfig harvester.yaml --dry-run
  caphv identity create --harvester-kubeconfig harvester.yaml --secret-namespace team-a | kubectl apply -f -
  caphv identity create --harvester-kubeconfig harvester.yaml --expires-in 90 | kubectl apply -f -
  caphv identity create --harvester-kubeconfig harvester.yaml --target-namespace team-a -o kubeconfig --file team-a.yaml
""",
)
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    help="Administrator's kubeconfig for Harvester.",
)
@click.option("--name", default="caphv", callback=_check_names, help="Name of the ServiceAccount on Harvester.")
@click.option(
    "--namespace", default="caphv-system", callback=_check_names, help="Namespace of the ServiceAccount on Harvester."
)
@click.option(
    "--target-namespace",
    "targets",
    multiple=True,
    callback=_check_names,
    help="Namespace for VMs; may be repeated. By default a new account may use and create all namespaces, and an "
    "existing one keeps its target namespaces.",
)
@click.option(
    "--all-namespaces", is_flag=True, help="Extend an existing account with target namespaces to all namespaces."
)
@click.option(
    "--create-ip-pools", is_flag=True, help="May also create and delete IPPools, for clusters that describe their own."
)
@click.option(
    "--server",
    default="",
    show_default=False,
    help="URL of Harvester's API server for the identity.  [default: from the kubeconfig, without Rancher's proxy]",
)
@click.option("--secret-name", default="harvester-identity", callback=_check_names, help="Name of the identity Secret.")
@click.option(
    "--secret-namespace",
    default="default",
    callback=_check_names,
    help="Namespace of the identity Secret, that of the clusters.",
)
@click.option("-o", "--output", type=click.Choice(["secret", "kubeconfig"]), default="secret", help="Output format.")
@file_options("File to write, with mode 0600; default: standard output.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    show_default=False,
    help="Issue a new token that expires, instead of the account's lasting one; Harvester may limit its lifetime.",
)
@click.option(
    "--lasting-token", is_flag=True, help="Add a token that does not expire to an existing account without one."
)
@click.option(
    "--dry-run", is_flag=True, help="Print the objects of a new account, without reading or changing Harvester."
)
def create(**options: Any) -> None:
    """Create an account on Harvester with the rights that the provider needs, and write its identity Secret.

    The output contains a token that grants all rights of the account. By default it does not expire, and each call
    prints the same one. With --expires-in, each call issues a new token; run the command again before it expires.

    The command adds rights to an existing account and removes none. It extends an account with target namespaces to all
    namespaces only with --all-namespaces. An existing account without a lasting token gets one only with
    --lasting-token; without this option and --expires-in, the command grants the rights and prints no identity.
    """
    import yaml

    from reconciler.harvester import identityaccount

    if options["all_namespaces"] and options["targets"]:
        raise click.UsageError("--all-namespaces and --target-namespace exclude each other")
    if options["lasting_token"] and options["expires_in"]:
        raise click.UsageError("--lasting-token and --expires-in exclude each other")
    account = identityaccount.Account(
        options["name"], options["namespace"], options["targets"], options["create_ip_pools"]
    )
    if options["dry_run"]:
        _warn_about_scope(account)
        objects = identityaccount.objects(account, lasting_token=not options["expires_in"])
        click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
        return
    content = asyncio.run(_create(account, options))
    if not content:
        _no_identity(account, options["file"])
        return
    if options["output"] == "secret":
        secret = identityaccount.identity_secret(options["secret_name"], options["secret_namespace"], content)
        content = yaml.safe_dump(secret, sort_keys=False)
    _write(content, options["file"])


@identity.command(
    "list",
    short_help="List identities with their expiry dates and clusters.",
    epilog="""\b
Examples:
  caphv identity list -A
  caphv identity list -A -o json | jq '.items[] | select(.wrong)'

\b
Exit status: 0 all identities are valid, 1 one is not or expires within 14 days, 2 the management cluster cannot be
read.
""",
)
@namespace_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@management_options
def list_identities(**flags: Any) -> None:
    """List identity Secrets with their Harvester, the expiry date of the credentials, and the clusters that use them.

    Secrets with a kubeconfig that no cluster uses are listed, too, if you may list Secrets.
    """
    chosen = selection((), flags)
    with patient_progress():
        found = run(_identities(flags, chosen.namespace))
    if flags["output"] == "text":
        from commands.output import identities, overview

        identities.show(overview.console(), found)
    else:
        print_data(found, flags["output"])
    sys.exit(1 if any(each.wrong for each in found) else 0)


@identity.command(
    "remove-finalizers",
    short_help="Remove the provider's finalizers from Secrets, before it is uninstalled.",
    epilog="""\b
Examples:
  kubectl scale deployment caphv-controller-manager -n caphv-system --replicas 0
  caphv identity remove-finalizers -A --dry-run
  caphv identity remove-finalizers -A

\b
Exit status: 0 done, 1 aborted, or a Secret could not be changed, 2 the management cluster cannot be read.
""",
)
@namespace_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="List the Secrets, and change nothing.")
@management_options
def remove_finalizers(**flags: Any) -> None:
    """Remove the finalizers that the provider has set on identity Secrets in use.

    They keep credentials until all clusters that use them are deleted. Without the provider, no one would remove them,
    and a deleted Secret or namespace would stay. Run this command before you uninstall the provider or return to the Go
    provider, and stop the provider first: while it runs, it sets the finalizers again.
    """
    from reconciler.cluster import identityprotection

    chosen = selection((), flags)
    with patient_progress():
        found, running = run(_protected(flags, chosen.namespace))
    if not found:
        click.echo("No Secret has a finalizer of the provider")
        return
    for secret in found:
        echo(f"Secret {secret['metadata']['namespace']}/{secret['metadata']['name']}")
    if running:
        echo(
            f"caphv: a provider is running (Lease {running}) and sets the finalizers again; stop it first: "
            f"{remedies.STOP_PROVIDER(namespace=running.partition('/')[0])}",
            err=True,
        )
    if flags["dry_run"]:
        return
    if not flags["yes"]:
        if not sys.stdin.isatty():
            raise click.UsageError("confirmation needs a terminal: use --yes or --dry-run")
        click.confirm(f"Remove the finalizers of {counted(len(found), 'Secret')}?", abort=True)

    async def remove() -> list[str]:
        async with management_client(flags) as client:
            return await identityprotection.remove_all(client, found)

    errors = run(remove())
    for error in errors:
        echo(f"caphv: {error}", err=True)
    click.echo(f"removed the finalizers of {counted(len(found) - len(errors), 'Secret')}")
    sys.exit(1 if errors else 0)


async def _protected(flags: dict[str, Any], namespace: str) -> tuple[list[dict[str, Any]], str]:
    """Secrets with finalizers of the provider, and the Lease of a provider that runs, empty for none."""
    from reconciler.cluster import identityprotection

    async with management_client(flags) as client:
        return await identityprotection.protected(client, namespace), await identityprotection.running(client)


async def _identities(flags: dict[str, Any], namespace: str) -> tuple[Identity, ...]:
    from datetime import UTC, datetime

    from caphv.api import resources
    from caphv.api.object import SECRETS, key_of
    from caphv.runtime.errors import Forbidden
    from overview.harvester import identity_of, insecure_allowed, read_accounts
    from overview.identities import identities_of, unused_secrets
    from overview.reader import list_all

    async with management_client(flags) as client:
        clusters = await list_all(client, resources.HARVESTER_CLUSTERS, namespace)
        spare: dict[Key, Obj] = {}
        try:
            secrets = await list_all(client, SECRETS, namespace)
            # A cluster of another namespace may use a Secret of this one.
            others = await list_all(client, resources.HARVESTER_CLUSTERS) if namespace else clusters
            used = {identity_of(obj) for obj in (*clusters, *others)}
            spare = {key_of(obj): obj for obj in unused_secrets(secrets, used)}
        except Forbidden as error:
            echo(f"not seen: identities that no cluster uses: {error}", err=True)
        owners = [*clusters, *({"spec": {"identitySecret": key._asdict()}} for key in spare)]
        with insecure_allowed():  # no Harvester is asked
            accounts, unseen = await read_accounts(client, owners, spare)
    return identities_of(clusters, accounts, unseen, datetime.now(UTC), spare)


async def _create(account: Account, options: dict[str, Any]) -> str:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from reconciler.harvester import identityaccount

    try:
        connection = await own_configuration(options["harvester_kubeconfig"])
        client = ApiClient(connection, name="harvester")
        try:
            found = await identityaccount.existing(client, account)
            account = _with_former_limits(account, found, options)
            return await identityaccount.create(
                client,
                account,
                options["server"] or identityaccount.api_server(client.server),
                lasting_token=found is None or bool(found.token) or options["lasting_token"],
                expires_in=(options["expires_in"] or 0) * 24 * 3600,
                ca=_trusted(connection.tls),
            )
        finally:
            await client.close()
    except (KubeconfigError, ApiError, Unreachable, identityaccount.AccountError) as error:
        raise CommandError(str(error)) from error


def _with_former_limits(account: Account, found: Existing | None, options: dict[str, Any]) -> Account:
    """The account as it is to be: an existing one keeps its target namespaces and the name of its token's Secret."""
    if found:
        account = replace(account, token=found.token)
        if found.targets and not account.targets and not options["all_namespaces"]:
            echo(
                f"caphv: the account keeps its target namespaces ({', '.join(found.targets)}); "
                "--all-namespaces extends it to all",
                err=True,
            )
            return replace(account, targets=found.targets)
    _warn_about_scope(account)
    return account


def _warn_about_scope(account: Account) -> None:
    if not account.targets:
        click.echo(
            "caphv: without --target-namespace, the account may read Secrets and delete VMs in all namespaces of "
            "Harvester, and give no cluster a cloud config",
            err=True,
        )


def _no_identity(account: Account, file: Path | None) -> None:
    """Say why there is no identity to print. To write none into a file that was asked for is an error."""
    message = (
        f"granted the rights; there is no identity to write, because ServiceAccount {account.namespace}/{account.name} "
        "has no lasting token: add --expires-in DAYS, or --lasting-token"
    )
    if file:
        raise CommandError(message)
    click.echo(f"caphv: {message}", err=True)


def _trusted(tls: ssl.SSLContext) -> str:
    """The CAs that a connection trusts, PEM."""
    return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in tls.get_ca_certs(binary_form=True))


def _write(content: str, file: Path | None) -> None:
    if file is None:
        click.echo(content, nl=False)
        return
    write_private(file, content.encode())
    click.echo(f"wrote {file}")
