"""Rules about references between objects: their kind, their form, and whether a target exists."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from caphv.api.identities import CLOUD_CREDENTIAL_KEY, KUBECONFIG_KEY, allows
from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import list_at
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.api.tokenrenewal import identity_name
from caphv.validation.finding import Fault, LocatedFinding, did_you_mean
from caphv.validation.rule import Rules
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, POOL_GROUP, Entry, Inventory, Located
from webhooks.rules.model import (
    CLUSTER,
    CLUSTER_IDENTITY,
    CLUSTER_TEMPLATE,
    KINDS,
    MACHINE,
    MACHINE_TEMPLATE,
    Field,
)

RULES = Rules()
OWNERS = (
    "Cluster",
    "ClusterClass",
    "Machine",
    "MachineSet",
    "MachineDeployment",
    "MachinePool",
    "*ControlPlane",
)

_KEYS = frozenset({"infrastructureRef", "ref", "templateRef"})
_EXPECTED = {
    "Cluster": CLUSTER,
    "Machine": MACHINE,
    "MachineSet": MACHINE_TEMPLATE,
    "MachineDeployment": MACHINE_TEMPLATE,
    # This provider has no pools of machines.
    "MachinePool": None,
}


class Reference(NamedTuple):
    """An object of Cluster API, and one of its fields that refers to a kind of this provider."""

    owner: Entry
    field: Field


# The result is cached, because many rules read it. Only one inventory is checked at a time.
@lru_cache(maxsize=1)
def references(inventory: Inventory) -> tuple[Reference, ...]:
    """Return all references of Cluster API's objects to kinds of this provider, valid or not."""
    found = []
    for entry in inventory.entries:
        if entry.group not in (CLUSTER_API_GROUP, CONTROL_PLANE_GROUP):
            continue
        for field in _refs(entry.field.at("spec")):
            group = field.at("apiGroup").text or field.at("apiVersion").text.rpartition("/")[0]
            # A reference with a mistake in either field still refers to this provider.
            if group == GROUP or field.at("kind").text.startswith("Harvester"):
                found.append(Reference(entry, field))
    return tuple(found)


def _refs(field: Field) -> Iterator[Field]:
    """Yield all references in a value."""
    for key in field.mapping:
        below = field.at(str(key))
        if key in _KEYS and "kind" in below.mapping:
            yield below
        else:
            yield from _refs(below)
    for item in field.each():
        yield from _refs(item)


def expected_kind(entry: Entry, field: Field) -> str | None:
    """Return the kind that a reference at this place must name, None if it must not exist."""
    if entry.kind == "ClusterClass" and field.path[:2] == ("spec", "infrastructure"):
        return CLUSTER_TEMPLATE
    if entry.kind == "ClusterClass":
        return MACHINE_TEMPLATE
    return _EXPECTED.get(entry.kind, MACHINE_TEMPLATE)


