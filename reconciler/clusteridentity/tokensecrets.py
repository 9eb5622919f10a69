"""The Secrets of a HarvesterClusterIdentity: the user's, which is only read, and the provider's."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from caphv.api.identities import KUBECONFIG_KEY, decode_kubeconfig, kubeconfig_key, secret_of
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import SECRETS, Key, Obj, key_of, text_at, uid_of
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import SECRET_TYPE, Issued, identity_name, issued_of
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler.context import Context
from reconciler.harvester import tokenexchange
from reconciler.harvester.tokenexchange import Credentials, ExchangeError, Token

_KIND = HARVESTER_CLUSTER_IDENTITIES.kind
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class Source:
    """The user's Secret. `credentials` is None if it does not exist or cannot be used."""

    key: Key
    credentials: Credentials | None = None
    problem: str = ""
    exists: bool = True
    version: str = ""
    """The resourceVersion of the Secret."""

    @property
    def fingerprint(self) -> str | None:
        """What `decide` compares: None without a Secret, empty for one that cannot be used."""
        if self.credentials is not None:
            return self.credentials.access.fingerprint
        return "" if self.exists else None


@dataclass(frozen=True, slots=True)
class StoredToken:
    """The token in the provider's own Secret, and the record in the Secret's annotations."""

    issued: Issued
    token: Token


class TokenSecrets:
    """Read the Secrets of identities, and write the provider's own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._identities = context.cluster_identities

    async def read(self, key: Key) -> Obj | None:
        """Return a Secret, None if it does not exist."""
        try:
            return await self._context.client.get(SECRETS, key.name, key.namespace)
        except NotFound:
            return None

    async def read_source(self, identity: Obj) -> Source:
        """Read the user's Secret, which is never written."""
        key = secret_of(identity)
        where = f"Secret {key}"
        secret = await self.read(key)
        if secret is None:
            problem = f"{where} does not exist: create it with key kubeconfig"
            return Source(key, problem=problem, exists=False)
        version = str(secret["metadata"]["resourceVersion"])
        try:
            return Source(key, await self._credentials(secret), version=version)
        except KubeconfigError as error:
            return Source(key, problem=f"{where}: {error}", version=version)

    async def parse_stored_token(self, secret: Obj) -> StoredToken | None:
        """Return the token in the provider's Secret with its record.

        Returns None if token or record are missing or invalid, because a new exchange replaces
        both. To revoke a token, use `parse_token`, which needs no record.
        """
        issued = issued_of(secret)
        try:
            token = await self.parse_token(secret)
        except (ExchangeError, KubeconfigError):
            return None
        return StoredToken(issued, token) if issued and token else None

    async def parse_token(self, secret: Obj) -> Token | None:
        """Return the token in the provider's Secret, None if no token was ever stored in it.

        Raises `ExchangeError` or `KubeconfigError` if a token was stored and cannot be used: a user
        has edited the Secret, or the provider no longer accepts unverified servers.
        """
        if not secret.get("data") and issued_of(secret) is None:
            return None
        return tokenexchange.token_in(await self._credentials(secret))

    async def _credentials(self, secret: Obj) -> Credentials:
        """Return the credentials in a Secret. Raises `KubeconfigError`."""
        key = kubeconfig_key(secret) or KUBECONFIG_KEY
        try:
            raw = decode_kubeconfig(key, text_at(secret, "data", key))
        except ValueError:  # binascii.Error, or characters other than ASCII
            raise KubeconfigError(f"key {key} is not base64") from None
        insecure = self._context.allow_insecure_identities
        access = await off_loop(len(raw), lambda: parse_kubeconfig(raw, allow_insecure=insecure))
        return Credentials(raw.decode("utf-8", "replace"), access)

    async def hold(self, identity: Obj, secret: Obj | None) -> Obj:
        """Return the provider's Secret, created if necessary, with the finalizer.

        It is written before a token is issued, because a token that cannot be stored could not be
        revoked either. Raises `Conflict` if others wrote the Secret, `RequestError`.
        """
        present = secret or await self._create(identity)
        return await self._patch(identity, present, {})

    async def _create(self, identity: Obj) -> Obj:
        """Create the provider's Secret, without the finalizer.

        The finalizer is patched next: without the right to patch, it could never be removed.
        """
        key = self._identities.renewed.key_of(identity["metadata"]["name"])
        owners = {"ownerReferences": _metadata(identity, {})["ownerReferences"]}
        metadata = {**owners, "name": key.name, "namespace": key.namespace}
        obj = {"metadata": metadata, "type": SECRET_TYPE}
        return await self._context.client.create(SECRETS, obj)

    async def store(self, identity: Obj, secret: Obj, token: Token, issued: Issued) -> Obj:
        """Write a token into the provider's Secret. Raises `Conflict` if others wrote it."""
        content = base64.b64encode(token.credentials.text.encode()).decode()
        stored = await self._patch(identity, secret, {"kubeconfig": content}, issued)
        self._identities.report(identity["metadata"]["name"])
        return stored

    async def end(self, identity: Obj, secret: Obj, issued: Issued) -> Obj:
        """Record that the token in the provider's Secret has ended. Raises `RequestError`."""
        return await self._patch(identity, secret, {}, issued)

    async def _patch(
        self, identity: Obj, secret: Obj, data: Obj, issued: Issued | None = None
    ) -> Obj:
        """Write finalizer and owner, and on request the token and its record.

        Raises `Conflict` if others wrote the Secret.
        """
        metadata = _metadata(identity, secret["metadata"])
        metadata["resourceVersion"] = secret["metadata"]["resourceVersion"]
        if issued:
            metadata["annotations"] = issued.annotations()
        obj: Obj = {"metadata": metadata}
        if data:
            obj["data"] = data
        key = key_of(secret)
        patched = await self._context.client.patch(SECRETS, key.name, key.namespace, obj)
        self._context.caches.secrets.observe(patched)
        return patched


