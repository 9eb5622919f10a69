"""Rules about a cluster's load balancer, endpoint, target namespace and identity."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import CLUSTER, CLUSTER_TEMPLATE, CLUSTERS, Field, Subject
from webhooks.rules.values import address, is_label, is_subdomain

RULES = Rules()

API_PORT = 6443
API_LISTENER = "api-server"
CROSS_NAMESPACE = "cross-namespace-reference"
# The Go provider's ClusterClass writes this host for an endpoint that is not known yet.
UNSET_HOST = "0.0.0.0"
_SYSTEM = frozenset(
    {"harvester-system", "longhorn-system", "cattle-system", "kube-public", "kube-system"}
)


@RULES.rule(
    "identity",
    CLUSTERS,
    "Credentials for Harvester must be named once: a Secret in `identitySecret`, or a "
    "HarvesterClusterIdentity in `identityRef`.",
    "spec",
    example="{identitySecret: {name: harvester-identity, namespace: clusters}, identityRef: {name: "
    "shared}}",
    refused_by_go=True,
)
def _identity(subject: Subject) -> Iterator[Finding]:
    secret = subject.spec.at("identitySecret")
    reference = subject.spec.at("identityRef")
    # The schema reports an object without a spec.
    if subject.spec.mapping and secret.value is None and reference.value is None:
        yield secret.required(
            "name the Secret with the kubeconfig for Harvester, or a HarvesterClusterIdentity in "
            "identityRef"
        )
    elif secret.value is not None and reference.value is not None:
        yield reference.forbidden("excludes identitySecret: remove one of them")


@RULES.rule(
    "target-namespace-system",
    CLUSTERS,
    "`targetNamespace` must not be a namespace of Harvester itself.",
    "targetNamespace",
    example="targetNamespace: harvester-system",
    advice=True,
)
def _target_namespace_system(subject: Subject) -> Iterator[Finding]:
    namespace = subject.spec.at("targetNamespace")
    if namespace.text in _SYSTEM:
        yield namespace.invalid("belongs to Harvester: give the cluster a namespace of its own")


@RULES.rule(
    "load-balancer-pool",
    CLUSTERS,
    "With `ipamType: pool`, the load balancer must have a pool: its own, or that of "
    "`vmNetworkConfig`.",
    "loadBalancerConfig.ipamType",
    "loadBalancerConfig.ipPoolRef",
    "vmNetworkConfig",
    example="loadBalancerConfig: {ipamType: pool}",
)
def _load_balancer_pool(subject: Subject) -> Iterator[Finding]:
    balancer = subject.spec.at("loadBalancerConfig")
    machines = subject.spec.at("vmNetworkConfig")
    pool_fields = [
        balancer.at("ipPoolRef"),
        balancer.at("ipPool"),
        machines.at("ipPoolRef"),
        machines.at("ipPoolRefs"),
        machines.at("ipPool"),
    ]
    if balancer.at("ipamType").value == "pool" and not any(field.present for field in pool_fields):
        yield balancer.at("ipPoolRef").required(
            "ipamType is pool: name a pool, describe one in ipPool, or use dhcp"
        )


@RULES.rule(
    "load-balancer-dhcp",
    CLUSTERS,
    "With `ipamType: dhcp`, the load balancer must not have a pool.",
    "loadBalancerConfig.ipamType",
    "loadBalancerConfig.ipPoolRef",
    "loadBalancerConfig.ipPool",
    example="loadBalancerConfig: {ipamType: dhcp, ipPoolRef: lb-pool}",
)
def _load_balancer_dhcp(subject: Subject) -> Iterator[Finding]:
    balancer = subject.spec.at("loadBalancerConfig")
    if balancer.at("ipamType").value != "dhcp":
        return
    for pool in (balancer.at("ipPoolRef"), balancer.at("ipPool")):
        if pool.present:
            yield pool.forbidden(
                "is not used because ipamType is dhcp: set ipamType to pool, or remove the pool"
            )


@RULES.rule(
    "load-balancer-none",
    CLUSTERS,
    "With `ipamType: none`, there is no load balancer on Harvester: pool and listeners must not be "
    "set.",
    "loadBalancerConfig.ipamType",
    "loadBalancerConfig.ipPoolRef",
    "loadBalancerConfig.ipPool",
    "loadBalancerConfig.listeners",
    example="loadBalancerConfig: {ipamType: none, ipPoolRef: lb-pool}",
    refused_by_go=True,
)
def _load_balancer_none(subject: Subject) -> Iterator[Finding]:
    balancer = subject.spec.at("loadBalancerConfig")
    if balancer.at("ipamType").value != "none":
        return
    for name in ("ipPoolRef", "ipPool", "listeners"):
        if balancer.at(name).present:
            yield balancer.at(name).forbidden(
                "is not used because ipamType is none: remove it, or set ipamType to dhcp or pool"
            )


@RULES.rule(
    "external-endpoint",
    (CLUSTER,),
    "With `ipamType: none`, the host of the endpoint must be given: the address or DNS name of "
    "your load balancer.",
    "loadBalancerConfig.ipamType",
    "controlPlaneEndpoint.host",
    example="loadBalancerConfig: {ipamType: none}",
    refused_by_go=True,
)
def _external_endpoint(subject: Subject) -> Iterator[Finding]:
    endpoint = subject.spec.at("controlPlaneEndpoint")
    is_set = endpoint.at("host").text not in ("", UNSET_HOST)
    if has_external_endpoint(subject.spec) and not is_set:
        yield endpoint.required(
            "ipamType is none: set host to the address or DNS name of your load balancer, or set "
            "ipamType to dhcp or pool"
        )


def has_external_endpoint(spec: Field) -> bool:
    """Return whether the spec of a cluster says that Harvester does not provide its endpoint."""
    return spec.at("loadBalancerConfig", "ipamType").value == "none"


@RULES.rule(
    "listener-name",
    CLUSTERS,
    "Names of listeners must have 1 to 63 lower case letters, digits and `-`, with a letter or "
    "digit at both ends.",
    "loadBalancerConfig.listeners[].name",
    example=(
        "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: RKE2 supervisor, port: 9345, "
        "backendPort: 9345, protocol: TCP}]}"
    ),
)
def _listener_name(subject: Subject) -> Iterator[Finding]:
    for listener in subject.spec.at("loadBalancerConfig", "listeners").each():
        name = listener.at("name")
        if isinstance(name.value, str) and not is_label(name.text):
            yield name.invalid(
                "must be 1 to 63 lower case letters, digits and '-', with a letter or digit at "
                "both ends, for example rke2-supervisor"
            )


@RULES.rule(
    "listener-name-unique",
    CLUSTERS,
    "Names of listeners must be unique. `api-server` is reserved for the API server.",
    "loadBalancerConfig.listeners[].name",
    example=(
        "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: https, port: 443, backendPort: "
        "443, protocol: TCP}, {name: https, port: 8443, backendPort: 8443, protocol: TCP}]}"
    ),
)
def _listener_name_unique(subject: Subject) -> Iterator[Finding]:
    reserved = (
        f"is the name of the listener on {API_PORT} that every load balancer has: use another"
    )
    details = {API_LISTENER: reserved}

    for listener in subject.spec.at("loadBalancerConfig", "listeners").each():
        name = listener.at("name")
        if name.text and name.text in details:
            yield name.problem(Fault.DUPLICATE, details[name.text])
        details.setdefault(name.text, "another listener has this name: use one of its own")


@RULES.rule(
    "listener-port-unique",
    CLUSTERS,
    "Listeners must differ in port or protocol. TCP 6443 is reserved for the API server.",
    "loadBalancerConfig.listeners[].port",
    "loadBalancerConfig.listeners[].protocol",
    example=(
        "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: api, port: 6443, backendPort: "
        "8443, protocol: TCP}]}"
    ),
)
def _listener_port_unique(subject: Subject) -> Iterator[Finding]:
    reserved = "is the API server's, which every load balancer has: remove this listener"
    taken = "another listener has this port and protocol: use another port"
    return _report_duplicates(subject, "port", reserved=reserved, taken=taken)


@RULES.rule(
    "listener-backend-port-unique",
    CLUSTERS,
    "Listeners must differ in backend port or protocol, or Harvester refuses the load balancer. "
    "TCP 6443 is reserved for the API server.",
    "loadBalancerConfig.listeners[].backendPort",
    "loadBalancerConfig.listeners[].protocol",
    example=(
        "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: https, port: 443, backendPort: "
        "6443, protocol: TCP}]}"
    ),
)
def _listener_backend_port_unique(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each backend port that Harvester refuses.

    See `pkg/webhook/loadbalancer/validator.go` of load-balancer-harvester, whose old releases
    ignore the protocol.
    """
    reserved = "is the API server's, and Harvester forwards it from one port only: use another"
    taken = "another listener has this backend port and protocol: use another"
    return _report_duplicates(subject, "backendPort", reserved=reserved, taken=taken)


