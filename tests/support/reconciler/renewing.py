"""An identity whose token is renewed, in simulated time, on a Harvester that honours the end of tokens."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
import yaml

from caphv.api.object import SECRETS, Key, Obj, at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import Unreachable
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from reconciler.clusteridentity.controller import TokenRenewer
from tests.support import kubeconfigs
from tests.support.reconciler.memorycase import MemoryCase, MemoryIdentities
from tests.support.reconciler.tokenissuer import USER_TOKEN, Clock, Issuer, IssuerClient

NAME, OWN = "shared", "caphv-system"
KEPT = f"renewed-token.{NAME}"
ACCOUNT = {"name": "caphv", "namespace": "accounts", "targetNamespaces": ["vms"]}
DOWN = Unreachable("no answer")


class Renewing(MemoryCase):
    """An identity whose token is renewed, on a Harvester that honours the end of tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, skew: float = 0.0, **renewal: Any) -> None:
        super().__init__(monkeypatch, identityRef={"name": NAME})
        self.clock = Clock()
        self.issuer = Issuer(self.clock, skew)
        self.context.sessions = cast("Any", self)
        self.reports: list[str] = []
        self.readable.connect(self.reports.append, lambda _: None)
        self.share(USER_TOKEN)
        self.renew_with(expirationSeconds=600, serviceAccount=ACCOUNT, **renewal)
        self.restart()

    @property
    def readable(self) -> MemoryIdentities:
        return cast("MemoryIdentities", self.context.cluster_identities)

    def client(self, access: Kubeconfig) -> IssuerClient:
        """As `Sessions.client`."""
        return IssuerClient(self.issuer, access)

    def share(self, token: str) -> None:
        """Write the user's Secret."""
        config = kubeconfigs.with_cluster(server="https://harvester")
        config["users"][0]["user"] = {"token": token}
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
        metadata = {"name": "own", "namespace": OWN}
        self.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def renew_with(self, **renewal: Any) -> None:
        """Write the identity."""
        spec: Obj = {"secretRef": {"name": "own", "namespace": OWN}, "allowedNamespaces": {"list": ["*"]}}
        spec |= {"tokenRenewal": renewal} if renewal else {}
        kind = HARVESTER_CLUSTER_IDENTITIES
        metadata = {"name": NAME, "uid": "identity-uid"}
        self.management.put(
            {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec, "status": {}}
        )

    def restart(self) -> None:
        """Begin as a process does that knows nothing."""
        identities = MemoryIdentities(self.management)
        identities.connect(self.reports.append, lambda _: None)
        self.context.cluster_identities = identities
        self.renewer = TokenRenewer(self.context, self.clock)

    async def reconcile(self) -> float:  # type: ignore[override]
        result = await self.renewer.reconcile(Key("", NAME))
        wait = result.requeue_after if result else None
        return 1e9 if wait is None else wait

    def reject(self, access: Kubeconfig) -> None:
        """A cluster with this token meets a 401."""
        self.readable.renewed.rejected[NAME] = access.fingerprint

    def key(self) -> Key:
        """The Secret that a cluster gets."""
        key = self.readable.resolve(NAME, "team")
        assert isinstance(key, Key)
        return key

    def access(self) -> Kubeconfig:
        """The credentials that a cluster gets."""
        key = self.key()
        secret = self.management.find("Secret", key.name, key.namespace)
        assert secret is not None
        return parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))

    async def ask(self) -> None:
        """A cluster sends a request to Harvester."""
        await self.client(self.access()).get(SECRETS, "any", "vms")

    def access_of_secret(self) -> str:
        """The token in the provider's Secret, whether it is in use or not."""
        assert self.kept is not None
        return parse_kubeconfig(base64.b64decode(self.kept["data"]["kubeconfig"])).token

    def condition_of(self) -> tuple[str, str, str]:
        identity = self.management.find("HarvesterClusterIdentity", NAME)
        (found,) = at(identity, "status", "conditions") or [{}]
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    @property
    def kept(self) -> Obj | None:
        return self.management.find("Secret", KEPT, OWN)

    def put_any(self) -> None:
        self.issuer.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "any", "namespace": "vms"}})


async def live(cases: list[Renewing], seconds: int, clusters: int = 1, step: int = 5) -> None:
    """Let time pass for identities and their clusters; each reconcile comes when it is due."""
    due = dict.fromkeys(range(len(cases)), 0.0)
    for moment in range(0, seconds, step):
        for number, case in enumerate(cases):
            if due[number] <= moment:
                due[number] = moment + await case.reconcile()
            for _ in range(clusters):
                await case.ask()
            case.clock.pass_time(step)
