"""HarvesterClusterIdentities whose tokens the provider renews, on real API servers."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from caphv.api.object import SECRETS, Obj, at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import Forbidden, NotFound, Unauthorized
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig, token_claims
from tests.support.reconciler.case import Case
from tests.support.reconciler.conditions import condition_of
from tests.support.reconciler.sharedidentity import PROVIDER, share, unshare
from tests.support.waiting import until

CONDITION = "TokenRenewed"


def account(case: Case) -> Obj:
    """The account of a case that the provider creates on Harvester."""
    return {"name": case.name, "namespace": f"{case.name}-account", "targetNamespaces": [case.target]}


@contextlib.asynccontextmanager
async def renewing(case: Case, renewal: Obj, kubeconfig: Obj | None = None) -> AsyncIterator[Obj]:
    """Share an identity with `tokenRenewal`; yield the fields of a HarvesterCluster that refers to it."""
    try:
        name = await share(case, {"list": [case.name]}, kubeconfig)
        await case.management.patch(HARVESTER_CLUSTER_IDENTITIES, name, "", {"spec": {"tokenRenewal": renewal}})
        await case.write_secret("bootstrap", {"value": "#cloud-config\nruncmd: [echo]\n"})
        yield {"identitySecret": None, "identityRef": {"name": name}}
        await case.delete()  # before its identity
    finally:
        await unshare(case)
        await until(lambda: no_longer_exists(case), "the provider's Secret is still there")


def secret_of(case: Case) -> str:
    """Name of the Secret with the renewed token of a case."""
    return f"renewed-token.{case.name}"


async def no_longer_exists(case: Case) -> bool:
    """Whether the Secret with the renewed token does not exist."""
    try:
        await case.management.get(SECRETS, secret_of(case), PROVIDER)
    except NotFound:
        return True
    return False


async def kept(case: Case) -> Kubeconfig:
    """The renewed token in use, as soon as there is one."""
    await until_reported(case, "True")
    secret = await case.management.get(SECRETS, secret_of(case), PROVIDER)
    return parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))


async def until_reported(case: Case, status: str, words: str = "") -> Obj:
    """The identity, as soon as its condition has a status and a message with these words."""
    found: Obj = {}

    async def reported() -> bool:
        nonlocal found
        found = await case.management.get(HARVESTER_CLUSTER_IDENTITIES, case.name)
        condition = condition_of(found, CONDITION)
        return condition.get("status") == status and words in condition.get("message", "")

    await until(reported, lambda: f"{status} {words!r} is not reported: {found.get('status')}")
    return found


async def until_replaced(case: Case, former: Kubeconfig) -> Kubeconfig:
    """The renewed token that follows another one."""
    found = former

    async def replaced() -> bool:
        nonlocal found
        with contextlib.suppress(NotFound, KeyError):  # it is created without a token
            found = await kept(case)
        return found.token != former.token

    await until(replaced, "the token is the same")
    return found


async def works(access: Kubeconfig) -> bool:
    """Whether Harvester accepts a token."""
    client = access.client(name="test", user_agent="test")
    try:
        await client.request("GET", "/api/v1/namespaces/kube-system")
    except Unauthorized:
        return False
    except Forbidden:
        return True
    finally:
        await client.close()
    return True


async def until_revoked(access: Kubeconfig) -> None:
    """Wait until Harvester refuses a token: an API server caches its answer for ten seconds."""

    async def revoked() -> bool:
        return not await works(access)

    await until(revoked, "the token is still valid", seconds=30)


def bound_secret(access: Kubeconfig) -> str:
    """Name of the Secret on Harvester to which a token is bound."""
    return str(at(token_claims(access.token), "kubernetes.io", "secret", "name") or "")


def token_id(access: Kubeconfig) -> str:
    """What the audit log of an API server calls a token."""
    return f"JTI={token_claims(access.token)['jti']}"


def requests_by_token(case: Case, since: int, belongs: Callable[[Obj], bool] = bool) -> Iterator[tuple[str, Obj]]:
    """Token and audit event of what the provider asked Harvester with tokens of ServiceAccounts."""
    for event in case.environment.requests(case.environment.harvester, since):
        extra = at(event, "user", "extra", "authentication.kubernetes.io/credential-id")
        if extra and belongs(event):
            yield str(extra[0]), event