@RULES.rule(
    "reference-kind",
    OWNERS,
    "A reference must name the kind of this provider that fits its place: HarvesterCluster for a "
    "Cluster, HarvesterMachine for a Machine, HarvesterMachineTemplate for what creates machines, "
    "HarvesterClusterTemplate for a ClusterClass. There are no machine pools.",
    example=(
        "MachineDeployment with `infrastructureRef.kind: HarvesterMachine`: write"
        ' "HarvesterMachineTemplate"'
    ),
)
def _kind(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        kind = field.at("kind")
        expected = expected_kind(entry, field)
        if expected is None:
            detail = (
                "this provider has no machine pools: use a MachineDeployment with a "
                "HarvesterMachineTemplate"
            )
            yield LocatedFinding(entry, kind.problem(Fault.UNSUPPORTED, detail))
        elif kind.value != expected:
            detail = f'must be "{expected}" here'
            yield LocatedFinding(entry, kind.problem(Fault.UNSUPPORTED, detail))


@RULES.rule(
    "reference-api",
    OWNERS,
    "A reference must name its API as the version of its object requires: `apiVersion` with a "
    "served version in v1beta1, `apiGroup` in v1beta2 of Cluster API.",
    example=(
        "Cluster of v1beta2 with `infrastructureRef.apiVersion`: write `apiGroup: "
        "infrastructure.cluster.x-k8s.io`"
    ),
)
def _api(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        # In v1beta2, a `templateRef` of a ClusterClass still has an apiVersion.
        if entry.api == (CLUSTER_API_GROUP, "v1beta2") and entry.kind != "ClusterClass":
            api = field.at("apiGroup")
            wrong_api = field.at("apiVersion")
            expected = GROUP
            allowed = [GROUP]
        else:
            api = field.at("apiVersion")
            wrong_api = field.at("apiGroup")
            expected = f"{GROUP}/{VERSIONS[-1]}"
            allowed = [f"{GROUP}/{version}" for version in VERSIONS]

        # Control plane providers choose by themselves which of the two fields their kinds have.
        if wrong_api.present and entry.group == CLUSTER_API_GROUP:
            entry_version = entry.field.at("apiVersion").text
            detail = f'write {api.path[-1]} "{expected}" in its place in {entry_version}'
            yield LocatedFinding(entry, wrong_api.problem(Fault.UNKNOWN, detail))
        elif not api.present and not wrong_api.present:
            yield LocatedFinding(entry, api.required(f'must be "{expected}"'))
        elif api.text and api.value not in allowed:
            detail = f'must be "{expected}"'
            yield LocatedFinding(entry, api.problem(Fault.UNSUPPORTED, detail))


@RULES.rule(
    "reference-namespace",
    OWNERS,
    "A reference must stay in the namespace of its object.",
    example=(
        "Cluster in namespace `clusters` with `infrastructureRef.namespace: default`: remove the "
        "field"
    ),
)
def _namespace(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        namespace = field.at("namespace")
        if namespace.text and entry.namespace and namespace.text != entry.namespace:
            detail = f'must be "{entry.namespace}", that of the {entry.kind} itself'
            yield LocatedFinding(entry, namespace.invalid(detail))


@RULES.rule(
    "reference-absent",
    OWNERS,
    "The target of a reference must be among the files, unless the cluster has it already. A "
    "similar name is suggested.",
    example=(
        "Cluster with `infrastructureRef.name: demmo` with HarvesterCluster `demo`: correct the "
        "name"
    ),
    advice=True,
)
def _absent(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        kind = field.at("kind").text
        name = field.at("name")
        namespace = field.at("namespace").text or entry.namespace
        if kind not in KINDS or not name.text or inventory.find(kind, namespace, name.text):
            continue

        suggestion = inventory.near(kind, name.text)
        detail = f"no {kind} of this name is among the files{suggestion}"
        yield LocatedFinding(entry, name.invalid(detail))


@RULES.rule(
    "identity-absent",
    (CLUSTER,),
    "The identity Secret must have the name of the Secret among the files, where one has nearly "
    "that name.",
    example=(
        "`identitySecret.name: harvester-identiy` with Secret `harvester-identity`: correct the "
        "name"
    ),
    advice=True,
)
def _identity(inventory: Inventory) -> Iterator[Located]:
    for entry, name, secret in _identities(inventory):
        suggestion = inventory.near("Secret", name.text, "")
        if secret is None and suggestion:
            detail = f"no Secret of this name is among the files{suggestion}"
            yield LocatedFinding(entry, name.invalid(detail))


@RULES.rule(
    "identity-namespace",
    (CLUSTER,),
    "The HarvesterClusterIdentity that a cluster names must have a similar name among the files, "
    "and allow the namespace of the cluster by name, unless labels select it.",
    example=(
        "`identityRef.name: shared` in namespace `team-b` with HarvesterClusterIdentity `shared` "
        "that allows `team-a`: add `team-b` to its `allowedNamespaces.list`"
    ),
    advice=True,
)
def _identity_namespace(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.of_kind(CLUSTER):
        name = entry.spec.at("identityRef", "name")
        identity = inventory.find(CLUSTER_IDENTITY, "", name.text) if name.text else None
        if identity is None:
            suggestion = inventory.near(CLUSTER_IDENTITY, name.text) if name.text else ""
            if suggestion:
                detail = f"no {CLUSTER_IDENTITY} of this name is among the files{suggestion}"
                yield LocatedFinding(entry, name.invalid(detail))
            continue

        # Files do not say which labels a namespace has, so a selector may allow any namespace.
        by_labels = identity.spec.at("allowedNamespaces", "selector").present
        if entry.namespace and not by_labels and not allows(identity.obj, entry.namespace, None):
            detail = (
                f"does not allow namespace {entry.namespace}: add it to allowedNamespaces.list of "
                f"{identity}"
            )
            yield LocatedFinding(entry, name.invalid(detail), identity)


@RULES.rule(
    "identity-account",
    (CLUSTER_IDENTITY,),
    "The account of `tokenRenewal` must not be in one of its target namespaces, in which it may "
    "issue tokens of any ServiceAccount.",
    example=(
        "`serviceAccount.namespace: team-a` with `targetNamespaces: [team-a]`: name another "
        "namespace, which need not exist"
    ),
)
def _identity_account(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.of_kind(CLUSTER_IDENTITY):
        account = entry.spec.at("tokenRenewal", "serviceAccount")
        namespace = account.at("namespace")
        targets = list_at(entry.obj, "spec", "tokenRenewal", "serviceAccount", "targetNamespaces")
        if namespace.text and namespace.text in targets:
            detail = "is a target namespace: name another one, which need not exist"
            yield LocatedFinding(entry, namespace.invalid(detail))


@RULES.rule(
    "identity-renewed-secret",
    (CLUSTER_IDENTITY,),
    "With `tokenRenewal`, the Secret in `secretRef` must not have the name of one in which the "
    "provider keeps a token, which would be exchanged again and again.",
    example=(
        "`secretRef.name: renewed-token.shared` with `tokenRenewal`: give the Secret another name"
    ),
)
def _identity_renewed_secret(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.of_kind(CLUSTER_IDENTITY):
        name = entry.spec.at("secretRef", "name")
        if entry.spec.at("tokenRenewal").present and identity_name(name.text):
            detail = "is the name of a token that the provider renews: give the Secret another name"
            yield LocatedFinding(entry, name.invalid(detail))


@RULES.rule(
    "identity-key",
    (CLUSTER,),
    "The identity Secret must have the key `kubeconfig`, or be a cloud credential of Rancher. Its "
    "content is neither read nor shown.",
    example="Secret with `stringData.config`: name the key `kubeconfig`",
)
def _identity_key(inventory: Inventory) -> Iterator[Located]:
    for entry, name, secret in _identities(inventory):
        if secret is None:
            continue
        keys = {*secret.field.at("data").mapping, *secret.field.at("stringData").mapping}
        if keys.isdisjoint((KUBECONFIG_KEY, CLOUD_CREDENTIAL_KEY)):
            detail = "this Secret has no key kubeconfig: name the key so"
            yield LocatedFinding(entry, name.invalid(detail), secret)


class _SecretReference(NamedTuple):
    """A HarvesterCluster, the field with the name of its Secret, and the Secret if it is known."""

    cluster: Entry
    name: Field
    secret: Entry | None


def _identities(inventory: Inventory) -> Iterator[_SecretReference]:
    """Yield the references of HarvesterClusters to identity Secrets."""
    for entry in inventory.of_kind(CLUSTER):
        ref = entry.spec.at("identitySecret")
        name = ref.at("name")
        namespace = ref.at("namespace").text
        if name.text:
            secret = inventory.find("Secret", namespace, name.text, "")
            yield _SecretReference(entry, name, secret)


@RULES.rule(
    "pool-name",
    (CLUSTER, MACHINE, MACHINE_TEMPLATE),
    "A reference to a pool must have the name of an IPPool, where one among the files has nearly "
    "that name.",
    example="`ipPoolRefs: [vm-pol-a]` with IPPool `vm-pool-a`: correct the name",
    advice=True,
)
def _pools(inventory: Inventory) -> Iterator[Located]:
    pool_names = {pool.name for pool in inventory.of_kind("IPPool", POOL_GROUP)}
    for kind in (CLUSTER, MACHINE, MACHINE_TEMPLATE):
        for entry in inventory.of_kind(kind):
            for name in _pool_references(entry.spec):
                if not name.text or name.text in pool_names:
                    continue
                if suggestion := did_you_mean(name.text, pool_names):
                    detail = f"no IPPool of this name is among the files{suggestion}"
                    yield LocatedFinding(entry, name.invalid(detail))


def _pool_references(spec: Field) -> list[Field]:
    """Return the fields with names of IPPools, set or not."""
    vm_network = spec.at("vmNetworkConfig")
    return [
        spec.at("loadBalancerConfig", "ipPoolRef"),
        vm_network.at("ipPoolRef"),
        *vm_network.at("ipPoolRefs").each(),
    ]
