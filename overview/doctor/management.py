"""Checks of the management cluster: CRDs, the provider, its webhooks and certificates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api import names, remedies
from caphv.api.object import Obj, annotations_of, key_of, labels_of
from caphv.api.supported import support
from overview.doctor.model import Check, Result, ok, skipped
from overview.objects import Unseen, condition_of

SUBJECT = "management cluster"
_SOON = timedelta(days=7)
_LEASE_SECONDS = 60.0
_FLEET_TAG = re.compile(r"/fleet:(v\d{1,4}\.\d{1,4}\.\d{1,6})")
_INJECT = "cert-manager.io/inject-ca-from"


@dataclass(slots=True)
class ManagementFacts:
    """What the checks need; None where nothing was found, `unseen` for what may not be read."""

    namespace: str = "caphv-system"
    version: str = ""
    cluster_api: tuple[str, ...] = ()
    crds: list[Obj] = field(default_factory=list)
    deployment: Obj | None = None
    lease: Obj | None = None
    webhooks: Obj | None = None
    endpoints: list[Obj] = field(default_factory=list)
    certificates: list[Obj] = field(default_factory=list)
    cert_manager: list[Obj] | None = None
    """Deployments of cert-manager, None where they may not be read."""
    fleet_clusters: list[Obj] = field(default_factory=list)
    fleet: Obj | None = None
    """Deployment of Fleet's controller, None where there is none."""
    unseen: list[Unseen] = field(default_factory=list)

    def why_unseen(self, what: str) -> str:
        """Why something could not be read, empty when it could."""
        return next((each.why for each in self.unseen if each.what == what), "")


def checks(facts: ManagementFacts, now: datetime) -> Iterator[Check]:
    """Yield all checks of the management cluster."""
    yield from _cluster_api(facts)
    yield from _crds(facts)
    yield _provider(facts)
    yield _lease(facts, now)
    yield from _webhooks(facts)
    yield from _cert_manager(facts)
    yield from _certificates(facts, now)
    yield from _fleet(facts)


def _fleet(facts: ManagementFacts) -> Iterator[Check]:
    """Whether the bundles were made for this Fleet, by the image of its controller."""
    template = ((facts.fleet or {}).get("spec") or {}).get("template") or {}
    containers: list[Obj] = (template.get("spec") or {}).get("containers") or []
    images = (_FLEET_TAG.search(str(container.get("image") or "")) for container in containers)
    version = next((match[1] for match in images if match), "")
    if not version:
        return
    if problem := support().components["fleet"].problem(version):
        yield Check("fleet-version", SUBJECT, Result.WARNING, problem, "Run a supported release of Fleet")
    else:
        yield ok("fleet-version", SUBJECT, f"Fleet {version}")


def _cluster_api(facts: ManagementFacts) -> Iterator[Check]:
    yield ok("kubernetes-version", SUBJECT, f"Kubernetes {facts.version or 'of unknown version'}")
    versions = ", ".join(facts.cluster_api)
    if facts.cluster_api and not {"v1beta1", "v1beta2"} & set(facts.cluster_api):
        remedy = "Upgrade Cluster API's core to a version that serves v1beta1 or v1beta2"
        yield Check("cluster-api", SUBJECT, Result.ERROR, f"Cluster API serves only {versions}", remedy)
    else:
        yield ok("cluster-api", SUBJECT, f"Cluster API serves {versions}")


def _crds(facts: ManagementFacts) -> Iterator[Check]:
    if why := facts.why_unseen("customresourcedefinitions"):
        yield skipped("crds", SUBJECT, why)
        return
    for crd in facts.crds:
        name = crd["metadata"]["name"]
        strategy = ((crd.get("spec") or {}).get("conversion") or {}).get("strategy")
        if strategy == "Webhook":
            message = f"CRD {name} still has the Go provider's conversion webhook, which has no server"
            yield Check("crds", SUBJECT, Result.ERROR, message, "Apply the CRDs of this release, as migration says")
        elif not any(label.startswith("cluster.x-k8s.io/v1beta") for label in labels_of(crd)):
            message = f"CRD {name} lacks the labels by which Cluster API finds its version"
            yield Check("crds", SUBJECT, Result.ERROR, message, "Apply the CRDs of this release")
        else:
            yield ok("crds", SUBJECT, f"CRD {name} is as Cluster API needs it")


def _provider(facts: ManagementFacts) -> Check:
    place = f"Deployment {facts.namespace}/caphv-controller-manager"
    if why := facts.why_unseen("deployments"):
        return skipped("provider", SUBJECT, why)
    if facts.deployment is None:
        return skipped("provider", SUBJECT, f"{place} does not exist: name its namespace with --provider-namespace")
    status = facts.deployment.get("status") or {}
    ready, wanted = int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)
    if not ready:
        remedy = f"Check its log: {remedies.LOGS(namespace=facts.namespace)}"
        return Check("provider", SUBJECT, Result.ERROR, f"{place} has no ready replica", remedy)
    containers: list[Obj] = facts.deployment["spec"]["template"]["spec"].get("containers") or []
    image = containers[0].get("image", "") if containers else ""
    return ok("provider", SUBJECT, f"{place}: {ready} of {wanted} ready, {image}")


