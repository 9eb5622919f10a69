"""Make the changes of `caphv cloud-config` on Harvester, and on the cluster that gets a token."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from commands.errors import CommandError, InputError

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from caphv.runtime.client import ApiClient
    from commands.options.cloudaccount import AccountOptions, TokenOptions
    from reconciler.harvester.guestaccount import GuestAccount

_T = TypeVar("_T")
_DAY = 24 * 3600


async def read_account(options: AccountOptions) -> GuestAccount:
    """Return the account as it is now. Raises `CommandError`, `InputError`."""

    async def return_account(_client: ApiClient, account: GuestAccount) -> GuestAccount:
        return account

    return await _with_account(options, return_account)


def require_account(account: GuestAccount) -> None:
    """Raise `CommandError` unless the account exists and belongs to a cloud provider."""
    obstacles = account.obstacles()
    if account.account is None or account.binding is None or obstacles:
        reason = "; ".join(obstacles) or "it does not exist"
        raise CommandError(f"no account {account.key} for a cloud provider on Harvester: {reason}")


async def issue_content(options: TokenOptions, *, renew: bool) -> str:
    """Ensure the account, and return its kubeconfig after a test.

    Raises `CommandError`, `InputError`.

    :param options: the account, the lifetime of its token, and the address for guests
    :param renew: whether to issue another token if a lasting one exists
    """
    from reconciler.harvester import guestaccount
    from reconciler.harvester.kubeconfig import api_server

    async def issue(client: ApiClient, account: GuestAccount) -> str:
        """Return a configuration with a token that was tested."""
        await guestaccount.ensure(client, account)
        seconds = (options.expires_in or 0) * _DAY
        token, ca = await guestaccount.token(client, account, seconds=seconds, renew=renew)
        namespace = account.key.namespace

        # The address for guests may not be reachable from here, so the token is tested at the API
        # server.
        direct = guestaccount.cloud_config(api_server(client.server), ca, token, namespace)
        await guestaccount.works(direct, namespace)
        server = options.server or await guestaccount.server(client)
        return guestaccount.cloud_config(server, ca, token, namespace)

    return await _with_account(options, issue)


async def delete_former(options: AccountOptions, *, keep_newest: bool) -> None:
    """Delete the former tokens; with `keep_newest`, the newest token stays.

    Raises `CommandError`, `InputError`.
    """
    from caphv.api.object import SECRETS
    from reconciler.harvester import guestaccount

    async def delete_tokens(client: ApiClient, account: GuestAccount) -> None:
        kept = account.current if keep_newest else ""
        tokens = guestaccount.former(account, kept)
        await guestaccount.delete_all(client, [(SECRETS, token) for token in tokens])

    await _with_account(options, delete_tokens)


async def revoke_account(options: AccountOptions) -> None:
    """Delete binding, tokens and account. Raises `CommandError`, `InputError`."""
    from reconciler.harvester import guestaccount

    await _with_account(options, guestaccount.delete)


async def deliver(content: str, account: Key, kubeconfig: str) -> None:
    """Write the cloud config into the cluster of a kubeconfig. Raises `CommandError`."""
    from caphv.api.object import SECRETS
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from reconciler.harvester.guestaccount import workload_secret

    try:
        connection = await own_configuration(kubeconfig)
        client = ApiClient(connection, name="workload", user_agent="caphv-cli")
        try:
            await _require_same_account(client, workload_secret(content), account)
            await client.apply(SECRETS, workload_secret(content), manager="caphv-cloud-config")
        finally:
            await client.close()
    except (KubeconfigError, RequestError) as error:
        msg = f"not delivered; the former token stays valid. Run the command again: {error}"
        raise CommandError(msg) from None


async def _require_same_account(client: ApiClient, config: Obj, account: Key) -> None:
    """Raise `CommandError` if the cluster has the cloud config of another account.

    In this case the user has probably named the wrong cluster.
    """
    from caphv.api.object import SECRETS, key_of
    from caphv.api.tokens import token_of
    from caphv.runtime.errors import NotFound
    from caphv.runtime.kubeconfig import KubeconfigError, token_claims
    from operations.read.accounts import kubeconfig_of

    key = key_of(config)
    try:
        secret = await client.get(SECRETS, key.name, key.namespace)
        # All fields of the Secret hold the same kubeconfig, under the names that charts read.
        first_field = next(iter(config["data"]))
        before = kubeconfig_of(key, secret, first_field)
    except (NotFound, KubeconfigError):
        return  # the cluster has no cloud config, or an unusable one

    former = token_of(token_claims(before.token))
    if former and former.account != account:
        raise CommandError(
            f"Secret {key} of the cluster belongs to ServiceAccount {former.account}, not to "
            f"{account}, and was not replaced: name the kubeconfig of the right cluster, or delete "
            "the Secret"
        )


async def _with_account(
    options: AccountOptions,
    work: Callable[[ApiClient, GuestAccount], Coroutine[Any, Any, _T]],
) -> _T:
    """Call a function with the current account, and turn failures into messages for the user.

    Raises `CommandError`, `InputError`.
    """
    from caphv.api.object import Key
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from reconciler.harvester.guestaccount import read
    from reconciler.harvester.identityaccount import AccountError

    try:
        connection = await own_configuration(options.harvester_kubeconfig)
        client = ApiClient(connection, name="harvester", user_agent="caphv-cli", timeout=30)
        try:
            return await work(client, await read(client, Key(options.namespace, options.name)))
        finally:
            await client.close()
    except AccountError as error:
        raise CommandError(str(error)) from None
    except (KubeconfigError, RequestError) as error:
        raise InputError(f"Harvester: {error}") from None
