"""Check the management cluster: CRDs, the provider, its webhooks and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api import names, remedies, resources
from caphv.api.counting import name_some
from caphv.api.crds import missing_fields
from caphv.api.object import Obj, annotations_of, at, key_of, labels_of, text_at
from caphv.api.supported import support
from operations.doctor import extensions
from operations.read.objects import Unseen, condition_of, time_of
from operations.status.check import Check, Result, ok, skipped
from operations.status.provider import is_released, start_sandbox

SUBJECT = "management cluster"
_SOON = timedelta(days=7)
_LEASE_SECONDS = 60.0
_INJECT = "cert-manager.io/inject-ca-from"
# Each has a check that says why it could not be read.
_REPORTED_KINDS = frozenset(
    {"customresourcedefinitions", "deployments", "leases", "validatingwebhookconfigurations"}
)


@dataclass(slots=True)
class ManagementFacts:
    """The input of the checks: an absent object is None, `unseen` names unreadable ones."""

    namespace: str = "caphv-system"
    version: str = ""
    cluster_api: tuple[str, ...] = ()
    crds: list[Obj] = field(default_factory=list)
    absent_crds: list[str] = field(default_factory=list)
    """Names of CRDs of the provider that do not exist."""
    deployment: Obj | None = None
    has_namespace: bool = False
    """Whether the provider's namespace is known to exist; read only without its Deployment."""
    sandbox: str = ""
    """Folder of the sandbox that runs the provider; read with its namespace."""
    lease: Obj | None = None
    other_leases: list[Obj] = field(default_factory=list)
    """Leases in other namespaces, of providers that manage all objects."""
    webhooks: Obj | None = None
    former_webhooks: list[Obj] = field(default_factory=list)
    """Configurations of another installation that lead to the provider's Service, too."""
    endpoints: list[Obj] = field(default_factory=list)
    certificates: list[Obj] = field(default_factory=list)
    cert_manager: list[Obj] | None = None
    """Deployments of cert-manager, None if they may not be read."""
    fleet_clusters: list[Obj] = field(default_factory=list)
    releases: dict[str, str] = field(default_factory=dict)
    """Releases of Fleet and of what joins it to Cluster API, by component, as far as they show."""
    extensions: list[Obj] = field(default_factory=list)
    """ExtensionConfigs of Cluster API."""
    namespaces: list[Obj] = field(default_factory=list)
    """Namespaces, if several ExtensionConfigs may serve one."""
    rancher: dict[str, str] = field(default_factory=dict)
    """Values of Rancher's settings by name; empty without a Rancher."""
    unseen: list[Unseen] = field(default_factory=list)

    def why_unseen(self, what: str) -> str:
        """Return the reason why something could not be read; empty if it was read."""
        for item in self.unseen:
            if item.what == what:
                return item.why
        return ""


def checks(facts: ManagementFacts, now: datetime) -> Iterator[Check]:
    """Yield all checks of the management cluster."""
    yield from _check_cluster_api(facts)
    yield from _check_crds(facts)
    yield _check_provider(facts, now)
    yield _check_lease(facts, now)
    yield from _check_webhooks(facts)
    yield from _check_cert_manager(facts)
    yield from _check_certificates(facts, now)
    yield from _check_releases(facts)
    yield from extensions.checks(facts.extensions, facts.namespaces, SUBJECT)
    if hidden := sorted({item.what for item in facts.unseen} - _REPORTED_KINDS):
        why = facts.why_unseen(hidden[0])
        yield skipped("access", SUBJECT, f"not checked, for lack of {name_some(hidden)}: {why}")


def _check_releases(facts: ManagementFacts) -> Iterator[Check]:
    """Check Fleet, for which the bundles were written, and what makes its Clusters."""
    for name, release in facts.releases.items():
        component = support().components[name]
        if problem := component.problem(release):
            remedy = f"Run a supported release of {component.title}"
            yield Check(f"{name}-version", SUBJECT, Result.WARNING, message=problem, remedy=remedy)
        else:
            yield ok(f"{name}-version", SUBJECT, f"{component.title} {release}")