def _report_duplicates(
    subject: Subject, field_name: str, *, reserved: str, taken: str
) -> Iterator[Finding]:
    """Yield listeners with the port and protocol of another one, or of the API server.

    :param field_name: name of the port field in a listener
    :param reserved: message about the port of the API server
    :param taken: message about the port of another listener
    """
    details = {(API_PORT, "TCP"): reserved}
    for listener in subject.spec.at("loadBalancerConfig", "listeners").each():
        port = listener.at(field_name)
        protocol = listener.at("protocol").text
        if port.number is None:
            continue

        if (port.number, protocol) in details:
            yield port.problem(Fault.DUPLICATE, details[port.number, protocol])
        details.setdefault((port.number, protocol), taken)


@RULES.rule(
    "endpoint-host",
    CLUSTERS,
    "The host of the endpoint must be an IPv4 address or a DNS name, without scheme and port.",
    "controlPlaneEndpoint.host",
    example='controlPlaneEndpoint: {host: "https://172.17.1.50", port: 6443}',
)
def _endpoint_host(subject: Subject) -> Iterator[Finding]:
    host = subject.spec.at("controlPlaneEndpoint", "host")
    if not host.text or address(host) is not None:
        return

    # A name whose last label has only digits is meant as an address.
    is_number = host.text.rpartition(".")[2].isdecimal()
    if not is_subdomain(host.text.lower()) or is_number:
        yield host.invalid(
            "must be an IPv4 address or a DNS name, or left out unless ipamType is none: the "
            "controller sets it"
        )


