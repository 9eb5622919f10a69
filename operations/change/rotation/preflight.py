"""Find what would stop a rotation, before anything is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from caphv.api import remedies
from caphv.api.object import NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Key
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from operations.change.rotation.identity import CLIENT_OPTIONS, RotatedIdentity
from operations.change.rotation.plan import RotationPlan
from operations.doctor import rights
from operations.read.objects import target_namespaces

ADMINISTRATOR_HINT = "; an administrator can: --harvester-kubeconfig FILE"


async def find_problems(
    management: ApiClient,
    harvester: ApiClient,
    identity: RotatedIdentity,
    plan: RotationPlan,
    *,
    is_administrator: bool,
) -> list[str]:
    """Return the problems that would stop a rotation: missing rights, unreachable servers.

    Nothing is changed. The new token will have the rights that the present one has.

    :param management: client of the management cluster
    :param harvester: client that would issue the new token, and delete the former one
    :param identity: the identity as it was read
    :param plan: what the rotation would do
    :param is_administrator: whether `harvester` is a client of an administrator
    """
    problems = []
    hint = "" if is_administrator else ADMINISTRATOR_HINT
    write = rights.Right(
        namespace=identity.key.namespace,
        group="",
        resource=SECRETS.plural,
        verb="patch",
        name=identity.key.name,
    )
    try:
        if denied := await rights.find_denied(management, [write]):
            what = "; ".join(rights.describe(denied))
            problems.append(f"you may not {what} on the management cluster")
    except RequestError as error:
        problems.append(f"management cluster: {error}")

    account = "the account of --harvester-kubeconfig" if is_administrator else "the account"
    needed = _rights_to_rotate(identity.token.account, plan)
    try:
        if denied := await rights.find_denied(harvester, needed):
            what = "; ".join(rights.describe(denied))
            problems.append(f"{account} may not {what} on Harvester{hint}")
    except RequestError as error:
        problems.append(f"Harvester: {error}{hint}")
        return problems

    probe = identity.access.client(**CLIENT_OPTIONS)
    try:
        missing = await rights.find_denied(probe, rights.needed_rights(identity.clusters))
    except RequestError:
        return problems  # an administrator also replaces a token that is no longer valid
    finally:
        await probe.close()
    if missing:
        problems.append(describe_missing(identity, missing))
    return problems


def _rights_to_rotate(account: Key, plan: RotationPlan) -> list[rights.Right]:
    """Return the rights on Harvester with which a plan is carried out."""
    needed = [
        rights.Right(
            namespace="", group="", resource=NAMESPACES.plural, verb="get", name="kube-system"
        )
    ]
    if plan.issues and plan.seconds:
        token = f"{SERVICE_ACCOUNTS.plural}/token"
        needed.append(
            rights.Right(
                namespace=account.namespace,
                group="",
                resource=token,
                verb="create",
                name=account.name,
            )
        )
    elif plan.issues:
        secrets = rights.Right(account.namespace, "", SECRETS.plural, "create")
        needed += [secrets, replace(secrets, verb="get")]
    if plan.deletes:
        former = rights.Right(
            namespace=account.namespace,
            group="",
            resource=SECRETS.plural,
            verb="delete",
            name=plan.deletes,
        )
        needed += [former, replace(former, verb="get")]
    return needed


def describe_missing(
    identity: RotatedIdentity, missing: list[rights.Right], lost: Collection[rights.Right] = ()
) -> str:
    """Say which rights the account of an identity lacks, and how to grant them.

    :param missing: rights that the provider needs
    :param lost: optional rights, which the former token has
    """
    target = min(target_namespaces(identity.clusters), default="NAMESPACE")
    command = remedies.GRANT_RIGHTS(target=target, more=rights.optional_flags([*missing, *lost]))
    return (
        f"the account may not {'; '.join(rights.describe([*missing, *lost]))}. Grant it: "
        f"{command}, with --name and --namespace of the account"
    )
