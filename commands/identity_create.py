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
    from reconciler.harvester.identityaccount import Account, Existing

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
    help="Administrator's kubeconfig for Harvester.",
)
@click.option(
    "--name",
    default="caphv",
    callback=_check_names,
    help="Name of the ServiceAccount on Harvester.",
)
@click.option(
    "--namespace",
    default="caphv-system",
    callback=_check_names,
    shell_complete=complete_on_harvester(NAMESPACES),
    help="Namespace of the ServiceAccount on Harvester.",
)
@click.option(
    "--target-namespace",
    "targets",
    multiple=True,
    callback=_check_names,
    shell_complete=complete_on_harvester(NAMESPACES),
    help=(
        "Namespace for VMs; may be repeated. By default a new account may use and create all "
        "namespaces, and an existing one keeps its target namespaces."
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
    help="May also create and delete IPPools, for clusters that describe their own.",
)
@click.option(
    "--import-images",
    multiple=True,
    metavar="NAMESPACE",
    callback=_check_names,
    shell_complete=complete_on_harvester(NAMESPACES),
    help="Namespace into which clusters may have images imported; may be repeated.",
)
@click.option(
    "--back-up-vms",
    is_flag=True,
    help="May also back up VMs, for clusters that keep backups of replaced control plane machines.",
)
@click.option(
    "--server",
    default="",
    show_default=False,
    help=(
        "URL of Harvester's API server for the identity.  [default: from the kubeconfig, without "
        "Rancher's proxy]"
    ),
)
@click.option(
    "--secret-name",
    default="harvester-identity",
    callback=_check_names,
    help="Name of the identity Secret.",
)
@click.option(
    "--secret-namespace",
    default="default",
    callback=_check_names,
    help=(
        "Namespace of the identity Secret, that of the clusters; with --share-with that of "
        "the provider, caphv-system by default."
    ),
)
@click.option(
    "--share-with",
    "shared",
    multiple=True,
    metavar="NAMESPACE",
    callback=_check_shared,
    help=(
        "Also write a HarvesterClusterIdentity, with the name of the Secret, that clusters of this "
        "namespace may use; may be repeated, * for all."
    ),
)
@output_option("secret", "kubeconfig")
@file_options("File to write, with mode 0600; default: standard output.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    show_default=False,
    help=(
        "Issue a new token that expires, instead of the account's lasting one; Harvester may limit "
        "its lifetime."
    ),
)
@click.option(
    "--lasting-token",
    is_flag=True,
    help="Add a token that does not expire to an existing account without one.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the objects of a new account, without reading or changing Harvester.",
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
    """Create an account on Harvester with the rights that the provider needs, and write its
    identity Secret.

    The output contains a token that grants all rights of the account. By default it does not
    expire, and each call prints the same one. With --expires-in, each call issues a new token; run
    the command again before it expires.

    The command adds rights to an existing account and removes none. It extends an account with
    target namespaces to all namespaces only with --all-namespaces. An existing account without a
    lasting token gets one only with --lasting-token; without this option and --expires-in, the
    command grants the rights and prints no identity.
    """
    import yaml

    from reconciler.harvester import identityaccount

    if options.all_namespaces and options.targets:
        raise click.UsageError("--all-namespaces and --target-namespace exclude each other")
    if options.lasting_token and options.expires_in:
        raise click.UsageError("--lasting-token and --expires-in exclude each other")
    if shared and output == "kubeconfig":
        raise click.UsageError("--share-with and -o kubeconfig exclude each other")

    account = identityaccount.Account(
        options.name,
        options.namespace,
        options.targets,
        options.create_ip_pools,
        images=options.import_images,
        backups=options.back_up_vms,
    )
    if dry_run:
        _warn_about_scope(account)
        objects = identityaccount.objects(account, lasting_token=not options.expires_in)
        click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
        return

    content = asyncio.run(_create(account, options))
    if not content:
        _explain_no_identity(account, target.file)
        return

    if shared:
        source = click.get_current_context().get_parameter_source("secret_namespace")
        own = "caphv-system" if source is ParameterSource.DEFAULT else secret_namespace
        documents = identityaccount.shared_identity(secret_name, own, content, shared)
        content = yaml.safe_dump_all(documents, sort_keys=False)
    elif output == "secret":
        secret = identityaccount.identity_secret(secret_name, secret_namespace, content)
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

    try:
        connection = await own_configuration(options.harvester_kubeconfig)
        client = ApiClient(connection, name="harvester")
        try:
            # After the change, a new account would look like an existing one.
            former = await identityaccount.existing(client, account)
            account = _keep_former_limits(account, former, options)
            return await identityaccount.create(
                client,
                account,
                options.server or identityaccount.api_server(client.server),
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
    if former:
        account = replace(account, token=former.token)
        if former.targets and not account.targets and not options.all_namespaces:
            echo(
                f"caphv: the account keeps its target namespaces ({', '.join(former.targets)}); "
                "--all-namespaces extends it to all",
                err=True,
            )
            return replace(account, targets=former.targets)
    _warn_about_scope(account)
    return account


def _warn_about_scope(account: Account) -> None:
    if not account.targets:
        click.echo(
            "caphv: without --target-namespace, the account may read Secrets and delete VMs in all "
            "namespaces of Harvester, and give no cluster a cloud config",
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
