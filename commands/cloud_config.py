"""`caphv cloud-config`: access to Harvester for cloud provider and CSI driver of clusters outside Cluster API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.changes import confirm
from commands.options.clusters import CommandError, InputError
from commands.options.management import run
from commands.options.outputfile import file_options, write_private
from commands.output.data import data_text
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from caphv.runtime.client import ApiClient
    from reconciler.harvester.guestaccount import GuestAccount

_T = TypeVar("_T")
_DAY = 24 * 3600


@click.group(
    "cloud-config",
    epilog="""\b
Examples:
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml > user-data.yaml
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml --workload-kubeconfig shop.yaml
""",
)
def cloud_config() -> None:
    """Give cloud provider and CSI driver of a cluster outside Cluster API access to Harvester.

    For RKE2, K3s and custom clusters on VMs that Rancher's node driver or a user created. The provider does this
    for clusters of Cluster API: see field cloudConfig of HarvesterCluster.
    """


def _name(_ctx: click.Context, _option: click.Parameter, text: str) -> str:
    if not text or "/" in text:
        raise click.BadParameter(f"{text!r} is not the name of an object")
    return text


def _options(command: Any) -> Any:
    for add in (
        click.option(
            "--harvester-kubeconfig",
            type=click.Path(exists=True, dir_okay=False),
            required=True,
            help="Administrator's kubeconfig for Harvester.",
        ),
        click.option(
            "-n", "--namespace", required=True, callback=_name, help="Namespace of the cluster's VMs on Harvester."
        ),
        click.argument("name", callback=_name),
    ):
        command = add(command)
    return command


def _change(command: Any) -> Any:
    for add in (
        click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    ):
        command = add(command)
    return command


def _output(command: Any) -> Any:
    for add in (
        file_options("File to write, with mode 0600; default: standard output."),
        click.option(
            "-o",
            "--output",
            type=click.Choice(["cloud-init", "kubeconfig", "secret", "json", "yaml"]),
            default="cloud-init",
            show_default=True,
            help="User data for VMs, the kubeconfig alone, the Secret for a running cluster, or data about all of it.",
        ),
        click.option("--server", default="", help="URL of Harvester for guests.  [default: its virtual address]"),
        click.option(
            "--expires-in",
            type=click.IntRange(1, 3650),
            metavar="DAYS",
            help="Issue a token that expires; Harvester may limit its lifetime.  [default: does not expire]",
        ),
    ):
        command = add(command)
    return command


@cloud_config.command(
    short_help="Create the account and print its cloud config.",
    epilog="""\b
Examples:
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --dry-run
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --yes > user-data.yaml
  caphv cloud-config create shop -n shop-vms --harvester-kubeconfig harvester.yaml --yes -o secret | kubectl apply -f -

\b
Exit status: 0 done, 1 refused or aborted, 2 invalid usage or Harvester cannot be read.
""",
)
@_options
@_output
@_change
def create(name: str, **flags: Any) -> None:
    """Create ServiceAccount NAME on Harvester with the role of cloud providers, and print its cloud config.

    Does what generate_addon.sh of the cloud provider does. Run again, it prints the same cloud config. The output
    contains a token: treat it like a password.
    """
    found = run(_read(name, flags))
    changes = _creations(found, flags)
    for line in changes:
        echo(line, err=True)
    if flags["dry_run"]:
        _report(found, changes, flags)
        return
    if found.account is None or found.binding is None:
        confirm({**flags, "output": "data"}, f"Create this on Harvester for cluster {name}?")
    content = run(_content(name, flags, renew=False))
    if not _report(found, changes, flags, content):
        _write(content, flags)


@cloud_config.command(
    short_help="Issue another token, and deliver it to the cluster.",
    epilog="""\b
Examples:
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml --workload-kubeconfig shop.yaml
  caphv cloud-config renew shop -n shop-vms --harvester-kubeconfig harvester.yaml -o kubeconfig --file shop-cloud.yaml

