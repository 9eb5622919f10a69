"""`caphv identity`: accounts for the provider on Harvester, and their identity Secrets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.access.changes import confirm
from commands.access.management import management_client, run
from commands.identity_create import create
from commands.identity_rotate import rotate
from commands.options.changes import ChangeOptions, change_options
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    management_options,
    namespace_options,
    selection,
)
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from operations.status.identities import Identity


@click.group(
    epilog="""\b
Examples:
  caphv identity create --harvester-kubeconfig harvester.yaml --dry-run
  caphv identity create --harvester-kubeconfig harvester.yaml --target-namespace team-a | kubectl \
apply -f -
"""
)
def identity() -> None:
    """Manage the provider's accounts on Harvester."""


identity.add_command(create)
identity.add_command(rotate)


@identity.command(
    "list",
    short_help="List identities with their expiry and clusters.",
    epilog="""\b
Examples:
  caphv identity list -A
  caphv identity list -A -o json | jq '.items[] | select(.wrong)'

Exit status: 0 all identities are valid, 1 an identity is invalid or expires within 14 days, 2 the
management cluster cannot be read.
""",
)
@namespace_options
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def list_identities(*, output: str, scope: ScopeOptions) -> None:
    """List identity Secrets with their Harvester, the expiry of their credentials, and the clusters
    that use them.

    If your rights suffice, the list includes what no cluster uses: Secrets with a kubeconfig, and
    HarvesterClusterIdentities (with a namespace, those whose Secret is in it).
    """
    chosen = selection((), scope)
    with patient_progress():
        identities = run(_read_identities(scope, chosen.namespace))

    if output == "text":
        from commands.output import identities as out
        from commands.output import overview

        if identities:
            out.show(overview.console(), identities)
        else:
            # An empty table would look as if there were no identity at all.
            where = f"in namespace {chosen.namespace}; all namespaces: -A"
            echo(f"No identities {where if chosen.namespace else 'here'}", err=True)
    else:
        print_data(output, items=identities)
    sys.exit(1 if any(identity.wrong for identity in identities) else 0)


@identity.command(
    "remove-finalizers",
    short_help="Remove the provider's finalizers from identity Secrets.",
    epilog="""\b
Examples:
  kubectl scale deployment caphv-controller-manager -n caphv-system --replicas 0
  caphv identity remove-finalizers -A --dry-run
  caphv identity remove-finalizers -A

Exit status: 0 done, 1 aborted, or a Secret could not be changed, 2 the management cluster cannot
be read.
""",
)
@namespace_options
@change_options
@management_options
@fill(change=ChangeOptions, scope=ScopeOptions)
def remove_finalizers(*, change: ChangeOptions, scope: ScopeOptions) -> None:
    """Remove the provider's finalizers from identity Secrets, before you uninstall the provider.

    The finalizers keep credentials until all clusters that use them are deleted. Without the
    provider nothing removes them, so that the deletion of a Secret or namespace would be stuck. Run
    this command before you uninstall the provider or return to the Go provider. Stop the provider
    first: while it runs, it sets the finalizers again.
    """
    from caphv.api.object import key_of
    from reconciler.cluster import identityprotection

    chosen = selection((), scope)
    with patient_progress():
        secrets, running = run(_read_protected_secrets(scope, chosen.namespace))
    keys = [key_of(secret) for secret in secrets]
    if not keys and change.is_text:
        click.echo("No Secret has a finalizer of the provider")
    for key in keys if change.is_text else ():
        echo(f"Secret {key}")
    if keys and running:
        echo(
            f"caphv: a provider is running (Lease {running}) and sets the finalizers again; stop "
            f"it first: {remedies.STOP_PROVIDER(namespace=running.partition('/')[0])}",
            err=True,
        )
    changed: set[Key] = set()
    if keys and not change.dry_run:
        confirm(change, f"Remove the finalizers of {counted(len(keys), 'Secret')}?")

        async def remove_all() -> dict[Key, str]:
            async with management_client(scope) as client:
                return await identityprotection.remove_all(client, secrets)

        errors = run(remove_all())
        for key, error in errors.items():
            echo(f"caphv: Secret {key}: {error}", err=True)
        changed = set(keys) - set(errors)
        if change.is_text:
            click.echo(f"removed the finalizers of {counted(len(changed), 'Secret')}")

    if not change.is_text:
        items = [{"secret": str(key), "applied": key in changed} for key in keys]
        print_data(change.output, provider=running, items=items)
    if not change.dry_run:
        sys.exit(1 if len(changed) < len(keys) else 0)


async def _read_protected_secrets(
    management: ManagementOptions, namespace: str
) -> tuple[list[Obj], str]:
    """Return the Secrets with finalizers of the provider, and the Lease of a running provider.

    The Lease is empty when no provider runs.
    """
    from reconciler.cluster import identityprotection

    async with management_client(management) as client:
        secrets = await identityprotection.secrets_with_finalizer(client, namespace)
        return secrets, await identityprotection.running(client)


async def _read_identities(management: ManagementOptions, namespace: str) -> tuple[Identity, ...]:
    """Return the identities that clusters use, and unused ones as far as the user may list them."""
    from datetime import UTC, datetime

    from caphv.api import resources
    from caphv.api.identities import cluster_identity, identity_of, secret_of
    from caphv.api.object import SECRETS, key_of
    from caphv.runtime.errors import Forbidden
    from operations.read.accounts import (
        list_cluster_identities,
        read_accounts,
        read_unused_identities,
    )
    from operations.read.management import list_all
    from operations.status.identities import identities_of, unused_secrets

    async with management_client(management) as client:
        clusters = await list_all(client, resources.HARVESTER_CLUSTERS, namespace)
        spare: dict[Key, Obj] = {}
        shared: dict[Key, Obj] = {}
        try:
            # A cluster in another namespace may use a Secret of this namespace.
            others = await list_all(client, resources.HARVESTER_CLUSTERS) if namespace else clusters
            used = {identity_of(obj) for obj in (*clusters, *others)}

            for obj in await list_cluster_identities(client):
                key = cluster_identity(key_of(obj).name)
                secret = secret_of(obj)
                if key not in used and namespace in ("", secret.namespace):
                    shared[key] = obj
                used.add(secret)
            secrets = await list_all(client, SECRETS, namespace)
            spare = {key_of(obj): obj for obj in unused_secrets(secrets, used)}
        except Forbidden as error:
            echo(f"not seen: identities that no cluster uses: {error}", err=True)

        # An unused Secret is read as if a cluster named it.
        owners = [*clusters, *({"spec": {"identitySecret": key._asdict()}} for key in spare)]
        accounts, unseen = await read_accounts(client, owners, spare)
        unused, unusable = await read_unused_identities(client, shared.values())
    return identities_of(
        clusters, accounts + unused, unseen + unusable, datetime.now(UTC), [*spare, *shared]
    )
