"""`caphv cloud-config`: access to Harvester for cloud providers of clusters outside Cluster API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.access.management import run
from commands.cloud_config_account import (
    delete_former,
    deliver,
    issue_content,
    read_account,
    require_account,
    revoke_account,
)
from commands.options.changes import question_options
from commands.options.cloudaccount import (
    AccountOptions,
    TokenOptions,
    account_options,
    output_options,
)
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.outputfile import write_private
from commands.output.data import data_text
from commands.output.echo import echo

if TYPE_CHECKING:
    from reconciler.harvester.guestaccount import GuestAccount


@click.group(
    "cloud-config",
    epilog="""\b
Examples:
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml > user-data.yaml
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml \
--workload-kubeconfig shop.yaml
""",
)
def cloud_config() -> None:
    """Give the cloud provider and CSI driver of a cluster outside Cluster API access to Harvester.

    This is for RKE2, K3s and custom clusters on VMs that Rancher's node driver or a user created.
    For clusters of Cluster API the provider does this, see field cloudConfig of HarvesterCluster.
    """


@cloud_config.command(
    short_help="Create the account and print its cloud config.",
    epilog="""\b
Examples:
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --dry-run
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --yes > \
user-data.yaml
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --yes -o \
secret | kubectl apply -f -

Exit status: 0 done, 1 refused or aborted, 2 usage error or Harvester cannot be read.
""",
)
@account_options
@output_options
@question_options
@fill(options=TokenOptions)
def create(options: TokenOptions) -> None:
    """Create ServiceAccount NAME on Harvester with the role of cloud providers, and print its cloud
    config.

    The command does the work of the cloud provider's generate_addon.sh. Run again, it prints the
    same cloud config. The output contains a token: treat it like a password. It is cloud-init user
    data for VMs, the kubeconfig alone, the Secret for a running cluster, or data about all of it.
    """
    account = run(read_account(options))
    changes = _plan_creations(account, options)
    for line in changes:
        echo(line, err=True)
    if options.dry_run:
        _report(account, changes, options)
        return

    # Printing an existing token again needs no consent.
    if account.account is None or account.binding is None:
        options.confirm(f"Create this on Harvester for cluster {options.name}?")
    content = run(issue_content(options, renew=False))
    if not _report(account, changes, options, content):
        _write(content, options)


@cloud_config.command(
    short_help="Issue a new token, and deliver it to the cluster.",
    epilog="""\b
Examples:
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml \
--workload-kubeconfig shop.yaml
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml -o kubeconfig \
--file shop-cloud.yaml

Exit status: 0 done, 1 refused or aborted, 2 usage error or a server cannot be read.
""",
)
@account_options
@output_options
@click.option(
    "--workload-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=(
        "Kubeconfig of the cluster: write the token to its Secret "
        "kube-system/harvester-cloud-config, and revoke the former tokens."
    ),
)
@question_options
@fill(options=TokenOptions)
def renew(options: TokenOptions) -> None:
    """Issue a new token for an account, test it, and deliver it.

    With --workload-kubeconfig, the command writes the token into the cluster and revokes the former
    tokens. Otherwise it prints the token, and the former tokens stay valid until `caphv
    cloud-config revoke --former`.
    """
    account = run(read_account(options))
    require_account(account)

    workload = options.workload_kubeconfig
    target = "the output"
    if workload:
        target = "Secret kube-system/harvester-cloud-config of the cluster"
    changes = [
        f"issues another token of ServiceAccount {account.key}, tests it, and writes it to {target}"
    ]
    tokens = [
        f"{account.key.namespace}/{obj['metadata']['name']}" for obj in account.tokens if workload
    ]
    changes += [f"deletes the former token, Secret {name}" for name in tokens]
    for line in changes:
        echo(line, err=True)
    if options.dry_run:
        _report(account, changes, options)
        return

    options.confirm(f"Renew the token of cluster {options.name}?")
    content = run(issue_content(options, renew=True))
    if workload:
        # The former tokens are deleted only when the cluster has the new token. A token that
        # expires has no Secret; then even the newest Secret holds a former token.
        run(deliver(content, account.key, workload))
        click.echo(
            "wrote Secret kube-system/harvester-cloud-config; restart Pods that read it only at "
            "startup",
            err=True,
        )
        run(delete_former(options, keep_newest=not options.expires_in))
    if not _report(account, changes, options, content) and not workload:
        _write(content, options)


@cloud_config.command(
    short_help="Revoke a cluster's access.",
    epilog="""\b