\b
Exit status: 0 done, 1 refused or aborted, 2 invalid usage or a server cannot be read.
""",
)
@_options
@_output
@click.option(
    "--workload-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Write it to Secret kube-system/harvester-cloud-config of this cluster, then revoke the former tokens.",
)
@_change
def renew(name: str, **flags: Any) -> None:
    """Issue another token of an account, test it, and deliver it.

    With --workload-kubeconfig it is written into the cluster, and the former tokens are revoked. Otherwise it is
    printed, and the former tokens stay valid until `revoke --former`.
    """
    found = run(_read(name, flags))
    _require(found)
    workload = flags["workload_kubeconfig"]
    what = "Secret kube-system/harvester-cloud-config of the cluster" if workload else "the output"
    changes = [f"issues another token of ServiceAccount {found.key}, tests it, and writes it to {what}"]
    tokens = [f"{found.key.namespace}/{obj['metadata']['name']}" for obj in found.tokens if workload]
    changes += [f"deletes the former token, Secret {name}" for name in tokens]
    for line in changes:
        echo(line, err=True)
    if flags["dry_run"]:
        _report(found, changes, flags)
        return
    confirm({**flags, "output": "data"}, f"Renew the token of cluster {name}?")
    content = run(_content(name, flags, renew=True))
    if workload:
        run(_deliver(content, found.key, workload))
        click.echo("wrote Secret kube-system/harvester-cloud-config; restart Pods that read it at start only", err=True)
        run(_end_former(name, flags, keep_newest=not flags["expires_in"]))
    if not _report(found, changes, flags, content) and not workload:
        _write(content, flags)


@cloud_config.command(
    short_help="Revoke a cluster's access.",
    epilog="""\b
Examples:
  caphv cloud-config revoke shop -n shop-vms --harvester-kubeconfig harvester.yaml --former
  caphv cloud-config revoke shop -n shop-vms --harvester-kubeconfig harvester.yaml --dry-run

\b
Exit status: 0 done or nothing to do, 1 refused or aborted, 2 invalid usage or Harvester cannot be read.
""",
)
@_options
@click.option("--former", is_flag=True, help="Only tokens before the newest one.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@_change
def revoke(name: str, **flags: Any) -> None:
    """Delete binding, tokens and account of a cluster: its cloud provider and CSI driver lose access."""
    from reconciler.harvester.guestaccount import former

    found = run(_read(name, flags))
    objs = former(found, found.current) if flags["former"] else list(found.tokens)
    changes = [f"deletes Secret {found.key.namespace}/{obj['metadata']['name']}" for obj in objs]
    if not flags["former"]:
        for kind, present in (("ServiceAccount", found.account), ("ClusterRoleBinding", found.binding)):
            changes += [f"deletes {kind} {found.key.name}"] if present else []
    for line in changes or ["Nothing to delete"]:
        echo(line, err=True)
    if flags["dry_run"] or not changes:
        _report(found, changes, flags)
        return
    confirm({**flags, "output": "data"}, f"Delete this on Harvester for cluster {name}?")
    if flags["former"]:
        run(_end_former(name, flags, keep_newest=True))
    else:
        run(_revoke(name, flags))
    _report(found, changes, flags, applied=True)


def _creations(found: GuestAccount, flags: dict[str, Any]) -> list[str]:
    lines = []
    if found.account is None:
        lines.append(f"creates ServiceAccount {found.key}")
    if found.binding is None:
        lines.append(f"creates ClusterRoleBinding {found.key.name} to ClusterRole harvesterhci.io:cloudprovider")
    if flags["expires_in"]:
        lines.append(f"issues a token that expires after {flags['expires_in']} days")
    elif not found.tokens:
        lines.append(f"creates a Secret in namespace {found.key.namespace} with a token that does not expire")
    return lines


def _report(
    found: GuestAccount, changes: list[str], flags: dict[str, Any], content: str = "", *, applied: bool = False
) -> bool:
    """Write what was done as data, if that is asked for; a cloud config that was delivered is not shown."""
    from caphv.runtime.kubeconfig import parse_kubeconfig

    if flags["output"] not in ("json", "yaml"):
        return False
    data: dict[str, Any] = {"account": str(found.key), "changes": changes, "applied": applied or bool(content)}
    if content:
        access = parse_kubeconfig(content)
        ends = access.expires()
        data |= {"server": access.server, "expires": ends.isoformat() if ends else None}
        if not flags.get("workload_kubeconfig"):
            data["kubeconfig"] = content
    _output_text(data_text(data, flags["output"]), flags.get("file"))
    return True


def _require(found: GuestAccount) -> None:
    if found.account is None or found.binding is None or found.obstacles():
        why = "; ".join(found.obstacles()) or "it does not exist"
        raise CommandError(f"no account {found.key} for a cloud provider on Harvester: {why}")


async def _read(name: str, flags: dict[str, Any]) -> GuestAccount:
    async def read(_client: ApiClient, found: GuestAccount) -> GuestAccount:
        return found

    return await _with_account(name, flags, read)


async def _content(name: str, flags: dict[str, Any], *, renew: bool) -> str:
    """Ensure the account and return its kubeconfig, which was tested at Harvester's API server."""
    from reconciler.harvester import guestaccount
    from reconciler.harvester.identityaccount import api_server

    async def make(client: ApiClient, found: GuestAccount) -> str:
        await guestaccount.ensure(client, found)
        seconds = (flags["expires_in"] or 0) * _DAY
        token, ca = await guestaccount.token(client, found, seconds=seconds, renew=renew)
        namespace = found.key.namespace
        direct = guestaccount.cloud_config(api_server(client.server), ca, token, namespace)
        await guestaccount.works(direct, namespace)
        server = flags["server"] or await guestaccount.server(client)
        return guestaccount.cloud_config(server, ca, token, namespace)

    return await _with_account(name, flags, make)