def _check_cluster_api(facts: ManagementFacts) -> Iterator[Check]:
    """Check Kubernetes, and that Cluster API serves a version that the provider speaks."""
    if problem := support().components["management"].problem(facts.version):
        remedy = "Run a supported release of Kubernetes on the management cluster"
        yield Check("kubernetes-version", SUBJECT, Result.WARNING, message=problem, remedy=remedy)
    else:
        name = f"Kubernetes {facts.version or 'of unknown version'}"
        yield ok("kubernetes-version", SUBJECT, name)

    versions = ", ".join(facts.cluster_api)
    if facts.cluster_api and not {"v1beta1", "v1beta2"} & set(facts.cluster_api):
        message = f"Cluster API serves only {versions}"
        remedy = "Upgrade Cluster API's core to a version that serves v1beta1 or v1beta2"
        yield Check("cluster-api", SUBJECT, Result.ERROR, message=message, remedy=remedy)
    else:
        yield ok("cluster-api", SUBJECT, f"Cluster API serves {versions}")


def _check_crds(facts: ManagementFacts) -> Iterator[Check]:
    """Check that the CRDs belong to this provider, and that Cluster API finds their version."""
    if why := facts.why_unseen("customresourcedefinitions"):
        yield skipped("crds", SUBJECT, why)
        return

    for name in facts.absent_crds:
        effect = "the provider cannot work"
        if name == str(resources.HARVESTER_CLUSTER_IDENTITIES):
            effect = "clusters cannot share the credentials of a HarvesterClusterIdentity"
        message = f"CRD {name} does not exist: {effect}"
        yield Check(
            "crds",
            SUBJECT,
            Result.ERROR,
            message=message,
            remedy="Install the CRDs of this release",
        )

    for crd in facts.crds:
        name = crd["metadata"]["name"]
        # The API server refuses all objects of the kind once no Go provider does the conversion,
        # and CRDs that are applied over it do not remove the webhook.
        if at(crd, "spec", "conversion", "strategy") == "Webhook":
            message = (
                f"CRD {name} has the Go provider's conversion webhook: CRDs of this release cannot "
                "be applied over it, and without the Go provider, requests for objects may fail"
            )
            remedy = "Remove the webhook: step 1 of docs/migration.md, 'From the Go provider'"
            yield Check("crds", SUBJECT, Result.ERROR, message=message, remedy=remedy)
        elif not any(label.startswith("cluster.x-k8s.io/v1beta") for label in labels_of(crd)):
            message = f"CRD {name} lacks the labels by which Cluster API finds its version"
            yield Check(
                "crds",
                SUBJECT,
                Result.ERROR,
                message=message,
                remedy="Apply the CRDs of this release",
            )
        elif missing := missing_fields(crd):
            message = (
                f"CRD {name} lacks fields of this release, and the API server drops what users "
                f"write into them: {name_some(missing)}"
            )
            remedy = "Apply the CRDs of this release"
            yield Check("crds", SUBJECT, Result.ERROR, message=message, remedy=remedy)
        else:
            yield ok("crds", SUBJECT, f"CRD {name} is as Cluster API needs it")


def _check_provider(facts: ManagementFacts, now: datetime) -> Check:
    """Check that the provider has a ready replica."""
    if why := facts.why_unseen("deployments"):
        return skipped("provider", SUBJECT, why)

    place = f"Deployment {facts.namespace}/caphv-controller-manager"
    if facts.deployment is None:
        return _check_absent_provider(facts, place, now)

    ready = int(at(facts.deployment, "status", "readyReplicas") or 0)
    replicas = int(at(facts.deployment, "status", "replicas") or 0)
    if not ready:
        remedy = f"Check its log: {remedies.LOGS(namespace=facts.namespace)}"
        return Check(
            "provider",
            SUBJECT,
            Result.ERROR,
            message=f"{place} has no ready replica",
            remedy=remedy,
        )

    container = facts.deployment["spec"]["template"]["spec"]["containers"][0]
    image = container.get("image", "")
    return ok("provider", SUBJECT, f"{place}: {ready} of {replicas} ready, {image}")


