"""`caphv identity create`: an account for the provider on Harvester, and its identity Secret."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from caphv.api.identities import ALL_NAMESPACES
from caphv.api.object import NAMESPACES
from commands.errors import CommandError
from commands.options.completion import complete_on_harvester
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.outputfile import FileOptions, file_options, write_private
from commands.output.echo import echo

if TYPE_CHECKING:
    from reconciler.harvester.accountobjects import Account
    from reconciler.harvester.identityaccount import Existing

_Names = TypeVar("_Names", str, tuple[str, ...])


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """The account to create on Harvester, and its token."""

    harvester_kubeconfig: str
    name: str
    namespace: str
    targets: tuple[str, ...]
    all_namespaces: bool
    create_ip_pools: bool
    import_images: tuple[str, ...]
    back_up_vms: bool
    server: str
    expires_in: int | None
    lasting_token: bool


def _check_names(_ctx: click.Context, _option: click.Parameter, value: _Names) -> _Names:
    for name in (value,) if isinstance(value, str) else value:
        if not (name.isascii() and name.replace("-", "").isalnum() and name == name.lower()):
            raise click.BadParameter(
                f"{name!r}: must consist of lower case letters, digits and dashes"
            )
    return value


def _check_shared(
    ctx: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    _check_names(ctx, option, tuple(name for name in value if name != ALL_NAMESPACES))
    return value


@click.command(
    short_help="Create an account on Harvester and its identity Secret.",
    context_settings={"show_default": True},
    epilog="""\b
Examples:
  caphv identity create --harvester-kubeconfig harvester.yaml --dry-run
  caphv identity create --harvester-kubeconfig harvester.yaml --secret-namespace team-a | kubectl \
apply -f -
  caphv identity create --harvester-kubeconfig harvester.yaml --secret-name shared --share-with \
team-a | kubectl apply -f -
  caphv identity create --harvester-kubeconfig harvester.yaml --expires-in 90 | kubectl apply -f -
  caphv identity create --harvester-kubeconfig harvester.yaml --target-namespace team-a -o \