def problem_of(key: Key, secret: Obj | None, source: Key) -> str:
    """Return why the provider cannot keep a token in a Secret, empty if it can.

    :param key: key of the provider's Secret
    :param source: key of the user's Secret
    """
    if identity_name(source.name):
        # A token of the provider would be exchanged for the next one again and again.
        return (
            f"spec.secretRef.name: {source.name} is the name of a renewed token: rename the Secret"
        )
    if len(key.name) > _MAX_NAME:
        return f"the name of the identity leaves no room for Secret {key}"
    if secret is not None and not is_ours(secret):
        return f"Secret {key} exists and is not the provider's: delete it"
    return ""


def is_ours(secret: Obj) -> bool:
    """Return whether a Secret is one in which the provider keeps a token."""
    return secret.get("type") == SECRET_TYPE


def owner_uid(secret: Obj, name: str) -> str:
    """Return the uid of the identity that owns a Secret, empty without one."""
    for owner in secret["metadata"].get("ownerReferences") or ():
        if (owner.get("kind"), owner.get("name")) == (_KIND, name):
            return str(owner.get("uid") or "")
    return ""


def _metadata(identity: Obj, present: Obj) -> Obj:
    """Return what the provider's Secret for an identity always has, besides what others added.

    :param present: metadata of the Secret
    """
    owner = {
        "apiVersion": HARVESTER_CLUSTER_IDENTITIES.api_version,
        "kind": _KIND,
        "name": identity["metadata"]["name"],
        "uid": uid_of(identity),
    }
    owners = [other for other in present.get("ownerReferences") or () if other.get("kind") != _KIND]
    finalizers = dict.fromkeys([*(present.get("finalizers") or ()), RENEWED_TOKEN_FINALIZER])
    return {"finalizers": list(finalizers), "ownerReferences": [*owners, owner]}
