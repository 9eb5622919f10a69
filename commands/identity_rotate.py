"""`caphv identity rotate`: another token for an identity, tested before the former one ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from caphv.api.counting import counted
from caphv.api.object import Key
from commands.access.changes import confirm
from commands.access.management import management_client, run
from commands.errors import CommandError, InputError
from commands.options.changes import ChangeOptions, change_options
from commands.options.groups import fill
from commands.options.management import (
    ManagementOptions,
    context_namespace,
    management_options,
    object_key,
)
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.tokens import ServiceAccountToken
    from caphv.runtime.client import ApiClient
    from operations.change.rotation.identity import RotatedIdentity
    from operations.change.rotation.plan import RotationPlan
    from operations.change.rotation.run import TokenIssuer

_DAY = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class RotateOptions(ManagementOptions, ChangeOptions):
    """Options for the issuer and the lifetime of the new token, and for the former token."""

    harvester_kubeconfig: str | None
    expires_in: int | None
    keep_old: bool


@click.command(
    "rotate",
    short_help="Replace the token of an identity.",
    epilog="""\b
Examples:
  caphv identity rotate team-a/harvester-identity --dry-run
  caphv identity rotate team-a/harvester-identity --harvester-kubeconfig harvester.yaml
  caphv identity rotate team-a/harvester-identity --expires-in 90 --yes

Exit status: 0 done, 1 aborted, the new token does not work, or --dry-run found an obstacle, 2 a
server or the Secret cannot be read.
""",
)
@click.argument("secret", metavar="[NAMESPACE/]SECRET")
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=(
        "Administrator's kubeconfig for Harvester, if the token has expired or the "
        "account may not rotate its own token."
    ),
)
@click.option(
    "--expires-in",
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    help="Lifetime of the new token, in days.  [default: that of the former token]",
)
@click.option("--keep-old", is_flag=True, help="Keep the former token valid.")
@change_options
@management_options
@fill(options=RotateOptions)
def rotate(secret: str, options: RotateOptions) -> None:
    """Replace the token in an identity Secret with a new one of the same account on Harvester.

    The command first tests that the new token reaches the same Harvester and has all rights. Then
    it writes the Secret. It deletes the former token on Harvester only if the clusters that use the
    Secret are still connected. A token without a Secret on Harvester expires by itself. After an
    interruption, run the command again to complete the rotation.

    With --dry-run, the command also asks both servers whether it has the rights for the rotation.
    """
    from operations.change.rotation.plan import plan_rotation

    key = object_key(secret, "SECRET", context_namespace(options))
    with patient_progress() as step:
        step("reading the identity")
        identity = run(_read(options, key))
    plan = plan_rotation(identity, expires_in=options.expires_in, keep_old=options.keep_old)
    if options.is_text:
        _show(plan)
    if options.dry_run:
        with patient_progress() as step:
            step("checking rights")
            problems = run(_find_problems(identity, plan, options))
        _report(plan, options, applied=False, problems=problems)
        sys.exit(1 if problems else 0)

    confirm(options, f"Replace the token in Secret {key}?")
    run(_rotate(identity, plan, options))
    _report(plan, options, applied=True)


async def _read(options: RotateOptions, key: Key) -> RotatedIdentity:
    from operations.change.rotation.identity import IdentityError, read_identity

    async with management_client(options) as client:
        try:
            return await read_identity(client, key)
        except IdentityError as error:
            raise InputError(str(error)) from None


def _show(plan: RotationPlan) -> None:
    """Write what a rotation will do."""
    echo(f"Secret {plan.secret}: ServiceAccount {plan.account} on Harvester {plan.harvester}")
    echo(f"  used by {counted(len(plan.clusters), 'cluster')}: {', '.join(plan.clusters) or '-'}")

    if plan.seconds >= _DAY:
        lifetime = f"valid for {counted(plan.seconds // _DAY, 'day')}"
    elif plan.seconds:
        lifetime = f"valid for {plan.seconds} seconds"
    else:
        lifetime = "valid as long as its Secret on Harvester exists"

    if plan.issues:
        click.echo(f"  issues a new token, {lifetime}, and tests it")
    else:
        echo("  completes an interrupted rotation: tests the new token again")
    if plan.deletes:
        echo(
            f"  deletes the former token, Secret {plan.deletes}; other management clusters with it "
            "lose access"
        )
    else:
        echo(
            "  the former token stays valid: "
            f"{plan.kept or 'no Secret holds it, it expires by itself'}"
        )


def _report(
    plan: RotationPlan, change: ChangeOptions, *, applied: bool, problems: Sequence[str] = ()
) -> None:
    """Write the plan as data, or the problems as text."""
    from operations.status.model import as_json

    if not change.is_text:
        item = {**as_json(plan), "applied": applied, "problems": problems}
        print_data(change.output, items=[item])
        return
    for problem in problems:
        echo(f"caphv: {problem}", err=True)


async def _find_problems(
    identity: RotatedIdentity, plan: RotationPlan, options: RotateOptions
) -> list[str]:
    """Return the problems that would stop the rotation.

    Raises `CommandError` if the kubeconfig cannot be used.
    """
    from operations.change.rotation.preflight import find_problems

    async with (
        _harvester_client(identity, plan, options) as harvester,
        management_client(options) as management,
    ):
        is_administrator = bool(options.harvester_kubeconfig)
        return await find_problems(
            management, harvester, identity, plan, is_administrator=is_administrator
        )


async def _rotate(identity: RotatedIdentity, plan: RotationPlan, options: RotateOptions) -> None:
    """Rotate the token. Raises `CommandError`, whose message says which token is in use."""
    from operations.change.rotation.run import LostConnectionError, Rotation, RotationError

    def report(text: str) -> None:
        echo(text, err=not options.is_text)

    async with (
        _harvester_client(identity, plan, options) as harvester,
        management_client(options) as management,
    ):
        is_administrator = bool(options.harvester_kubeconfig)
        rotation = Rotation(
            management=management,
            harvester=harvester,
            is_administrator=is_administrator,
            identity=identity,
            plan=plan,
            issuer=token_issuer(),
            report=report,
        )
        try:
            await rotation.run()
        except RotationError as error:
            raise CommandError(str(error)) from None
        except LostConnectionError as error:
            echo(str(error), err=True)
            sys.exit(1)


def token_issuer() -> TokenIssuer:
    """Return the reconciler's functions for tokens, which operations do not import."""
    from operations.change.rotation.run import TokenIssuer
    from reconciler.harvester.rotation import delete_token

    return TokenIssuer(_renew_token, delete_token)