async def _end_former(name: str, flags: dict[str, Any], *, keep_newest: bool) -> None:
    from caphv.api.object import SECRETS
    from reconciler.harvester import guestaccount

    async def end(client: ApiClient, found: GuestAccount) -> None:
        kept = found.current if keep_newest else ""
        await guestaccount.delete_all(client, [(SECRETS, obj) for obj in guestaccount.former(found, kept)])

    await _with_account(name, flags, end)


async def _revoke(name: str, flags: dict[str, Any]) -> None:
    from reconciler.harvester import guestaccount

    await _with_account(name, flags, guestaccount.delete)


async def _deliver(content: str, account: Key, kubeconfig: str) -> None:
    from caphv.api.object import SECRETS
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from reconciler.harvester.guestaccount import workload_secret

    try:
        client = ApiClient(await own_configuration(kubeconfig), name="workload", user_agent="caphv-cli")
        try:
            await _require_same_account(client, workload_secret(content), account)
            await client.apply(SECRETS, workload_secret(content), manager="caphv-cloud-config")
        finally:
            await client.close()
    except (KubeconfigError, ApiError, Unreachable) as error:
        msg = f"not delivered, the former token stays valid; run this again: {error}"
        raise CommandError(msg) from None


async def _require_same_account(client: ApiClient, wanted: Obj, account: Key) -> None:
    """Raise `CommandError` if the cluster has the cloud config of another account: it is another cluster."""
    from caphv.api.object import SECRETS, key_of
    from caphv.api.tokens import token_of
    from caphv.runtime.errors import NotFound
    from caphv.runtime.kubeconfig import KubeconfigError, token_claims
    from overview.harvester import access_of

    key = key_of(wanted)
    try:
        secret = await client.get(SECRETS, key.name, key.namespace)
        before = access_of(key, secret, next(iter(wanted["data"])))
    except (NotFound, KubeconfigError):
        return  # there is none, or none that works
    former = token_of(token_claims(before.token))
    if former and former.account != account:
        raise CommandError(
            f"Secret {key} of the cluster is of ServiceAccount {former.account}, not of {account}, and was not "
            "replaced: name the kubeconfig of the right cluster, or delete that Secret"
        )


async def _with_account(
    name: str, flags: dict[str, Any], work: Callable[[ApiClient, GuestAccount], Coroutine[Any, Any, _T]]
) -> _T:
    """Do something with the account as it is now. What Harvester refuses becomes a message."""
    from caphv.api.object import Key
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from reconciler.harvester.guestaccount import read
    from reconciler.harvester.identityaccount import AccountError

    try:
        connection = await own_configuration(flags["harvester_kubeconfig"])
        client = ApiClient(connection, name="harvester", user_agent="caphv-cli", timeout=30)
        try:
            return await work(client, await read(client, Key(flags["namespace"], name)))
        finally:
            await client.close()
    except AccountError as error:
        raise CommandError(str(error)) from None
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"Harvester: {error}") from None


def _write(content: str, flags: dict[str, Any]) -> None:
    import yaml

    from reconciler.harvester.guestaccount import cloud_init, workload_secret

    text = content
    if flags["output"] == "cloud-init":
        text = cloud_init(content)
    elif flags["output"] == "secret":
        text = yaml.safe_dump(workload_secret(content), sort_keys=False)
    _output_text(text, flags["file"])


def _output_text(text: str, file: Path | None) -> None:
    if file is None:
        click.echo(text, nl=False)
        return
    write_private(file, text.encode())
    click.echo(f"wrote {file}", err=True)