def _check_absent_provider(facts: ManagementFacts, place: str, now: datetime) -> Check:
    """Check whether a Deployment that does not exist is missing, or only elsewhere."""
    other = "--provider-namespace names another namespace"
    if not facts.has_namespace:
        return skipped("provider", SUBJECT, f"{place} does not exist; {other}")

    if facts.lease and _is_active(facts.lease, now):
        holder = text_at(facts.lease, "spec", "holderIdentity")
        return skipped("provider", SUBJECT, f"{place} does not exist: {holder} runs without it")

    if facts.sandbox:
        message = "the provider of the sandbox does not run: nothing manages the clusters"
        remedy = start_sandbox(facts.sandbox)
        return Check("provider", SUBJECT, Result.ERROR, message=message, remedy=remedy)

    message = f"{place} does not exist, although its namespace does: nothing manages the clusters"
    command = remedies.DESCRIBE_CAPIPROVIDERS(namespace=facts.namespace)
    remedy = (
        "Install the provider again (docs/installation.md). With Turtles, the conditions of its "
        f"CAPIProvider say what stops the installation: {command}. If it runs elsewhere, "
        f"{other}"
    )
    return Check("provider", SUBJECT, Result.ERROR, message=message, remedy=remedy)


def _check_lease(facts: ManagementFacts, now: datetime) -> Check:
    """Check that a provider renews its Lease, and that its clock agrees with our clock."""
    if why := facts.why_unseen("leases"):
        return skipped("leader", SUBJECT, why)
    if facts.lease is None:
        reason = (
            f"Leases {names.LEASE} and {names.HEARTBEAT_LEASE} do not exist in namespace "
            f"{facts.namespace}: name the provider's with --provider-namespace"
        )
        return skipped("leader", SUBJECT, reason)

    lease = f"Lease {key_of(facts.lease)}"
    spec = facts.lease.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "unknown")
    renewed_at = time_of(spec.get("renewTime"))
    age = (now - renewed_at).total_seconds() if renewed_at else 0.0

    if age > _LEASE_SECONDS or is_released(facts.lease, now):
        # A provider that stops releases its Lease, which then has no holder.
        by = f" by {holder}" if spec.get("holderIdentity") else ""
        message = f"{lease} was renewed {int(age)} seconds ago{by}: no provider is active"
        remedy = f"Check whether the provider runs: {remedies.GET_PODS(namespace=facts.namespace)}"
        if facts.sandbox:
            remedy = start_sandbox(facts.sandbox)
        return Check("leader", SUBJECT, Result.ERROR, message=message, remedy=remedy)
    if age < -_LEASE_SECONDS:
        message = f"{lease} was renewed {int(-age)} seconds in the future: clocks differ"
        remedy = "Synchronize the clocks of this machine and the cluster"
        return Check("clock", SUBJECT, Result.WARNING, message=message, remedy=remedy)
    others = sorted(str(key_of(other)) for other in facts.other_leases if _is_active(other, now))
    if others:
        message = f"{lease} and {', '.join(others)} are renewed: several providers are active"
        remedy = (
            "Remove all but one: a Lease excludes providers of its own namespace only, the Go "
            "provider included"
        )
        return Check("leader", SUBJECT, Result.ERROR, message=message, remedy=remedy)
    return ok("leader", SUBJECT, f"{holder} holds {lease}")


def _is_active(lease: Obj, now: datetime) -> bool:
    """Return whether a Lease has a holder, which renewed it a short time ago."""
    renewed_at = time_of(text_at(lease, "spec", "renewTime"))
    has_holder = bool(at(lease, "spec", "holderIdentity"))
    return (
        has_holder
        and renewed_at is not None
        and (now - renewed_at).total_seconds() <= _LEASE_SECONDS
    )


