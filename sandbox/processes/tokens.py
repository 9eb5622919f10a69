"""The service account token controller, for API servers without kube-controller-manager.

It fills Secrets of type `kubernetes.io/service-account-token`, and deletes the Secrets of deleted
accounts. The real controller signs a token that never expires. This controller requests a token
that is bound to the Secret and valid for years.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib

from caphv.api.object import SECRETS, SERVICE_ACCOUNTS, Key, Obj, annotations_of, at, uid_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from sandbox.background import background

SECRET_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token
ACCOUNT = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"
LIFETIME_SECONDS = 10 * 365 * 24 * 3600


class TokenController:
    """The controller for one API server. It writes `ca` (PEM) into the Secrets."""

    def __init__(self, client: ApiClient, ca: str) -> None:
        self._client = client
        self._ca = base64.b64encode(ca.encode()).decode()
        self._accounts = Informer(client, SERVICE_ACCOUNTS, max_backoff=2)
        self._secrets = Informer(
            client,
            SECRETS,
            field_selector=f"type={SECRET_TYPE}",
            indexes={"account": _account_of},
            max_backoff=2,
        )
        self._controller = Controller("tokens", self._reconcile, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled."""
        async with background(self._accounts.run(), self._secrets.run()):
            await asyncio.gather(self._accounts.wait_synced(), self._secrets.wait_synced())
            self._secrets.add_handler(lambda change: self._controller.enqueue(change.key))
            self._accounts.add_handler(self._on_account_change)
            await self._controller.run()

    def _on_account_change(self, change: Change) -> None:
        for secret in self._secrets.store.by_index("account", str(change.key)):
            self._controller.enqueue(Key(change.key.namespace, secret["metadata"]["name"]))

    async def _reconcile(self, key: Key) -> None:
        secret = self._secrets.get(*key)
        if secret is None:
            return

        name = annotations_of(secret).get(ACCOUNT, "")
        account = self._accounts.get(key.namespace, name)
        account_uid = annotations_of(secret).get(ACCOUNT_UID)
        # An account of the same name that was created later must not inherit the token.
        if account_uid and (account is None or uid_of(account) != account_uid):
            with contextlib.suppress(NotFound):
                await self._client.delete(SECRETS, key.name, key.namespace, uid=uid_of(secret))
        elif account is not None and not at(secret, "data", "token"):
            await self._fill(secret, account)

    async def _fill(self, secret: Obj, account: Obj) -> None:
        namespace = secret["metadata"]["namespace"]
        name = secret["metadata"]["name"]
        # The server accepts the token only while this Secret exists.
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid_of(secret)}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME_SECONDS, "boundObjectRef": bound},
        }
        path = SERVICE_ACCOUNTS.path(namespace, account["metadata"]["name"], "token")
        answer = await self._client.request("POST", path, resource=SERVICE_ACCOUNTS, body=request)

        values = {"token": answer["status"]["token"], "namespace": namespace}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        patch = {
            "metadata": {"annotations": {ACCOUNT_UID: uid_of(account)}},
            "data": {**data, "ca.crt": self._ca},
        }

        # Cache the answer, because a reconcile with the old Secret would request another token.
        with contextlib.suppress(NotFound):
            self._secrets.observe(await self._client.patch(SECRETS, name, namespace, patch))


def _account_of(secret: Obj) -> list[str]:
    name = annotations_of(secret).get(ACCOUNT)
    return [f"{secret['metadata']['namespace']}/{name}"] if name else []
