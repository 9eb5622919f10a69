"""Carry out a planned rotation.

After any failure, the error says which token is in use and whether the former token is valid. An
interrupted rotation is safe, because an annotation on the Secret names the former token until it is
deleted, and the next call continues from there.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from caphv.api.names import PREVIOUS_TOKEN_ANNOTATION, ConditionType
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.api.tokens import ServiceAccountToken
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    Conflict,
    NotFound,
    RequestError,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from operations.change.rotation.identity import (
    CLIENT_OPTIONS,
    IdentityError,
    RotatedIdentity,
    parse_identity,
)
from operations.change.rotation.plan import RotationPlan
from operations.change.rotation.preflight import ADMINISTRATOR_HINT, describe_missing
from operations.doctor import rights
from operations.read.objects import condition_of

# The provider sees a changed Secret at once. A busy provider gets this time before the former token
# ends.
_SETTLE_SECONDS = 10.0


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
            await self._verify_unused()
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
            subject = "the token is no longer valid" if is_expired else "Harvester"
            raise RotationError(
                f"{tokens_before_writing(self.plan)}: {subject}: {error}{self._hint()}"
            ) from None
        return content

    async def _test(self, content: str) -> None:
        """Check that the new token leads to the same Harvester, and has all rights there."""
        identity = self.identity
        # Another Harvester may answer at the same address. The uid of kube-system tells them apart.
        probe = parse_kubeconfig(content).client(**CLIENT_OPTIONS, max_in_flight=16)
        try:
            reached = uid_of(await probe.get(NAMESPACES, "kube-system"))
            expected = uid_of(await self.harvester.get(NAMESPACES, "kube-system"))
            if reached != expected:
                raise RotationError(
                    f"{tokens_before_writing(self.plan)}: {identity.access.server} is not the "
                    f"Harvester of {self.harvester.server}"
                )
            missing = await rights.find_denied(probe, rights.needed_rights(identity.clusters))
            lost = await self._find_lost(probe)
        finally:
            await probe.close()

        if missing or lost:
            reason = describe_missing(identity, missing, lost)
            raise RotationError(f"{tokens_before_writing(self.plan)}: {reason}")

    async def _find_lost(self, probe: ApiClient) -> list[rights.Right]:
        """Return optional rights that the former token has, and the new one lacks.

        A right that is missing anyway must not keep a token in use until it expires.
        """
        clusters = self.identity.clusters
        optional = [*rights.import_rights(clusters), *rights.backup_rights(clusters)]
        missing = await rights.find_denied(probe, optional)
        if not missing:
            return []

        former = parse_kubeconfig(self.identity.content.decode()).client(**CLIENT_OPTIONS)
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

    async def _verify_unused(self) -> None:
        """Check that the identity does not have the former token, which a user may have put back.

        That may have happened since it was read, for example before the user confirmed the plan.
        """
        key = self.identity.key
        try:
            identity = parse_identity(
                key, await self.management.get(SECRETS, key.name, key.namespace)
            )
        except (IdentityError, RequestError) as error:
            raise RotationError(
                f"the former token stays valid: Secret {key} cannot be read again: {error}"
            ) from None
        if identity.token.secret == self.plan.deletes:
            raise RotationError(
                f"the former token stays valid, because Secret {key} has it again: run this again"
            )

    async def _delete_former_token(self, content: str) -> None:
        """Delete the former token, then the annotation that names it."""
        harvester = self.harvester
        if not self.is_administrator:
            # The client of the account uses the former token, which becomes invalid when its Secret
            # is deleted.
            harvester = parse_kubeconfig(content).client(**CLIENT_OPTIONS)
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
        return "" if self.is_administrator else ADMINISTRATOR_HINT


def tokens_before_writing(plan: RotationPlan) -> str:
    """Say which token the clusters use before the Secret is written.

    After an interrupted rotation they already use the new token.
    """
    return "the former token stays in use" if plan.issues else _tokens_after_writing()


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
