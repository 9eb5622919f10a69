"""Read the credentials that a management cluster holds: identity Secrets and kubeconfigs.

Identities are untrusted input, here as in the provider. Kubeconfigs that run programs or read files
are refused. Kubeconfigs that do not verify their server are refused unless the user allows them,
because an attacker who answers in its place would get a token that may create VMs.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from caphv.api.object import SECRETS, Key, Obj, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from operations.read.management import unseen
from operations.read.objects import Unseen

# A flag of the user holds for a whole command. It is not passed through all functions on the way.
_insecure_allowed = ContextVar("insecure_allowed", default=False)


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials of one identity Secret, and the target namespaces of the clusters that use it."""

    identity: Key
    kubeconfig: Kubeconfig
    namespaces: frozenset[str] = frozenset()


def identity_of(harvester_cluster: Obj) -> Key:
    """Return namespace and name of the identity Secret of a HarvesterCluster."""
    secret = at(harvester_cluster, "spec", "identitySecret") or {}
    return Key(str(secret.get("namespace") or ""), str(secret.get("name") or ""))


@contextmanager
def allow_insecure() -> Iterator[None]:
    """Accept kubeconfigs that do not verify their server while the block lasts."""
    token = _insecure_allowed.set(True)
    try:
        yield
    finally:
        _insecure_allowed.reset(token)


async def read_accounts(
    client: ApiClient,
    harvester_clusters: Iterable[Obj],
    given: Mapping[Key, Obj] = MappingProxyType({}),
) -> tuple[list[Account], list[Unseen]]:
    """Read the identities of HarvesterClusters, by namespace and name, and why some are unseen.

    :param client: client of the management cluster
    :param harvester_clusters: the HarvesterClusters whose identities are read
    :param given: Secrets to use instead of the Secrets of the management cluster
    """
    namespaces: dict[Key, set[str]] = {}
    for obj in harvester_clusters:
        targets = namespaces.setdefault(identity_of(obj), set())
        if target := at(obj, "spec", "targetNamespace"):
            targets.add(str(target))

    results = await asyncio.gather(
        *(
            _read_account(client, key, frozenset(namespaces[key]), given.get(key))
            for key in sorted(namespaces)
        )
    )
    accounts = [result for result in results if isinstance(result, Account)]
    return accounts, [result for result in results if isinstance(result, Unseen)]


async def _read_account(
    client: ApiClient, key: Key, namespaces: frozenset[str], given: Obj | None = None
) -> Account | Unseen:
    """Read an identity Secret, or say why it cannot be used.

    :param client: client of the management cluster
    :param key: namespace and name of the Secret
    :param namespaces: target namespaces of the clusters that use it
    :param given: the Secret, if it must not be read
    """
    try:
        kubeconfig = kubeconfig_of(key, given) if given else await read_kubeconfig(client, key)
        # Unusable certificate data must raise here, where the name of the Secret is known.
        kubeconfig.connection()
        return Account(key, kubeconfig, namespaces)
    except NotFound:
        why = "does not exist: create it (caphv identity create), or correct the name"
        return Unseen(f"identity Secret {key}", why)
    except RequestError as error:
        return unseen(f"identity Secret {key}", error)
    except ValueError as error:  # of a kubeconfig, or of a name that is empty
        return Unseen(f"identity Secret {key}", str(error))


async def secrets_with_token(
    client: ApiClient, secrets: Iterable[Key], token: str
) -> tuple[list[str], list[str]]:
    """Return which identity Secrets hold a token, and which cannot be read. No Harvester is asked.

    A kubeconfig counts even if its certificates or its server cannot be used, because its token is
    valid nevertheless.
    """
    sharing, unread = [], []
    for secret in sorted(secrets):
        try:
            with allow_insecure():
                kubeconfig = await read_kubeconfig(client, secret)
        except (NotFound, ValueError):
            # The Secret holds no usable token. An empty name and a bad kubeconfig raise ValueError.
            continue
        except RequestError:
            unread.append(str(secret))
            continue

        if kubeconfig.token == token:
            sharing.append(str(secret))
    return sharing, unread


async def read_kubeconfig(
    client: ApiClient, secret: Key, field_name: str = "kubeconfig"
) -> Kubeconfig:
    """Read a kubeconfig in a Secret.

    It must verify its server unless in a block of `allow_insecure`. Raises `ApiError`,
    `Unreachable`, `KubeconfigError`.
    """
    return kubeconfig_of(
        secret, await client.get(SECRETS, secret.name, secret.namespace), field_name
    )


def kubeconfig_of(name: Key, secret: Obj, field_name: str = "kubeconfig") -> Kubeconfig:
    """Return the kubeconfig in a Secret, or in a manifest that has it as text.

    Raises `KubeconfigError`.
    """
    text, content = at(secret, "stringData", field_name), at(secret, "data", field_name)
    if not (text or content):
        raise KubeconfigError(f"Secret {name} has no key {field_name}")

    try:
        decoded = str(text).encode() if text else base64.b64decode(content or "")
    except (ValueError, TypeError):
        raise KubeconfigError(f"Secret {name}: key {field_name} is not base64") from None

    # The kubeconfig is parsed before it is refused, so that the message names the server.
    kubeconfig = parse_kubeconfig(decoded, allow_insecure=True)
    if kubeconfig.insecure and not _insecure_allowed.get():
        raise KubeconfigError(
            f"insecure-skip-tls-verify: credentials are not sent to {kubeconfig.server}, which "
            "this kubeconfig does not verify. Add certificate-authority-data, or, where the "
            "command has it, use --allow-insecure-identities"
        )
    return kubeconfig