async def _renew_token(
    client: ApiClient, kubeconfig: bytes, token: ServiceAccountToken, seconds: int
) -> str:
    """Return the kubeconfig with another token. Raises `TokenError`, `ApiError`, `Unreachable`."""
    from operations.change.rotation.run import TokenError
    from reconciler.harvester.identityaccount import AccountError
    from reconciler.harvester.rotation import new_token, with_token

    try:
        return with_token(kubeconfig, await new_token(client, token, seconds))
    except AccountError as error:
        raise TokenError(str(error)) from None


@asynccontextmanager
async def _harvester_client(
    identity: RotatedIdentity, plan: RotationPlan, options: RotateOptions
) -> AsyncIterator[ApiClient]:
    """Lend a client that may issue tokens: an administrator's client, or the identity's own."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.kubeconfig import KubeconfigError
    from operations.change.rotation.run import tokens_before_writing

    try:
        if options.harvester_kubeconfig:
            connection = await own_configuration(options.harvester_kubeconfig)
            client = ApiClient(connection, name="harvester")
        else:
            client = identity.access.client(name="harvester", user_agent="caphv-cli", timeout=15)
    except KubeconfigError as error:
        raise CommandError(
            f"{tokens_before_writing(plan)}: kubeconfig of Harvester: {error}"
        ) from None
    try:
        yield client
    finally:
        await client.close()