@RULES.rule(
    "endpoint-port",
    CLUSTERS,
    "The port of the endpoint must be 6443, where the load balancer listens, unless `ipamType` is "
    "`none`.",
    "controlPlaneEndpoint.port",
    example="controlPlaneEndpoint: {host: 172.17.1.50, port: 443}",
    advice=True,
)
def _endpoint_port(subject: Subject) -> Iterator[Finding]:
    port = subject.spec.at("controlPlaneEndpoint", "port")
    if port.number not in (None, API_PORT) and not has_external_endpoint(subject.spec):
        yield port.invalid(
            f"is overwritten by {API_PORT}, where the load balancer listens: remove it"
        )


@RULES.rule(
    "endpoint-of-template",
    (CLUSTER_TEMPLATE,),
    "A template must not set an endpoint: each cluster gets its own.",
    "controlPlaneEndpoint.host",
    example="controlPlaneEndpoint: {host: 172.17.1.50, port: 6443}",
    advice=True,
)
def _endpoint_of_template(subject: Subject) -> Iterator[Finding]:
    host = subject.spec.at("controlPlaneEndpoint", "host")
    if host.text in ("", UNSET_HOST):
        return
    if has_external_endpoint(subject.spec):
        yield host.invalid(
            "is the same in each cluster of the template: remove it, and set it by a patch of the "
            "ClusterClass"
        )
    else:
        yield host.invalid(
            "is overwritten in each cluster by the address of its load balancer: remove it"
        )


@RULES.rule(
    CROSS_NAMESPACE,
    (CLUSTER,),
    "Identity Secret and ConfigMap must be in the namespace of the cluster, unless their "
    "annotation `caphv.io/allowed-namespaces` names it (comma-separated, or `*`). With "
    "`--no-cross-namespace-refs`, always, and the rule is an error, except for what Cluster API "
    "clones from a template, a move or a restore creates: those are stored, and the controller "
    "does not use the reference.",
    "identitySecret.namespace",
    "updateCloudProviderConfig.manifestsConfigMapNamespace",
    example=(
        "{metadata: {namespace: clusters}, identitySecret: {name: harvester-identity, namespace: "
        "team-b}}"
    ),
    advice=True,
)
def _cross_namespace(subject: Subject) -> Iterator[Finding]:
    cluster_namespace = subject.obj.at("metadata", "namespace").text
    secret = subject.spec.at("identitySecret", "namespace")
    config_map = subject.spec.at("updateCloudProviderConfig", "manifestsConfigMapNamespace")

    # A file may lack the namespace of the cluster, which the user who applies it then chooses.
    for kind, namespace in (("Secret", secret), ("ConfigMap", config_map)):
        if cluster_namespace and namespace.text and namespace.text != cluster_namespace:
            yield namespace.invalid(
                f"is another namespace than the cluster's: use {cluster_namespace}, or let the "
                f"owner of the {kind} set annotation {ALLOWED_NAMESPACES_ANNOTATION}: "
                f"{cluster_namespace}"
            )


@RULES.rule(
    "cloud-config-namespace",
    (CLUSTER,),
    "`manifestsConfigMapNamespace` must be the namespace of the cluster: a ClusterResourceSet "
    "applies ConfigMaps of its own namespace only.",
    "updateCloudProviderConfig.manifestsConfigMapNamespace",
    example=(
        "{metadata: {namespace: clusters}, updateCloudProviderConfig: "
        "{manifestsConfigMapNamespace: default}}"
    ),
    advice=True,
)
def _cloud_config_namespace(subject: Subject) -> Iterator[Finding]:
    cluster_namespace = subject.obj.at("metadata", "namespace").text
    namespace = subject.spec.at("updateCloudProviderConfig", "manifestsConfigMapNamespace")
    if cluster_namespace and namespace.text and namespace.text != cluster_namespace:
        yield namespace.invalid(
            f"no ClusterResourceSet for this cluster reads it: use namespace {cluster_namespace}"
        )