kubeconfig --file team-a.yaml
""",
)
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Administrator's kubeconfig for Harvester.",
)
@click.option(
    "--name",
    default="caphv",
    callback=_check_names,
    metavar="NAME",
    help="Name of the ServiceAccount on Harvester.",
)
@click.option(
    "--namespace",
    default="caphv-system",
    callback=_check_names,
    metavar="NAMESPACE",
    shell_complete=complete_on_harvester(NAMESPACES),
    help="Namespace of the ServiceAccount on Harvester.",
)
@click.option(
    "--target-namespace",
    "targets",
    multiple=True,
    callback=_check_names,
    metavar="NAMESPACE",
    shell_complete=complete_on_harvester(NAMESPACES),
    help=(
        "Namespace for VMs. Repeatable.  [default: a new account may use and create "
        "all namespaces, an existing one keeps its own]"
    ),
)
@click.option(
    "--all-namespaces",
    is_flag=True,
    help="Extend an existing account with target namespaces to all namespaces.",
)
@click.option(
    "--create-ip-pools",
    is_flag=True,
    help="Allow the account to create and delete IPPools, for clusters that define their own.",
)
@click.option(
    "--import-images",
    multiple=True,
    metavar="NAMESPACE",
    callback=_check_names,
    shell_complete=complete_on_harvester(NAMESPACES),
    help="Namespace into which clusters may import images. Repeatable.",
)
@click.option(
    "--back-up-vms",
    is_flag=True,
    help=(
        "Allow the account to back up VMs, for clusters that keep backups of replaced "
        "control plane machines."
    ),
)
@click.option(
    "--server",
    default="",
    show_default=False,
    metavar="URL",
    help=(
        "URL of Harvester's API server in the identity.  [default: from the "
        "kubeconfig, without Rancher's proxy]"
    ),
)
@click.option(
    "--secret-name",
    default="harvester-identity",
    callback=_check_names,
    metavar="NAME",
    help="Name of the identity Secret.",
)
@click.option(
    "--secret-namespace",
    default="default",
    callback=_check_names,
    metavar="NAMESPACE",
    help=(
        "Namespace of the identity Secret: that of the clusters, or with --share-with "
        "that of the provider, by default caphv-system."
    ),
)
@click.option(
    "--share-with",
    "shared",
    multiple=True,
    metavar="NAMESPACE",
    callback=_check_shared,
    help=(
        "Also write a HarvesterClusterIdentity, with the name of the Secret, for "
        "clusters in this namespace, or * for all namespaces. Repeatable."
    ),
)
@output_option("secret", "kubeconfig")
@file_options("File to write, with mode 0600.  [default: standard output]")
@click.option(
    "--expires-in",
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    show_default=False,
    help=(
        "Issue a new token that expires after this many days, instead of the lasting "
        "one; Harvester may shorten its lifetime."
    ),
)
@click.option(
    "--lasting-token",
    is_flag=True,
    help="Add a token that does not expire to an existing account that has none.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the objects of a new account; neither read nor change Harvester.",
)
@fill(target=FileOptions, options=AccountOptions)
def create(
    secret_name: str,
    secret_namespace: str,
    output: str,
    *,
    shared: tuple[str, ...],
    dry_run: bool,
    target: FileOptions,
    options: AccountOptions,
) -> None:
    """Create an account on Harvester with the rights that the provider needs, and print its
    identity Secret.

    The output contains a token with all rights of the account. By default the token does not
    expire, and each run prints the same one. With --expires-in, each run issues a new token: run
    the command again before it expires.

    For an existing account, the command adds rights and removes none. Only --all-namespaces extends
    an account with target namespaces to all namespaces. Only --lasting-token adds a token that does
    not expire to an account without one; without this option and --expires-in, the command grants
    the rights and prints no identity.
    """
    import yaml

    from reconciler.harvester.accountobjects import Account, account_objects
    from reconciler.harvester.identitysecrets import identity_secret, shared_identity

    if options.all_namespaces and options.targets:
        raise click.UsageError("--all-namespaces and --target-namespace are mutually exclusive")
    if options.lasting_token and options.expires_in:
        raise click.UsageError("--lasting-token and --expires-in are mutually exclusive")
    if shared and output == "kubeconfig":
        raise click.UsageError("--share-with and -o kubeconfig are mutually exclusive")

    account = Account(
        options.name,
        options.namespace,
        options.targets,
        options.create_ip_pools,
        images=options.import_images,
        backups=options.back_up_vms,
    )
    if dry_run:
        _warn_about_scope(account)
        objects = account_objects(account, lasting_token=not options.expires_in)
        click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
        return

    content = asyncio.run(_create(account, options))
    if not content:
        _explain_no_identity(account, target.file)
        return

    if shared:
        source = click.get_current_context().get_parameter_source("secret_namespace")
        own = "caphv-system" if source is ParameterSource.DEFAULT else secret_namespace
        documents = shared_identity(secret_name, own, content, shared)
        content = yaml.safe_dump_all(documents, sort_keys=False)
    elif output == "secret":
        secret = identity_secret(secret_name, secret_namespace, content)
        content = yaml.safe_dump(secret, sort_keys=False)
    _write(content, target.file)


async def _create(account: Account, options: AccountOptions) -> str:
    """Create or extend the account; return its kubeconfig, empty without a token to print.

    Raises `CommandError`.
    """
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from reconciler.harvester import identityaccount
    from reconciler.harvester.kubeconfig import api_server

    try:
        connection = await own_configuration(options.harvester_kubeconfig)
        client = ApiClient(connection, name="harvester")
        try:
            # After the change, a new account would look like an existing one.
            former = await identityaccount.existing(client, account)
            return await identityaccount.create(
                client,
                _keep_former_limits(account, former, options),
                options.server or api_server(client.server),
                lasting_token=former is None or bool(former.token) or options.lasting_token,
                expires_in=(options.expires_in or 0) * 24 * 3600,
                ca=_ca_certificates(connection.tls),
            )
        finally:
            await client.close()
    except (KubeconfigError, RequestError, identityaccount.AccountError) as error:
        raise CommandError(str(error)) from error


def _keep_former_limits(
    account: Account, former: Existing | None, options: AccountOptions
) -> Account:
    """Return the account with target namespaces and token Secret of the existing account."""
    if former and former.targets and not account.targets and not options.all_namespaces:
        echo(
            f"caphv: the account keeps its target namespaces ({', '.join(former.targets)}); "
            "--all-namespaces extends it to all",
            err=True,
        )
        return replace(account, token=former.token, targets=former.targets)

    _warn_about_scope(account)
    return replace(account, token=former.token) if former else account


def _warn_about_scope(account: Account) -> None:
    if not account.targets:
        click.echo(
            "caphv: without --target-namespace, the account may read Secrets and delete VMs in all "
            "namespaces of Harvester, and cannot give clusters a cloud config",
            err=True,
        )


def _explain_no_identity(account: Account, file: Path | None) -> None:
    """Say why there is no identity to print. Raises `CommandError` if a file was named for it."""
    message = (
        "granted the rights; there is no identity to write, because ServiceAccount "
        f"{account.namespace}/{account.name} has no lasting token: add --expires-in DAYS, or "
        "--lasting-token"
    )
    if file:
        raise CommandError(message)
    click.echo(f"caphv: {message}", err=True)


def _ca_certificates(tls: ssl.SSLContext) -> str:
    """Return the CA certificates that a connection trusts, as PEM."""
    return "".join(
        ssl.DER_cert_to_PEM_cert(certificate) for certificate in tls.get_ca_certs(binary_form=True)
    )


def _write(content: str, file: Path | None) -> None:
    if file is None:
        click.echo(content, nl=False)
        return
    write_private(file, content.encode())
    click.echo(f"wrote {file}")
