"""Rotate the token of an identity: issue, test, write, verify, and only then revoke the former one.

After any failure, the error says which token is in use and whether the former token is valid. An
interrupted rotation is safe, because an annotation on the Secret names the former token until it is
deleted, and the next call continues from there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api import remedies
from caphv.api.identities import CLOUD_CREDENTIAL_KEY, identity_of, kubeconfig_key
from caphv.api.names import PREVIOUS_TOKEN_ANNOTATION, ConditionType
from caphv.api.object import NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Key, Obj, at, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.api.tokenrenewal import SECRET_TYPE
from caphv.api.tokens import ServiceAccountToken, token_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    Conflict,
    Forbidden,
    NotFound,
    RequestError,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import (
    Kubeconfig,
    KubeconfigError,
    parse_kubeconfig,
    token_claims,
)
from operations.doctor import rights
from operations.read.accounts import (
    secrets_of_cluster_identities,
    secrets_with_token,
    without_refused,
)
from operations.read.management import list_all
from operations.read.objects import condition_of

# The provider sees a changed Secret at once. A busy provider gets this time before the former token
# ends.
_SETTLE_SECONDS = 10.0
_DAY = 24 * 3600
_CLIENT_OPTIONS: dict[str, Any] = {"name": "harvester", "user_agent": "caphv-cli", "timeout": 15}
_HINT = "; an administrator can: --harvester-kubeconfig FILE"


class IdentityError(Exception):
    """The Secret holds no token that can be rotated."""


class TokenError(Exception):
    """Harvester issued no token."""


class RotationError(Exception):
    """A rotation failed; the message says which token is in use."""


class LostConnectionError(Exception):
    """Clusters lost the connection with the new token; the former one stays valid."""


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Issue and delete tokens of ServiceAccounts on Harvester.

    `renew` returns a kubeconfig with a new token. Its arguments are a client, the kubeconfig, the
    current token, and the lifetime of the new token in seconds, 0 for no end. It raises
    `TokenError`, `ApiError`, `Unreachable`. The arguments of `delete` are a client, the account and
    the name of the Secret that holds the token. It raises `ApiError`, `Unreachable`.
    """

    renew: Callable[[ApiClient, bytes, ServiceAccountToken, int], Awaitable[str]]
    delete: Callable[[ApiClient, Key, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RotatedIdentity:
    """An identity Secret with the clusters and other Secrets that depend on it."""

    key: Key
    secret: Obj
    content: bytes
    access: Kubeconfig
    token: ServiceAccountToken
    clusters: list[Obj] = field(default_factory=list)
    sharing: list[str] = field(default_factory=list)
    """Other identity Secrets with the same token."""
    unread: list[str] = field(default_factory=list)
    """Other identity Secrets that cannot be read, and may have the same token."""

    @property
    def previous(self) -> str:
        """Secret on Harvester that an interrupted rotation left."""
        annotation = at(self.secret, "metadata", "annotations", PREVIOUS_TOKEN_ANNOTATION)
        return str(annotation or "")


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """The steps of a rotation.

    Without `seconds` the new token does not expire. Without `deletes` the former token stays valid.
    """

    secret: str
    account: str
    harvester: str
    clusters: tuple[str, ...]
    issues: bool
    seconds: int
    deletes: str
    kept: str = ""


async def read_identity(client: ApiClient, key: Key) -> RotatedIdentity:
    """Read an identity, with the clusters and other identities that share its token.

    Raises `IdentityError`, `ApiError`, `Unreachable`.
    """
    secret = await client.get(SECRETS, key.name, key.namespace)
    if secret.get("type") == SECRET_TYPE:
        raise IdentityError(
            f"Secret {key} has a token that the provider renews: name the Secret in "
            "spec.secretRef of the HarvesterClusterIdentity; to revoke the renewed token, delete "
            f"Secret {key}"
        )
    if kubeconfig_key(secret) == CLOUD_CREDENTIAL_KEY:
        raise IdentityError(
            f"Secret {key} is a cloud credential of Rancher, which renews and revokes its token "
            "itself: edit the cloud credential in Rancher"
        )
    try:
        content = base64.b64decode(at(secret, "data", "kubeconfig") or "")
        access = parse_kubeconfig(content)
    except (binascii.Error, KubeconfigError) as error:
        raise IdentityError(f"Secret {key}, key kubeconfig: {error}") from None

    token = token_of(token_claims(access.token))
    if token is None:
        command = remedies.NEW_IDENTITY(target="NAMESPACE", namespace=key.namespace, name=key.name)
        raise IdentityError(
            f"Secret {key} has no token of a ServiceAccount, which could be renewed; create an "
            f"account: {command}"
        )

    # The account of a user may be limited to one namespace.
    try:
        clusters = await list_all(client, HARVESTER_CLUSTERS)
    except Forbidden:
        clusters = await list_all(client, HARVESTER_CLUSTERS, key.namespace)
    shared = await secrets_of_cluster_identities(client)
    named = [(obj, shared.get(identity_of(obj), identity_of(obj))) for obj in clusters]
    others = {*shared.values(), *(secret for _, secret in named)} - {key}
    sharing, unread = await secrets_with_token(client, others, access.token)
    # A cluster that may not use the identity that it names never had the token.
    users = await without_refused(client, [obj for obj, secret in named if secret == key])
    return RotatedIdentity(
        key=key,
        secret=secret,
        content=content,
        access=access,
        token=token,
        clusters=users,
        sharing=sharing,
        unread=unread,
    )


def plan_rotation(
    identity: RotatedIdentity, *, expires_in: int | None, keep_old: bool
) -> RotationPlan:
    """Decide on the lifetime of the new token, and whether the former token is deleted.

    :param identity: the identity as it was read
    :param expires_in: the lifetime of the new token in days; None for the former token's lifetime
    :param keep_old: whether the former token stays valid
    """
    kept = ""
    if keep_old:
        kept = "--keep-old was given"
    elif identity.sharing:
        kept = f"the same token is in Secret {', '.join(identity.sharing)}: rotate it there, too"
    elif identity.unread:
        kept = f"Secret {', '.join(identity.unread)} cannot be read, and may have the same token"

    # A token in a Secret does not expire.
    seconds = 0 if identity.token.secret else identity.token.seconds
    if expires_in:
        seconds = expires_in * _DAY
    clusters = sorted(
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in identity.clusters
    )
    return RotationPlan(
        str(identity.key),
        str(identity.token.account),
        identity.access.server,
        tuple(clusters),
        issues=not identity.previous,
        seconds=seconds,
        deletes="" if kept else identity.previous or identity.token.secret,
        kept=kept,
    )


def tokens_before_writing(plan: RotationPlan) -> str:
    """Say which token the clusters use before the Secret is written.

    After an interrupted rotation they already use the new token.
    """
    return "the former token stays in use" if plan.issues else _tokens_after_writing()


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
    hint = "" if is_administrator else _HINT
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

    probe = identity.access.client(**_CLIENT_OPTIONS)
    try:
        missing = await rights.find_denied(probe, rights.needed_rights(identity.clusters))
    except RequestError:
        return problems  # an administrator also replaces a token that is no longer valid
    finally:
        await probe.close()
    if missing:
        problems.append(_missing_of_account(identity, missing))
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


def _missing_of_account(
    identity: RotatedIdentity, missing: list[rights.Right], lost: Iterable[rights.Right] = ()
) -> str:
    """Say which rights the account of an identity lacks, and how to grant them.

    :param missing: rights that the provider needs
    :param lost: optional rights, which the former token has
    """
    targets = (str(cluster["spec"]["targetNamespace"]) for cluster in identity.clusters)
    more = rights.optional_flags(lost)
    command = remedies.GRANT_RIGHTS(target=next(targets, "NAMESPACE"), more=more)
    return (
        f"the account may not {'; '.join(rights.describe([*missing, *lost]))}. Grant it: "
        f"{command}, with --name and --namespace of the account"
    )


@dataclass(frozen=True, slots=True)
class Rotation:
    """A planned rotation.

    `harvester` is a client of an administrator (`is_administrator`), or of the account, which then
    renews its own token. `report` is called with a text after each step.
    """

    management: ApiClient
    harvester: ApiClient
    is_administrator: bool
    identity: RotatedIdentity
    plan: RotationPlan
    issuer: TokenIssuer
    report: Callable[[str], None]

    async def run(self) -> None:
        """Issue and test the new token, write it, and delete the former one.

        Raises `RotationError`, `LostConnectionError`.
        """
        content = await self._issue_and_test()
        self.report("the new token works")

        if self.plan.issues:
            await self._write(content)
            self.report(f"wrote Secret {self.identity.key}")

        if self.plan.deletes:
            if self.plan.clusters:
                await asyncio.sleep(_SETTLE_SECONDS)
            await self._verify_connections()
            await self._delete_former_token(content)
            self.report(f"deleted the former token, Secret {self.plan.deletes}")

    async def _issue_and_test(self) -> str:
        """Return a kubeconfig with the new token, after a test of the token."""
        identity = self.identity
        try:
            # An interrupted rotation has already written the new token, so it is only tested.
            if self.plan.issues:
                content = await self.issuer.renew(
                    self.harvester, identity.content, identity.token, self.plan.seconds
                )
            else:
                content = identity.content.decode()
            await self._test(content)
        except (TokenError, KubeconfigError, RequestError) as error:
            is_expired = isinstance(error, Unauthorized)
            subject = "the token is not valid any more" if is_expired else "Harvester"
            raise RotationError(
                f"{tokens_before_writing(self.plan)}: {subject}: {error}{self._hint()}"
            ) from None
        return content

    async def _test(self, content: str) -> None:
        """Check that the new token leads to the same Harvester, and has all rights there."""
        identity = self.identity
        # Another Harvester may answer at the same address. The uid of kube-system tells them apart.
        probe = parse_kubeconfig(content).client(**_CLIENT_OPTIONS, max_in_flight=16)
        try:
            reached = uid_of(await probe.get(NAMESPACES, "kube-system"))
            expected = uid_of(await self.harvester.get(NAMESPACES, "kube-system"))
            if reached != expected:
                raise RotationError(
                    f"{identity.access.server} is not the Harvester of {self.harvester.server}: "
                    "not changed"
                )
            missing = await rights.find_denied(probe, rights.needed_rights(identity.clusters))
            lost = await self._find_lost(probe)
        finally:
            await probe.close()

        if missing or lost:
            raise RotationError(f"not changed: {_missing_of_account(identity, missing, lost)}")

    async def _find_lost(self, probe: ApiClient) -> list[rights.Right]:
        """Return optional rights that the former token has, and the new one lacks.

        A right that is missing anyway must not keep a token in use until it expires.
        """
        clusters = self.identity.clusters
        optional = [*rights.import_rights(clusters), *rights.backup_rights(clusters)]
        missing = await rights.find_denied(probe, optional)
        if not missing:
            return []

        former = parse_kubeconfig(self.identity.content.decode()).client(**_CLIENT_OPTIONS)
        try:
            lacked = await rights.find_denied(former, missing)
        except RequestError:
            # A token that is no longer valid has no rights to lose.
            return []
        finally:
            await former.close()
        return sorted(set(missing) - set(lacked))

    async def _write(self, content: str) -> None:
        """Write the new token, with an annotation that names the former one while it is valid."""
        key = self.identity.key
        metadata = self.identity.secret["metadata"]
        patch = {
            "metadata": {
                # Another rotation at the same time must not lose its token.
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {PREVIOUS_TOKEN_ANNOTATION: self.plan.deletes or None},
            },
            "data": {"kubeconfig": base64.b64encode(content.encode()).decode()},
        }

        try:
            await self.management.patch(SECRETS, key.name, key.namespace, patch)
        except Conflict:
            raise RotationError(
                f"the former token stays in use: Secret {key} was changed meanwhile: run this again"
            ) from None
        except RequestError as error:
            failure = f"Secret {key} cannot be written on the management cluster: {error}"
            if _may_have_taken_effect(error):
                raise RotationError(
                    "the Secret has the new token or the former one; both are valid, so clusters "
                    f"stay connected. Run this again: {failure}"
                ) from None
            raise RotationError(f"the former token stays in use: {failure}") from None

    async def _verify_connections(self) -> None:
        """Check that all clusters which were connected before are still connected."""
        # A cluster that was not connected before proves nothing about the new token.
        lost = []
        for obj in filter(_is_connected, self.identity.clusters):
            name = obj["metadata"]["name"]
            namespace = obj["metadata"]["namespace"]
            try:
                cluster = await self.management.get(HARVESTER_CLUSTERS, name, namespace)
            except NotFound:
                continue  # deleted meanwhile: it needs no token
            except RequestError as error:
                raise RotationError(
                    f"{_tokens_after_writing()}: management cluster: {error}. Run this again"
                ) from None
            if not _is_connected(cluster):
                lost.append(f"{namespace}/{name}")

        if lost:
            raise LostConnectionError(
                f"The former token stays valid: {', '.join(lost)} lost the connection. Run this "
                "again once it is back."
            )

    async def _delete_former_token(self, content: str) -> None:
        """Delete the former token, then the annotation that names it."""
        harvester = self.harvester
        if not self.is_administrator:
            # The client of the account uses the former token, which becomes invalid when its Secret
            # is deleted.
            harvester = parse_kubeconfig(content).client(**_CLIENT_OPTIONS)
        try:
            await self.issuer.delete(harvester, self.identity.token.account, self.plan.deletes)
        except RequestError as error:
            raise RotationError(
                f"{_tokens_after_writing(error)}: Harvester: {error}. Run this again{self._hint()}"
            ) from None
        finally:
            if not self.is_administrator:
                await harvester.close()

        # The annotation is removed last, because the next call needs it until the former token is
        # deleted.
        key = self.identity.key
        patch = {"metadata": {"annotations": {PREVIOUS_TOKEN_ANNOTATION: None}}}
        try:
            await self.management.patch(SECRETS, key.name, key.namespace, patch)
        except RequestError as error:
            raise RotationError(
                "the new token is in use, and the former one is deleted; "
                f"the note on Secret {key} stays; run this again: {error}"
            ) from None

    def _hint(self) -> str:
        return "" if self.is_administrator else _HINT


def _tokens_after_writing(error: Exception | None = None) -> str:
    """Say which token the clusters use, and whether the former token is valid.

    :param error: the failure of the request that deletes the former token
    """
    verb = "may still be" if error and _may_have_taken_effect(error) else "is still"
    return f"the new token is in use, and the former one {verb} valid"


def _may_have_taken_effect(error: Exception) -> bool:
    """Whether a request that failed may have taken effect."""
    return isinstance(error, ServerFault | Unreachable)


def _is_connected(obj: Obj) -> bool:
    condition = condition_of(obj, ConditionType.HARVESTER_CONNECTION_READY)
    return condition.get("status") == "True"