def _check_webhooks(facts: ManagementFacts) -> Iterator[Check]:
    """Check that the webhooks are registered, trusted by the API server, and served."""
    if why := facts.why_unseen("validatingwebhookconfigurations"):
        yield skipped("webhooks", SUBJECT, why)
        return
    if facts.webhooks is None:
        why = "no admission webhooks are registered: only the CRDs' own rules hold"
        yield skipped("webhooks", SUBJECT, why)
        return

    # The API server trusts the CA in each configuration, and another installation had another CA.
    for configuration in facts.former_webhooks:
        name = configuration["metadata"]["name"]
        message = (
            f"ValidatingWebhookConfiguration {name} is of another installation, perhaps of the Go "
            "provider, and leads to this one: the API server refuses objects"
        )
        remedy = f"Delete it: {remedies.DELETE_WEBHOOKS(name=name)}"
        yield Check("webhooks", SUBJECT, Result.ERROR, message=message, remedy=remedy)

    entries = facts.webhooks.get("webhooks") or []
    if any(not at(entry, "clientConfig", "caBundle") for entry in entries):
        message = "a webhook has no caBundle: the API server refuses objects"
        remedy = (
            "With cert-manager: check annotation cert-manager.io/inject-ca-from; else restart the "
            "provider"
        )
        yield Check("webhooks", SUBJECT, Result.ERROR, message=message, remedy=remedy)

    # A webhook with a URL has no Service, and its server is not in this cluster.
    service = at(entries[0], "clientConfig", "service") if entries else None
    if not service or facts.why_unseen("endpointslices"):
        return

    # An endpoint that does not say whether it is ready counts as ready (EndpointConditions).
    name = f"{service.get('namespace')}/{service.get('name')}"
    ready = 0
    for endpoint_slice in facts.endpoints:
        for endpoint in endpoint_slice.get("endpoints") or ():
            ready += at(endpoint, "conditions", "ready") is not False
    if ready:
        yield ok("webhooks", SUBJECT, f"{ready} endpoints serve the webhooks behind Service {name}")
    else:
        message = f"the webhooks have no ready endpoint behind Service {name}"
        remedy = "Start the provider with --enable-webhooks, or delete the webhook configurations"
        yield Check("webhooks", SUBJECT, Result.ERROR, message=message, remedy=remedy)


def _check_cert_manager(facts: ManagementFacts) -> Iterator[Check]:
    """Check that cert-manager runs, where the webhooks get their certificate from it."""
    injected = facts.webhooks is not None and _INJECT in annotations_of(facts.webhooks)
    if not (facts.certificates or injected):
        return

    if facts.cert_manager is None:
        yield skipped("cert-manager", SUBJECT, "Deployments of all namespaces may not be read")
        return
    if not facts.cert_manager:
        message = "the webhooks' certificate is to come from cert-manager, which does not run here"
        remedy = (
            "Install cert-manager, or let the provider issue its own certificate: overlay "
            "self-signed"
        )
        yield Check("cert-manager", SUBJECT, Result.ERROR, message=message, remedy=remedy)
        return

    idle = [
        str(key_of(obj)) for obj in facts.cert_manager if not at(obj, "status", "readyReplicas")
    ]
    if idle:
        message = (
            f"no replica is ready of Deployment {', '.join(sorted(idle))}: certificates are not "
            "renewed"
        )
        namespace = key_of(facts.cert_manager[0]).namespace
        remedy = f"Check its Pods: {remedies.GET_PODS(namespace=namespace)}"
        yield Check("cert-manager", SUBJECT, Result.ERROR, message=message, remedy=remedy)
    else:
        message = f"{len(facts.cert_manager)} Deployments of cert-manager are ready"
        yield ok("cert-manager", SUBJECT, message)


def _check_certificates(facts: ManagementFacts, now: datetime) -> Iterator[Check]:
    """Check that cert-manager's certificates are ready, and do not end soon."""
    for certificate in facts.certificates:
        name = f"Certificate {facts.namespace}/{certificate['metadata']['name']}"
        ready = condition_of(certificate, "Ready")
        until = text_at(certificate, "status", "notAfter")

        if ready and ready.get("status") != "True":
            message = f"{name}: {ready.get('message') or 'not ready'}"
            command = remedies.DESCRIBE_CERTIFICATES(namespace=facts.namespace)
            remedy = f"Check cert-manager: {command}"
            yield Check("certificates", SUBJECT, Result.ERROR, message=message, remedy=remedy)
        elif (ends := time_of(until)) and ends - now < _SOON:
            message = f"{name} ends at {ends:%Y-%m-%d %H:%M} UTC"
            remedy = "cert-manager should have renewed it: check its log"
            yield Check("certificates", SUBJECT, Result.WARNING, message=message, remedy=remedy)
        else:
            validity = f" until {until}" if until else ""
            yield ok("certificates", SUBJECT, f"{name} is valid{validity}")
