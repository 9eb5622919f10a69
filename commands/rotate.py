"""`caphv identity rotate`: another token for an identity, tested before the former one is revoked."""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from caphv.api.counting import counted
from caphv.api.names import PREVIOUS_TOKEN_ANNOTATION
from caphv.api.object import Key, Obj
from commands.options.changes import change_options, confirm
from commands.options.clusters import CommandError, InputError
from commands.options.management import (
    context_namespace,
    management_client,
    management_options,
    object_key,
    patient_progress,
    print_data,
    run,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.api.tokens import ServiceAccountToken
    from caphv.runtime.client import ApiClient
    from caphv.runtime.kubeconfig import Kubeconfig

# The provider sees a changed Secret at once; this covers a busy one, before the former token ends.
_SETTLE_SECONDS = 10.0
_DAY = 24 * 3600


@click.command(
    "rotate",
    short_help="Replace the token of an identity.",
    epilog="""\b
Examples:
  caphv identity rotate team-a/harvester-identity --dry-run
  caphv identity rotate team-a/harvester-identity --harvester-kubeconfig harvester.yaml
  caphv identity rotate team-a/harvester-identity --expires-in 90 --yes

\b
Exit status: 0 done, 1 the new token does not work, or aborted, 2 a server or the Secret cannot be read.
""",
)
@click.argument("secret", metavar="[NAMESPACE/]SECRET")
@click.option(
    "--harvester-kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Administrator's kubeconfig for Harvester: for an expired token, or an account that may not do it itself.",
)
@click.option(
    "--expires-in",
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    help="Lifetime of the new token.  [default: that of the former one]",
)
@click.option("--keep-old", is_flag=True, help="Leave the former token valid.")
@change_options
@management_options
def rotate(secret: str, **flags: Any) -> None:
    """Replace the token in an identity Secret by a new one of the same account on Harvester.

    The new token is tested first: it has to lead to the same Harvester and to have all rights. Then the Secret is
    written, and only when the clusters that use it are still connected, the former token is deleted on Harvester. A
    token that no Secret on Harvester holds expires by itself. An interrupted rotation is completed by the next call.
    """
    key = object_key(secret, "SECRET", context_namespace(flags["kubeconfig"], flags["context"]))
    with patient_progress() as step:
        step("reading the identity")
        found = run(_read(flags, key))
    plan = _plan(found, flags)
    if flags["output"] == "text":
        _show(plan)
    if flags["dry_run"]:
        _report(plan, flags, applied=False)
        return
    confirm(flags, f"Replace the token in Secret {key}?")
    run(_rotate(found, plan, flags))
    _report(plan, flags, applied=True)


@dataclass(slots=True)
class _Identity:
    """An identity Secret with what depends on it."""

    key: Key
    secret: Obj
    content: bytes
    access: Kubeconfig
    token: ServiceAccountToken
    clusters: list[Obj] = field(default_factory=list)
    sharing: list[str] = field(default_factory=list)
    """Other identity Secrets with the same token."""
    unread: list[str] = field(default_factory=list)
    """Other identity Secrets that cannot be read: they may have the same token."""

    @property
    def previous(self) -> str:
        """Secret on Harvester that an interrupted rotation left."""
        return str((self.secret["metadata"].get("annotations") or {}).get(PREVIOUS_TOKEN_ANNOTATION) or "")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a rotation does; without `seconds` the new token does not expire, without `deletes` the former stays."""

    secret: str
    account: str
    harvester: str
    clusters: tuple[str, ...]
    issues: bool
    seconds: int
    deletes: str
    kept: str = ""


async def _read(flags: dict[str, Any], key: Key) -> _Identity:
    from caphv.api import resources
    from caphv.api.object import SECRETS
    from caphv.api.tokens import token_of
    from caphv.runtime.errors import Forbidden
    from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig, token_claims
    from overview.harvester import identity_of, sharing_token
    from overview.reader import list_all

    async with management_client(flags) as client:
        secret = await client.get(SECRETS, key.name, key.namespace)
        try:
            content = base64.b64decode((secret.get("data") or {}).get("kubeconfig") or "")
            access = parse_kubeconfig(content)
        except (binascii.Error, KubeconfigError) as error:
            raise InputError(f"Secret {key}, key kubeconfig: {error}") from None
        token = token_of(token_claims(access.token))
        if token is None:
            raise InputError(
                f"Secret {key} has no token of a ServiceAccount, which could be renewed; create an account: "
                f"{remedies.NEW_IDENTITY(target='NAMESPACE', namespace=key.namespace, name=key.name)}"
            )
        try:
            clusters = await list_all(client, resources.HARVESTER_CLUSTERS)
        except Forbidden:
            clusters = await list_all(client, resources.HARVESTER_CLUSTERS, key.namespace)
        others = {identity_of(obj) for obj in clusters} - {key}
        sharing, unread = await sharing_token(client, others, access.token)
    using = [obj for obj in clusters if identity_of(obj) == key]
    return _Identity(key, secret, content, access, token, using, sharing, unread)


def _plan(found: _Identity, flags: dict[str, Any]) -> _Plan:
    kept = ""
    if flags["keep_old"]:
        kept = "--keep-old was given"
    elif found.sharing:
        kept = f"Secret {', '.join(found.sharing)} has the same token: rotate it, too"
    elif found.unread:
        kept = f"Secret {', '.join(found.unread)} cannot be read, and may have the same token"
    seconds = (flags["expires_in"] or 0) * _DAY or (0 if found.token.secret else found.token.seconds)
    clusters = tuple(sorted(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in found.clusters))
    deletes = "" if kept else found.previous or found.token.secret
    return _Plan(
        str(found.key),
        str(found.token.account),
        found.access.server,
        clusters,
        issues=not found.previous,
        seconds=seconds,
        deletes=deletes,
        kept=kept,
    )


def _show(plan: _Plan) -> None:
    echo(f"Secret {plan.secret}: ServiceAccount {plan.account} on Harvester {plan.harvester}")
    echo(f"  used by {counted(len(plan.clusters), 'cluster')}: {', '.join(plan.clusters) or '-'}")
    life = (
        f"valid for {counted(plan.seconds // _DAY, 'day')}"
        if plan.seconds >= _DAY
        else f"valid for {plan.seconds} seconds"
    )
    if plan.issues:
        click.echo(
            f"  issues a new token, {life if plan.seconds else 'which lasts as long as its Secret there'}, and tests it"
        )
    else:
        echo("  completes a rotation that was interrupted: the new token is tested again")
    if plan.deletes:
        echo(f"  deletes the former token, Secret {plan.deletes}; other management clusters with it lose access")
    else:
        echo(f"  the former token stays valid: {plan.kept or 'no Secret holds it, it expires by itself'}")


def _report(plan: _Plan, flags: dict[str, Any], *, applied: bool) -> None:
    from overview.model import as_json

    if flags["output"] != "text":
        print_data({**as_json(plan), "applied": applied}, flags["output"])


async def _rotate(found: _Identity, plan: _Plan, flags: dict[str, Any]) -> None:
    """Issue and test, write, end the former token: what fails says which of the tokens is in use from then on."""
    to_stderr = flags["output"] != "text"
    async with _harvester(found, plan, flags) as harvester:
        content = await _tested_content(harvester, found, plan, flags)
        click.echo("the new token works", err=to_stderr)
        if plan.issues:
            await _write(flags, found, plan, content)
            echo(f"wrote Secret {found.key}", err=to_stderr)
        if plan.deletes:
            if plan.clusters:
                await asyncio.sleep(_SETTLE_SECONDS)
            await _verify(flags, found)
            await _finish(harvester, flags, found, plan.deletes, content)
            echo(f"deleted the former token, Secret {plan.deletes}", err=to_stderr)


async def _tested_content(harvester: ApiClient, found: _Identity, plan: _Plan, flags: dict[str, Any]) -> str:
    """Return the kubeconfig with the new token, which works."""
    from caphv.runtime.errors import ApiError, Unauthorized, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError
    from reconciler.harvester.identityaccount import AccountError

    try:
        content = await _new_content(harvester, found, plan)
        await _test(harvester, content, found)
    except (AccountError, KubeconfigError, ApiError, Unreachable) as error:
        what = "the token is not valid any more" if isinstance(error, Unauthorized) else "Harvester"
        raise CommandError(f"{_in_use(plan)}: {what}: {error}{_administrator(flags)}") from None
    return content


def _in_use(plan: _Plan) -> str:
    """Which token the clusters use before the Secret is written: an interrupted rotation has written it before."""
    return "the former token stays in use" if plan.issues else _written()


def _written(error: Exception | None = None) -> str:
    """What holds after the Secret was written; with an error, after the former token could not be deleted."""
    valid = "may still be" if error and _unknown(error) else "is still"
    return f"the new token is in use, and the former one {valid} valid"


def _administrator(flags: dict[str, Any]) -> str:
    return "" if flags["harvester_kubeconfig"] else "; an administrator can: --harvester-kubeconfig FILE"


def _unknown(error: Exception) -> bool:
    """Whether a request that failed may have taken effect."""
    from caphv.runtime.errors import ServerFault, Unreachable

    return isinstance(error, ServerFault | Unreachable)


@asynccontextmanager
async def _harvester(found: _Identity, plan: _Plan, flags: dict[str, Any]) -> AsyncIterator[ApiClient]:
    """Lend a client that may issue tokens: the administrator's, or that of the identity itself."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration

    try:
        if flags["harvester_kubeconfig"]:
            client = ApiClient(await own_configuration(flags["harvester_kubeconfig"]), name="harvester")
        else:
            client = found.access.client(name="harvester", user_agent="caphv-cli", timeout=15)
    except KubeconfigError as error:
        raise CommandError(f"{_in_use(plan)}: kubeconfig of Harvester: {error}") from None
    try:
        yield client
    finally:
        await client.close()


async def _new_content(harvester: ApiClient, found: _Identity, plan: _Plan) -> str:
    from reconciler.harvester.rotation import new_token, with_token

    if not plan.issues:
        return found.content.decode()
    return with_token(found.content, await new_token(harvester, found.token, plan.seconds))


async def _test(harvester: ApiClient, content: str, found: _Identity) -> None:
    """Check that the new token leads to the same Harvester, and has all rights there."""
    from caphv.api.object import NAMESPACES, uid_of
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from overview.doctor import rights

    probe = parse_kubeconfig(content).client(name="harvester", user_agent="caphv-cli", timeout=15, max_in_flight=16)
    try:
        mine, theirs = [uid_of(await each.get(NAMESPACES, "kube-system")) for each in (probe, harvester)]
        if mine != theirs:
            raise CommandError(f"{found.access.server} is not the Harvester of {harvester.server}: not changed")
        missing = await rights.denied(probe, rights.needed(found.clusters))
    finally:
        await probe.close()
    if missing:
        what = "; ".join(rights.describe(missing))
        target = next((str(cluster["spec"]["targetNamespace"]) for cluster in found.clusters), "NAMESPACE")
        raise CommandError(
            f"not changed: the account may not {what}. Grant it: "
            f"{remedies.GRANT_RIGHTS(target=target, pools='')}, with --name and --namespace of the account"
        )


async def _write(flags: dict[str, Any], found: _Identity, plan: _Plan, content: str) -> None:
    from caphv.api.object import SECRETS
    from caphv.runtime.errors import ApiError, Conflict, Unreachable

    metadata: Obj = {"resourceVersion": found.secret["metadata"]["resourceVersion"]}
    metadata["annotations"] = {PREVIOUS_TOKEN_ANNOTATION: plan.deletes or None}
    data = {"kubeconfig": base64.b64encode(content.encode()).decode()}
    async with management_client(flags) as client:
        try:
            await client.patch(SECRETS, found.key.name, found.key.namespace, {"metadata": metadata, "data": data})
        except Conflict:
            raise CommandError(
                f"the former token stays in use: Secret {found.key} was changed meanwhile: run this again"
            ) from None
        except (ApiError, Unreachable) as error:
            what = f"Secret {found.key} cannot be written on the management cluster: {error}"
            if _unknown(error):
                text = "the Secret has the new token or the former one; both are valid, so clusters stay connected"
                raise CommandError(f"{text}. Run this again: {what}") from None
            raise CommandError(f"the former token stays in use: {what}") from None


async def _verify(flags: dict[str, Any], found: _Identity) -> None:
    """Check that clusters which were connected before still are."""
    from caphv.api.names import ConditionType
    from caphv.api.resources import HARVESTER_CLUSTERS
    from caphv.runtime.errors import ApiError, NotFound, Unreachable
    from overview.objects import condition_of

    def connected(obj: Obj) -> bool:
        return condition_of(obj, ConditionType.HARVESTER_CONNECTION_READY).get("status") == "True"

    lost = []
    async with management_client(flags) as client:
        for obj in filter(connected, found.clusters):
            metadata = obj["metadata"]
            try:
                now = await client.get(HARVESTER_CLUSTERS, metadata["name"], metadata["namespace"])
            except NotFound:
                continue  # deleted meanwhile: it needs no token
            except (ApiError, Unreachable) as error:
                raise CommandError(f"{_written()}: management cluster: {error}. Run this again") from None
            lost += [] if connected(now) else [f"{metadata['namespace']}/{metadata['name']}"]
    if lost:
        echo(
            f"The former token stays valid: {', '.join(lost)} lost the connection. Run this again once it is back.",
            err=True,
        )
        sys.exit(1)


async def _finish(harvester: ApiClient, flags: dict[str, Any], found: _Identity, name: str, content: str) -> None:
    """Delete the former token, then the note that it has to be deleted."""
    from caphv.api.object import SECRETS
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from reconciler.harvester.rotation import delete_token

    if not flags["harvester_kubeconfig"]:
        # The client has the former token, which ends with its Secret.
        harvester = parse_kubeconfig(content).client(name="harvester", user_agent="caphv-cli", timeout=15)
    try:
        await delete_token(harvester, found.token.account, name)
    except (ApiError, Unreachable) as error:
        raise CommandError(f"{_written(error)}: Harvester: {error}. Run this again{_administrator(flags)}") from None
    finally:
        if not flags["harvester_kubeconfig"]:
            await harvester.close()
    async with management_client(flags) as client:
        patch = {"metadata": {"annotations": {PREVIOUS_TOKEN_ANNOTATION: None}}}
        try:
            await client.patch(SECRETS, found.key.name, found.key.namespace, patch)
        except (ApiError, Unreachable) as error:
            raise CommandError(
                "the new token is in use, and the former one is deleted; "
                f"the note on Secret {found.key} stays; run this again: {error}"
            ) from None