Examples:
  caphv cloud-config revoke shop -n shop-vms --harvester-kubeconfig harvester.yaml --former
  caphv cloud-config revoke shop -n shop-vms --harvester-kubeconfig harvester.yaml --dry-run

Exit status: 0 done or nothing to do, 1 refused or aborted, 2 usage error or Harvester cannot be
read.
""",
)
@account_options
@click.option("--former", is_flag=True, help="Only delete the tokens before the newest one.")
@output_option()
@question_options
@fill(options=AccountOptions)
def revoke(*, former: bool, options: AccountOptions) -> None:
    """Revoke a cluster's access to Harvester: delete its account with binding and tokens.

    The cluster's cloud provider and CSI driver then no longer reach Harvester.
    """
    from reconciler.harvester import guestaccount

    account = run(read_account(options))
    tokens = guestaccount.former(account, account.current) if former else list(account.tokens)
    changes = [
        f"deletes Secret {account.key.namespace}/{obj['metadata']['name']}" for obj in tokens
    ]
    if not former:
        for kind, present in (
            ("ServiceAccount", account.account),
            ("ClusterRoleBinding", account.binding),
        ):
            if present:
                changes.append(f"deletes {kind} {account.key.name}")
    for line in changes or ["Nothing to delete"]:
        echo(line, err=True)
    if options.dry_run or not changes:
        _report(account, changes, options)
        return

    options.confirm(f"Delete this on Harvester for cluster {options.name}?")
    if former:
        run(delete_former(options, keep_newest=True))
    else:
        run(revoke_account(options))
    _report(account, changes, options, applied=True)


def _plan_creations(account: GuestAccount, options: TokenOptions) -> list[str]:
    """Return what will be created or changed on Harvester."""
    lines = []
    if account.account is None:
        lines.append(f"creates ServiceAccount {account.key}")
    if account.binding is None:
        lines.append(
            f"creates ClusterRoleBinding {account.key.name} to ClusterRole "
            "harvesterhci.io:cloudprovider"
        )

    if options.expires_in:
        lines.append(f"issues a token that expires after {options.expires_in} days")
    elif not account.tokens:
        lines.append(
            f"creates a Secret in namespace {account.key.namespace} with a token that does not "
            "expire"
        )
    return lines


def _report(
    account: GuestAccount,
    changes: list[str],
    options: AccountOptions,
    content: str = "",
    *,
    applied: bool = False,
) -> bool:
    """Write the changes as data if the user asked for data, and return whether the user did.

    A cloud config that was delivered is not shown.

    :param account: the account before the changes
    :param changes: the planned changes
    :param options: the format, and the file to write
    :param content: the cloud config that was issued, empty for none
    :param applied: whether changes were made without issuing a cloud config
    """
    from caphv.runtime.kubeconfig import parse_kubeconfig

    if options.output not in ("json", "yaml"):
        return False

    item: dict[str, Any] = {
        "account": str(account.key),
        "changes": changes,
        "applied": applied or bool(content),
    }
    if content:
        access = parse_kubeconfig(content)
        ends = access.expires()
        item |= {"server": access.server, "expires": ends.isoformat() if ends else None}
        if not (isinstance(options, TokenOptions) and options.workload_kubeconfig):
            item["kubeconfig"] = content

    file = options.file if isinstance(options, TokenOptions) else None
    _output_text(data_text(options.output, items=[item]), file)
    return True


def _write(content: str, options: TokenOptions) -> None:
    """Write the configuration in the form that the user has chosen."""
    import yaml

    from reconciler.harvester.guestaccount import cloud_init, workload_secret

    text = content
    if options.output == "cloud-init":
        text = cloud_init(content)
    elif options.output == "secret":
        text = yaml.safe_dump(workload_secret(content), sort_keys=False)
    _output_text(text, options.file)


def _output_text(text: str, file: Path | None) -> None:
    if file is None:
        click.echo(text, nl=False)
        return
    write_private(file, text.encode())
    click.echo(f"wrote {file}", err=True)
