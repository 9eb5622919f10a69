"""References from one object to another: of the right kind, in the right form, and to something that is there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from caphv.api.names import GROUP, VERSIONS
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, LocatedFinding, did_you_mean
from caphv.validation.rule import Rules
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, Entry, Inventory, Located
from webhooks.rules.model import CLUSTER, CLUSTER_TEMPLATE, KINDS, MACHINE, MACHINE_TEMPLATE, Field

RULES = Rules()
OWNERS = ("Cluster", "ClusterClass", "Machine", "MachineSet", "MachineDeployment", "MachinePool", "*ControlPlane")

_KEYS = frozenset({"infrastructureRef", "ref", "templateRef"})
_EXPECTED = {
    "Cluster": CLUSTER,
    "Machine": MACHINE,
    "MachineSet": MACHINE_TEMPLATE,
    "MachineDeployment": MACHINE_TEMPLATE,
    "MachinePool": None,
}


# Many checks ask for them, one set of objects at a time.
@lru_cache(maxsize=1)
def references(inventory: Inventory) -> tuple[tuple[Entry, Field], ...]:
    """Return every reference of an object of Cluster API to a kind of this provider, right or wrong."""
    owners = (entry for entry in inventory.entries if entry.group in (CLUSTER_API_GROUP, CONTROL_PLANE_GROUP))
    found = ((entry, field) for entry in owners for field in _refs(entry.field.at("spec")))
    return tuple(pair for pair in found if _group(pair[1]) == GROUP or pair[1].at("kind").text.startswith("Harvester"))


def _refs(field: Field) -> Iterator[Field]:
    value: Any = field.value
    if isinstance(value, dict):
        for key in value:
            below = field.at(str(key))
            if key in _KEYS and "kind" in below.mapping:
                yield below
            else:
                yield from _refs(below)
    for item in field.each():
        yield from _refs(item)


def _group(field: Field) -> str:
    return field.at("apiGroup").text or field.at("apiVersion").text.rpartition("/")[0]


def expected_kind(entry: Entry, field: Field) -> str | None:
    """The kind that a reference has to name by its place; None when this provider has none for it."""
    if entry.kind == "ClusterClass":
        return CLUSTER_TEMPLATE if field.path[:2] == ("spec", "infrastructure") else MACHINE_TEMPLATE
    return _EXPECTED.get(entry.kind, MACHINE_TEMPLATE)


@RULES.rule(
    "reference-kind",
    OWNERS,
    "A reference must name the kind of this provider that fits its place: HarvesterCluster for a Cluster, "
    "HarvesterMachine for a Machine, HarvesterMachineTemplate for what creates machines, HarvesterClusterTemplate for "
    "a ClusterClass. There are no machine pools.",
    example='MachineDeployment with `infrastructureRef.kind: HarvesterMachine`: write "HarvesterMachineTemplate"',
)
def _kind(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        kind, wanted = field.at("kind"), expected_kind(entry, field)
        if wanted is None:
            detail = "this provider has no machine pools: use a MachineDeployment with a HarvesterMachineTemplate"
            yield LocatedFinding(entry, kind.problem(Fault.UNSUPPORTED, detail))
        elif kind.value != wanted:
            yield LocatedFinding(entry, kind.problem(Fault.UNSUPPORTED, f'must be "{wanted}" here'))


@RULES.rule(
    "reference-api",
    OWNERS,
    "A reference must name its API as the version of its object requires: `apiVersion` with a served version in "
    "v1beta1, `apiGroup` in v1beta2 of Cluster API.",
    example="Cluster of v1beta2 with `infrastructureRef.apiVersion`: write `apiGroup: infrastructure.cluster.x-k8s.io`",
)
def _api(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        new = entry.api == (CLUSTER_API_GROUP, "v1beta2") and entry.kind != "ClusterClass"
        right, wrong = field.at("apiGroup" if new else "apiVersion"), field.at("apiVersion" if new else "apiGroup")
        wanted = GROUP if new else f"{GROUP}/{VERSIONS[-1]}"
        if wrong.present and entry.group == CLUSTER_API_GROUP:
            instead = f'write {right.path[-1]} "{wanted}" in its place in {entry.field.at("apiVersion").text}'
            yield LocatedFinding(entry, wrong.problem(Fault.UNKNOWN, instead))
        elif not right.present and not wrong.present:
            yield LocatedFinding(entry, right.required(f'must be "{wanted}"'))
        elif right.text and right.value not in _spellings(new):
            yield LocatedFinding(entry, right.problem(Fault.UNSUPPORTED, f'must be "{wanted}"'))


def _spellings(new: bool) -> set[str]:
    return {GROUP} if new else {f"{GROUP}/{version}" for version in VERSIONS}


@RULES.rule(
    "reference-namespace",
    OWNERS,
    "A reference must stay in the namespace of its object.",
    example="Cluster in namespace `clusters` with `infrastructureRef.namespace: default`: remove the field",
)
def _namespace(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        namespace = field.at("namespace")
        if namespace.text and entry.namespace and namespace.text != entry.namespace:
            yield LocatedFinding(
                entry, namespace.invalid(f'must be "{entry.namespace}", that of the {entry.kind} itself')
            )


@RULES.rule(
    "reference-absent",
    OWNERS,
    "The target of a reference must be among the files, unless the cluster has it already. A similar name is "
    "suggested.",
    example="Cluster with `infrastructureRef.name: demmo` with HarvesterCluster `demo`: correct the name",
    advice=True,
)
def _absent(inventory: Inventory) -> Iterator[Located]:
    for entry, field in references(inventory):
        kind, name = field.at("kind").text, field.at("name")
        namespace = field.at("namespace").text or entry.namespace
        if kind not in KINDS or not name.text or inventory.find(kind, namespace, name.text):
            continue
        yield LocatedFinding(
            entry, name.invalid(f"no {kind} of this name is among the files{inventory.near(kind, name.text)}")
        )


@RULES.rule(
    "identity-absent",
    (CLUSTER,),
    "The identity Secret must have the name of the Secret among the files, where one has nearly that name.",
    example="`identitySecret.name: harvester-identiy` with Secret `harvester-identity`: correct the name",
    advice=True,
)
def _identity(inventory: Inventory) -> Iterator[Located]:
    for entry, name, secret in _identities(inventory):
        near = inventory.near("Secret", name.text, "")
        if secret is None and near:
            yield LocatedFinding(entry, name.invalid(f"no Secret of this name is among the files{near}"))


@RULES.rule(
    "identity-key",
    (CLUSTER,),
    "The identity Secret must have the key `kubeconfig`. Its content is neither read nor shown.",
    example="Secret with `stringData.config`: name the key `kubeconfig`",
)
def _identity_key(inventory: Inventory) -> Iterator[Located]:
    for entry, name, secret in _identities(inventory):
        if secret is None:
            continue
        keys = {*secret.field.at("data").mapping, *secret.field.at("stringData").mapping}
        if "kubeconfig" not in keys:
            yield LocatedFinding(entry, name.invalid("this Secret has no key kubeconfig: name the key so"), secret)


def _identities(inventory: Inventory) -> Iterator[tuple[Entry, Field, Entry | None]]:
    for entry in inventory.of_kind(CLUSTER):
        ref = entry.field.at("spec", "identitySecret")
        name, namespace = ref.at("name"), ref.at("namespace").text
        if name.text:
            yield entry, name, inventory.find("Secret", namespace, name.text, "")


@RULES.rule(
    "pool-name",
    (CLUSTER, MACHINE, MACHINE_TEMPLATE),
    "A reference to a pool must have the name of an IPPool, where one among the files has nearly that name.",
    example="`ipPoolRefs: [vm-pol-a]` with IPPool `vm-pool-a`: correct the name",
    advice=True,
)
def _pools(inventory: Inventory) -> Iterator[Located]:
    given = {pool.name for pool in inventory.of_kind("IPPool", "loadbalancer.harvesterhci.io")}
    for kind in (CLUSTER, MACHINE, MACHINE_TEMPLATE):
        for entry in inventory.of_kind(kind):
            spec = entry.field.at("spec", "template", "spec") if kind == MACHINE_TEMPLATE else entry.field.at("spec")
            network = spec.at("vmNetworkConfig")
            names = [
                spec.at("loadBalancerConfig", "ipPoolRef"),
                network.at("ipPoolRef"),
                *network.at("ipPoolRefs").each(),
            ]
            for name in names:
                near = did_you_mean(name.text, given)
                if name.text and name.text not in given and near:
                    yield LocatedFinding(entry, name.invalid(f"no IPPool of this name is among the files{near}"))
