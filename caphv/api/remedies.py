"""The commands that conditions, Events, checks and other output tell a reader to run.

Each command is defined here once, so that tests can run all of them as they are printed. They run a
`Remedy` against the fault for which it is printed, and check the output of a `Look`. A unit test
finds printed commands that are not defined here.

The reader has to fill in words in capitals: `FILE` is a kubeconfig (of Harvester, or of the other
management cluster of a move), `ZONE` the name of a zone, `POOL` the name of an IPPool.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command with fields in braces, which a call fills in."""

    template: str

    def __call__(self, **fields: object) -> str:
        """Return the command as it is printed."""
        return self.template.format(**fields)

    def __str__(self) -> str:
        return self.template


class Remedy(Command):
    """A command that ends the fault for which it is printed."""

    __slots__ = ()


class Look(Command):
    """A command that changes nothing and shows what to do."""

    __slots__ = ()


# Objects of the management cluster
DELETE_MACHINE = Remedy("kubectl delete machine {machine} -n {namespace}")
DELETE_OBJECT = Remedy("kubectl delete {kind} {name} -n {namespace}")
DELETE_WEBHOOKS = Remedy("kubectl delete validatingwebhookconfiguration {name}")
DELETE_CLUSTER = Remedy("kubectl delete cluster {cluster} -n {namespace}")
EDIT_CLUSTER = Remedy("kubectl edit cluster {cluster} -n {namespace}")
EDIT_OBJECT = Remedy("kubectl edit {kind} {name} -n {namespace}")
RESUME_CLUSTER = Remedy(
    'kubectl patch {kind} {name} -n {namespace} --type=merge -p \'{{"spec":{{"paused":false}}}}\''
)
RESUME_PARKED = Remedy("caphv resume {ref}")
RESUME_ALL = Remedy("caphv resume --all-on {harvester}{scope} --wait")
SET_ANNOTATION = Remedy(
    "kubectl annotate {kind} {name} -n {namespace} {annotation}={value} --overwrite"
)
REMOVE_ANNOTATION = Remedy("kubectl annotate {kind} {name} -n {namespace} {annotation}-")
BACK_UP = Remedy("caphv backup {cluster} DIR")
MOVE_CLUSTERS = Remedy("caphv move {clusters} --to-kubeconfig FILE")
SUSPEND_ADDONS = Remedy(
    "kubectl annotate cluster {cluster} -n {namespace} addons.caphv.io/suspend=true"
)
FORCE_DELETION = Remedy("caphv delete {ref} --force")
STOP_PROVIDER = Remedy(
    "kubectl scale deployment caphv-controller-manager -n {namespace} --replicas 0"
)
START_SANDBOX = Remedy("caphv sandbox up --dir {folder}")
APPLY_GIT_REPO = Remedy("caphv packager gitrepo --repo {repo}{options} | kubectl apply -f -")

# Identities
NEW_IDENTITY = Remedy(
    "caphv identity create --harvester-kubeconfig FILE --target-namespace {target} "
    "--secret-namespace {namespace} --secret-name {name} | kubectl apply -f -"
)
# Only an account with rights in all namespaces can replace its own token, and no account can
# replace an expired one.
ROTATE_IDENTITY = Remedy("caphv identity rotate {namespace}/{name} --harvester-kubeconfig FILE")
GRANT_RIGHTS = Remedy(
    "caphv identity create --harvester-kubeconfig FILE --target-namespace {target}{more}"
)
# Harvester
RELEASE_ADDRESSES = Remedy("caphv pools release {pool} -n {namespace}")
UNCORDON_HOST = Remedy("kubectl uncordon {host}")
CANCEL_EVACUATION = Remedy("caphv evacuate {host} --cancel --harvester-kubeconfig FILE")
LABEL_ZONE = Remedy("kubectl label node {host} {label}=ZONE")

# etcd
REMOVE_MEMBERS = Remedy("caphv etcd remove {ref}")
CONTINUE_RESTORE = Remedy("caphv etcd restore {ref}")
FINISH_RESTORE = Remedy("caphv etcd restore {ref} --finish")

DESCRIBE = Look("kubectl describe {kind} {name} -n {namespace}")
DESCRIBE_MACHINE = Look("kubectl describe machine {machine} -n {namespace}")
DESCRIBE_CERTIFICATES = Look("kubectl describe certificate -n {namespace}")
DESCRIBE_CAPIPROVIDERS = Look("kubectl describe capiproviders -n {namespace}")
GET_PODS = Look("kubectl get pods -n {namespace}")
GET_PROVIDERS = Look("kubectl get pods -A -l cluster.x-k8s.io/provider")
GET_HARVESTER_CLUSTERS = Look("kubectl get hvc -n {namespace}")
GET_CLASSES = Look("kubectl get clusterclass -A")
GET_BUNDLES = Look("kubectl get bundles,bundledeployments -A")
GET_RANCHER_CLUSTERS = Look("kubectl get clusters.management.cattle.io")
GET_ON_HARVESTER = Look("kubectl get {resource} -A")
LOGS = Look("kubectl logs -n {namespace} deployment/caphv-controller-manager -c manager")
LOGS_OF_BOOTSTRAP = Look(
    "kubectl logs -n {namespace} -l cluster.x-k8s.io/provider={provider} --tail=50"
)
DOCTOR = Look("caphv doctor {ref}")
TREE = Look("caphv tree {ref}")
STATUS_OF_ALL = Look("caphv status -A")
FOLLOW = Look("caphv status {ref} --watch")
FOLLOW_ALL = Look("caphv status -A --watch")
PLAN_DEFINITION = Look("caphv generate --definition {path} | caphv plan -f -")
LIST_LEFTOVERS = Look("caphv leftovers")
AUDIT_POOLS = Look("caphv pools audit -n {namespace}")
EXPLAIN_DELETION = Look("caphv delete {ref} --explain")
RENDER_BUNDLES = Look("caphv bundles render -n {namespace}")
TRACE_BUNDLES = Look("caphv bundles trace {ref}")
WAIT_FOR_UPGRADE = Look("caphv upgrade {ref} --version {version} --wait")


def all_commands() -> dict[str, Command]:
    """Return all commands by the names of their constants."""
    return {name: value for name, value in globals().items() if isinstance(value, Command)}
