"""What to do next about each reason of a condition: one sentence, with a command where there is one.

The texts of conditions say what is wrong. What they cannot know is who reads them; this table speaks to an operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from caphv.api.names import PAUSED_ANNOTATION, Reason
from caphv.api.object import Obj, annotations_of


@dataclass(frozen=True, slots=True)
class Subject:
    """What a sentence may name: the cluster, the object with the condition, and the identity Secret."""

    namespace: str
    cluster: str
    kind: str
    name: str
    identity: str = ""
    target: str = ""

    @property
    def describe(self) -> str:
        """Command that shows the object with its Events."""
        return f"kubectl describe {self.kind.lower()} {self.name} -n {self.namespace}"


_NEW_IDENTITY = (
    "Write a new kubeconfig into Secret {identity}: caphv identity create --harvester-kubeconfig FILE "
    "--target-namespace {target} --secret-namespace {identity_namespace} --secret-name {identity_name} "
    "| kubectl apply -f -"
)
_ROTATE = "Replace its token: caphv identity rotate {identity_namespace}/{identity_name}"
_LOOK = "See its Events: {describe}"
_POOLS = "Find leaked addresses: caphv pools audit -n {namespace}. Otherwise add a range or a pool to ipPoolRefs"
_LOGS = "Check the provider's log: kubectl logs -n caphv-system deployment/caphv-controller-manager -c manager"

_BY_REASON: dict[str, str] = {
    Reason.IDENTITY_EXPIRING: _ROTATE,
    Reason.IDENTITY_EXPIRED: f"{_ROTATE} --harvester-kubeconfig FILE",
    Reason.HARVESTER_AUTHENTICATION_FAILED: _NEW_IDENTITY,
    Reason.HARVESTER_UNREACHABLE: "Machines keep the state in which they were last seen. Check the connection to "
    "Harvester: caphv doctor {ref}",
    Reason.HARVESTER_CONNECTION_FAILED: "Check Secret {identity} and the connection to Harvester: caphv doctor {ref}",
    Reason.HARVESTER_CONNECTION_IN_PROGRESS: "Check the connection to Harvester: caphv doctor {ref}",
    Reason.ANOTHER_HARVESTER: "Write the kubeconfig of the former Harvester into Secret {identity}",
    Reason.TARGET_NAMESPACE_NOT_READY: "Create namespace {target} on Harvester, or grant the account its rights there",
    Reason.VM_IP_POOL_CREATION_FAILED: "Correct vmNetworkConfig of the cluster, or free the name on Harvester",
    Reason.CUSTOM_POOL_CREATION_FAILED: "Correct loadBalancerConfig of the cluster, or free the name on Harvester",
    Reason.VM_IP_POOL_EXHAUSTED: _POOLS,
    Reason.VM_IP_ALLOCATION_FAILED: "Compare the pools with the machines: caphv pools audit -n {namespace}",
    Reason.MACHINE_NOT_FOUND: "Its owner replaces it once a MachineHealthCheck marks it. By hand: "
    "kubectl delete machine {machine} -n {namespace}",
    Reason.VM_PROVISIONING_FAILED: _LOOK,
    Reason.VM_PROVISIONING_IN_PROGRESS: _LOOK,
    Reason.VM_DIFFERS: "Correct the VM on Harvester, or replace the machine: "
    "kubectl delete machine {machine} -n {namespace}",
    Reason.CLOUD_PROVIDER_CONFIG_FAILED: _LOOK,
    Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS: _LOOK,
    Reason.FLEET_INTEGRATION_FAILED: "Check the provider's rights on management.cattle.io and fleet.cattle.io",
    Reason.FLEET_INTEGRATION_IN_PROGRESS: "Check Rancher's import: kubectl get clusters.management.cattle.io",
    Reason.ADDON_BUNDLES_INVALID: "Correct the add-on settings, and check them: caphv bundles render -n {namespace}",
    Reason.ADDON_BUNDLES_NOT_PUSHED: "Check the packager's credentials and the branch of the repository",
    Reason.ADDON_BUNDLES_NOT_APPLIED: "Check Fleet: kubectl get bundles,bundledeployments -A",
    Reason.ADDON_BUNDLES_MISSING: "Install cloud provider and CSI driver: caphv bundles push, or caphv packager run",
    Reason.INFRASTRUCTURE_PROVISIONING_FAILED: _LOOK,
    # Cluster API
    "TopologyReconcileFailed": "Correct spec.topology as it says: kubectl edit cluster {cluster} -n {namespace}",
    "ClusterClassNotReconciled": "Check the ClusterClass: kubectl get clusterclass -A",
    "ProbeFailed": "Check the control plane's address and its load balancer: caphv tree {ref}",
    "NodeNotHealthy": "Check the Node in the workload cluster: caphv tree {ref}",
    "NodeDeleted": "Replace the machine: kubectl delete machine {machine} -n {namespace}",
    "Deleting": "See what the deletion waits for: caphv delete {ref} --explain",
}


def next_step(reason: str, subject: Subject) -> str:
    """Return the next step for a reason; where none is known, the command that shows more."""
    template = _BY_REASON.get(reason, _LOOK if subject.kind else _LOGS)
    identity_namespace, _, identity_name = subject.identity.rpartition("/")
    return template.format(
        namespace=subject.namespace,
        cluster=subject.cluster,
        ref=f"{subject.namespace}/{subject.cluster}",
        identity=subject.identity or "with the identity",
        identity_namespace=identity_namespace or subject.namespace,
        identity_name=identity_name or "NAME",
        target=subject.target or "NAMESPACE",
        machine=subject.name,
        describe=subject.describe,
    )


def resume_command(obj: Obj) -> str:
    """Return the command that ends the pause of an object; empty if the object has no mark of one."""
    kind, metadata = str(obj["kind"]).lower(), obj["metadata"]
    where = f"{kind} {metadata['name']} -n {metadata['namespace']}"
    commands = []
    if kind == "cluster" and (obj.get("spec") or {}).get("paused"):
        commands.append(f'kubectl patch {where} --type=merge -p \'{{"spec":{{"paused":false}}}}\'')
    if PAUSED_ANNOTATION in annotations_of(obj):
        commands.append(f"kubectl annotate {where} {PAUSED_ANNOTATION}-")
    return " && ".join(commands)
