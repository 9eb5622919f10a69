"""Check the CA that Rancher gives to its agents, and the one by which identities reach Harvester.

Agents of imported clusters trust Rancher by its setting `cacerts`, and a kubeconfig that reaches
Harvester through Rancher contains a copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from caphv.api import names, remedies, resources
from caphv.api.counting import name_some
from caphv.api.identities import secret_name
from caphv.api.object import Obj, key_of, labels_of
from caphv.runtime.networkerrors import UNTRUSTED
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.management import SUBJECT, ManagementFacts
from operations.status.check import Check, Result, ok, skipped

_CHECK = "rancher-ca"
CA = "cacerts"
AGENT_TLS = "agent-tls-mode"
SERVER = "server-url"
SETTINGS = (CA, AGENT_TLS, SERVER)
"""Settings of Rancher (`settings.management.cattle.io`) that the checks need."""

# Base64 has no hyphen, so that no character is read for two matches.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----([^-]{1,100000}+)-----END CERTIFICATE-----")
_CLUSTERS_PATH = "/k8s/clusters/"
_HTTPS = 443
_SPACE = re.compile(r"\s+")


def checks(
    management: ManagementFacts, clusters: Iterable[Obj], harvesters: Iterable[HarvesterFacts]
) -> Iterator[Check]:
    """Yield the checks of a Rancher on the management cluster.

    :param management: what was read of the management cluster
    :param clusters: the selected Clusters
    :param harvesters: what was read of the Harvesters, by identity
    """
    imported = sorted(
        str(key_of(obj))
        for obj in clusters
        if labels_of(obj).get(names.AUTO_IMPORT_LABEL) == "true"
    )
    if management.rancher:
        yield _check_agents(management.rancher, imported)
        for facts in harvesters:
            yield from _check_identity(management.rancher, facts)
    elif imported and (why := management.why_unseen(resources.RANCHER_SETTINGS.plural)):
        # Without a cluster to import, there may be no Rancher at all.
        yield skipped(_CHECK, SUBJECT, f"Rancher's settings: {why}")


def value_of(setting: Obj | None) -> str:
    """Return the value of a setting of Rancher, or its default; empty if it does not exist."""
    return str((setting or {}).get("value") or (setting or {}).get("default") or "")


def certificates_of(pem: str) -> frozenset[str]:
    """Return the certificates of a bundle, each as base64 without line breaks."""
    return frozenset(_SPACE.sub("", content) for content in _CERTIFICATE.findall(pem))


def _check_agents(settings: Mapping[str, str], imported: list[str]) -> Check:
    """Check that agents which trust `cacerts` alone get it.

    :param settings: values of settings by name
    :param imported: the selected Clusters that Rancher imports
    """
    has_ca = bool(certificates_of(settings[CA]))
    if has_ca or settings[AGENT_TLS] != "strict":
        trust = f"setting {CA}" if has_ca else "the CAs of their system"
        return ok(_CHECK, SUBJECT, f"agents of Rancher trust it by {trust}")

    message = (
        f"Rancher's setting {AGENT_TLS} is strict and {CA} has no certificate: agents of clusters "
        "that it imports do not connect"
    )
    if imported:
        message += f": {name_some(imported)}"
    remedy = (
        f"Set {CA} to the CA of Rancher's certificate, also where a proxy in front of it ends TLS; "
        f"or {AGENT_TLS} to system-store, if a public CA signed the certificate"
    )
    result = Result.ERROR if imported else Result.WARNING
    return Check(_CHECK, SUBJECT, result, message=message, remedy=remedy)


def _check_identity(settings: Mapping[str, str], facts: HarvesterFacts) -> Iterator[Check]:
    """Check that an identity which leads through Rancher trusts Rancher's CA of today."""
    kubeconfig = facts.kubeconfig
    if kubeconfig is None or kubeconfig.insecure:
        return
    if not _is_through_rancher(kubeconfig.server, settings[SERVER]):
        return
    rancher, identity = (certificates_of(pem) for pem in (settings[CA], kubeconfig.ca))
    # Without a CA, the system's CAs decide, and the connection says whether they know Rancher's.
    # A rejection or a firewall says nothing about the CA.
    is_refused = facts.objects is None and UNTRUSTED in facts.error
    if not rancher or identity & rancher or not (identity or is_refused):
        return

    secret = f"Secret {secret_name(facts.identity)}"
    message = (
        f"it leads to Harvester through Rancher, and does not contain the CA of Rancher's {CA}: "
        f"{'no connection' if is_refused else 'the next certificate of Rancher may be refused'}"
    )
    where = facts.secret or facts.identity
    place = {"namespace": where.namespace, "name": where.name}
    remedy = (
        "Download Harvester's kubeconfig again, or use one for its API server, port 6443: "
        f"{remedies.ROTATE_IDENTITY(**place)}"
    )
    yield Check(
        _CHECK,
        secret,
        Result.ERROR if is_refused else Result.WARNING,
        message=message,
        remedy=remedy,
    )


def _is_through_rancher(server: str, rancher: str) -> bool:
    """Return whether a URL points to a cluster behind Rancher, and not to a server on its host."""
    try:
        url = urlsplit(server)
        own = urlsplit(rancher)
        # Names of hosts have no case, and `hostname` is in lower case.
        is_same = (url.hostname, url.port or _HTTPS) == (own.hostname, own.port or _HTTPS)
    except ValueError:
        return False
    return bool(url.hostname) and is_same and url.path.startswith(_CLUSTERS_PATH)