def _lease(facts: ManagementFacts, now: datetime) -> Check:
    if why := facts.why_unseen("leases"):
        return skipped("leader", SUBJECT, why)
    if facts.lease is None:
        what = f"Leases {names.LEASE} and {names.HEARTBEAT_LEASE} do not exist in namespace {facts.namespace}"
        return skipped("leader", SUBJECT, f"{what}: name the provider's with --provider-namespace")
    what = f"Lease {key_of(facts.lease)}"
    spec = facts.lease.get("spec") or {}
    try:
        since = (now - datetime.fromisoformat(str(spec.get("renewTime")))).total_seconds()
    except ValueError:
        since = 0.0
    holder = str(spec.get("holderIdentity") or "unknown")
    if since > _LEASE_SECONDS:
        remedy = f"Check whether the provider runs: {remedies.GET_PODS(namespace=facts.namespace)}"
        message = f"{holder} renewed {what} {int(since)} seconds ago: no provider is active"
        return Check("leader", SUBJECT, Result.ERROR, message, remedy)
    if since < -_LEASE_SECONDS:
        message = f"{what} was renewed {int(-since)} seconds in the future: clocks differ"
        return Check(
            "clock", SUBJECT, Result.WARNING, message, "Synchronize the clocks of this machine and the cluster"
        )
    return ok("leader", SUBJECT, f"{holder} holds {what}")


def _webhooks(facts: ManagementFacts) -> Iterator[Check]:
    if why := facts.why_unseen("validatingwebhookconfigurations"):
        yield skipped("webhooks", SUBJECT, why)
        return
    if facts.webhooks is None:
        yield skipped("webhooks", SUBJECT, "no admission webhooks are registered: only the CRDs' own rules hold")
        return
    entries = facts.webhooks.get("webhooks") or []
    if any(not (entry.get("clientConfig") or {}).get("caBundle") for entry in entries):
        remedy = "With cert-manager: check annotation cert-manager.io/inject-ca-from; else restart the provider"
        yield Check(
            "webhooks", SUBJECT, Result.ERROR, "a webhook has no caBundle: the API server refuses objects", remedy
        )
    service = next(((entry.get("clientConfig") or {}).get("service") for entry in entries), None)
    if service and not facts.why_unseen("endpointslices"):
        ready = sum(
            (endpoint.get("conditions") or {}).get("ready", True) is not False
            for each in facts.endpoints
            for endpoint in each.get("endpoints") or ()
        )
        name = f"{service.get('namespace')}/{service.get('name')}"
        if not ready:
            remedy = "Start the provider with --enable-webhooks, or delete the webhook configurations"
            yield Check(
                "webhooks", SUBJECT, Result.ERROR, f"the webhooks have no ready endpoint behind Service {name}", remedy
            )
            return
        yield ok("webhooks", SUBJECT, f"{ready} endpoints serve the webhooks behind Service {name}")


def _cert_manager(facts: ManagementFacts) -> Iterator[Check]:
    """Whether cert-manager runs, where the webhooks get their certificate from it."""
    injected = facts.webhooks is not None and _INJECT in annotations_of(facts.webhooks)
    if facts.cert_manager is None or not (facts.certificates or injected):
        return
    if not facts.cert_manager:
        message = "the webhooks' certificate is to come from cert-manager, which does not run here"
        remedy = "Install cert-manager, or let the provider issue its own certificate: overlay self-signed"
        yield Check("cert-manager", SUBJECT, Result.ERROR, message, remedy)
        return
    idle = [str(key_of(obj)) for obj in facts.cert_manager if not (obj.get("status") or {}).get("readyReplicas")]
    if idle:
        namespace = key_of(facts.cert_manager[0]).namespace
        message = f"no replica is ready of Deployment {', '.join(sorted(idle))}: certificates are not renewed"
        yield Check(
            "cert-manager", SUBJECT, Result.ERROR, message, f"Check its Pods: {remedies.GET_PODS(namespace=namespace)}"
        )
    else:
        yield ok("cert-manager", SUBJECT, f"{len(facts.cert_manager)} Deployments of cert-manager are ready")


def _certificates(facts: ManagementFacts, now: datetime) -> Iterator[Check]:
    for certificate in facts.certificates:
        name = f"Certificate {facts.namespace}/{certificate['metadata']['name']}"
        ready = condition_of(certificate, "Ready")
        until = str((certificate.get("status") or {}).get("notAfter") or "")
        if ready and ready.get("status") != "True":
            remedy = f"Check cert-manager: {remedies.DESCRIBE_CERTIFICATES(namespace=facts.namespace)}"
            yield Check("certificates", SUBJECT, Result.ERROR, f"{name}: {ready.get('message') or 'not ready'}", remedy)
        elif until and (ends := datetime.fromisoformat(until)) - now < _SOON:
            remedy = "cert-manager should have renewed it: check its log"
            yield Check("certificates", SUBJECT, Result.WARNING, f"{name} ends at {ends:%Y-%m-%d %H:%M} UTC", remedy)
        else:
            yield ok("certificates", SUBJECT, f"{name} is valid{f' until {until}' if until else ''}")
