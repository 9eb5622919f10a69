"""The releases of the Cluster API core and of kubeadm's providers, and their patches for tests."""

import dataclasses

from sandbox.processes.gobuild import Patch, Recipe

CLUSTER_API_CORE = Recipe(
    name="cluster-api-core",
    version="1.13.6",
    module="sigs.k8s.io/cluster-api",
    package="sigs.k8s.io/cluster-api",
    # Without the patch, the webhook server listens on all networks. It has no flag for the address.
    patches=(
        Patch(
            "main.go",
            "\t\t\t\tPort:     webhookPort,\n",
            '\t\t\t\tHost: "127.0.0.1", Port: webhookPort,\n',
        ),
    ),
)
_AFTER_CLUSTER_CACHE = (
    '\t\tsetupLog.Error(err, "Unable to create ClusterCache")\n\t\tos.Exit(1)\n\t}\n'
)
_RETRY_SOON = """\
	clusterCache.(interface {
		SetConnectionCreationRetryInterval(time.Duration)
	}).SetConnectionCreationRetryInterval(time.Second)
"""
_RATE_LIMIT = "rateLimitInterval := time.Second\n\tif blder.rateLimitInterval > time.Second {\n"
_TWICE_A_SECOND = """\
rateLimitInterval := time.Second / 2
	if controllerName == "topology/cluster" {
		rateLimitInterval = 2 * time.Second
	}
	if false {
"""

# A core for tests. The core of users waits for objects that it does not watch. It tries again to
# reach a workload cluster after 30 s, to create workers of a control plane that was not stable
# after 15 s, and to delete a Cluster that had objects after 5 s. It reconciles an object at most
# once a second, and a MachineHealthCheck once in 15 s. With these limits, the tests of clusters
# would take twice as long. With a limit below half a second, the core writes more. Topologies have
# a limit of two seconds, because each reconcile applies the Cluster and four more objects in dry
# runs, and tests hardly depend on them.
IMPATIENT_CORE = dataclasses.replace(
    CLUSTER_API_CORE,
    name="cluster-api-core-impatient",
    patches=(
        *CLUSTER_API_CORE.patches,
        Patch("main.go", _AFTER_CLUSTER_CACHE, _AFTER_CLUSTER_CACHE + _RETRY_SOON),
        Patch(
            "internal/controllers/machineset/machineset_preflight.go",
            "preflightFailedRequeueAfter = 15 * time.Second",
            "preflightFailedRequeueAfter = time.Second",
        ),
        Patch(
            "internal/controllers/cluster/cluster_controller.go",
            "deleteRequeueAfter = 5 * time.Second",
            "deleteRequeueAfter = time.Second",
        ),
        Patch("util/controller/builder.go", _RATE_LIMIT, _TWICE_A_SECOND),
    ),
)
# Further releases that are tested. Each is built only on request. Release 1.14 has the core's
# program and manifests in a separate folder.
OTHER_CORES = {
    recipe.name: recipe
    for recipe in (
        dataclasses.replace(CLUSTER_API_CORE, name="cluster-api-core-1.10", version="1.10.10"),
        dataclasses.replace(CLUSTER_API_CORE, name="cluster-api-core-1.12", version="1.12.10"),
        dataclasses.replace(
            CLUSTER_API_CORE,
            name="cluster-api-core-1.14",
            version="1.14.2",
            package="sigs.k8s.io/cluster-api/core",
            staging="v1.14.2",
        ),
    )
}

# Main packages of the core's module, by the names of their programs in a sandbox. Like the core,
# each has a folder `config`.
_KUBEADM_FOLDERS = {
    "kubeadm-bootstrap": "bootstrap/kubeadm",
    "kubeadm-control-plane": "controlplane/kubeadm",
}
_BUILDER = dataclasses.replace(IMPATIENT_CORE.patches[-1], file="../../util/controller/builder.go")
_WAITS_OF_CONTROL_PLANE = {
    "deleteRequeueAfter = 30": "deleteRequeueAfter = 1",
    "preflightFailedRequeueAfter = 15": "preflightFailedRequeueAfter = 1",
    "dependentCertRequeueAfter = 30": "dependentCertRequeueAfter = 1",
}
_NOT_INITIALIZED = """\
	if !scope.ConfigOwner.IsControlPlaneMachine() {
		return ctrl.Result{RequeueAfter: %s * time.Second}, nil
"""
# Like the core for tests, these providers check objects that they do not watch after a second.
_IMPATIENT = {
    "kubeadm-bootstrap": (
        Patch(
            "internal/controllers/kubeadmconfig_controller.go",
            _NOT_INITIALIZED % 30,
            _NOT_INITIALIZED % 1,
        ),
    ),
    "kubeadm-control-plane": tuple(
        Patch("internal/controllers/consts.go", old, new)
        for old, new in _WAITS_OF_CONTROL_PLANE.items()
    ),
}


def kubeadm_of(core: Recipe) -> list[Recipe]:
    """Return kubeadm's providers of a core's release, with the core's limits for retries."""
    recipes = []
    for name, folder in _KUBEADM_FOLDERS.items():
        patches = CLUSTER_API_CORE.patches
        if core is IMPATIENT_CORE:
            retry = Patch("main.go", _AFTER_CLUSTER_CACHE, _AFTER_CLUSTER_CACHE + _RETRY_SOON)
            patches = (*patches, retry, _BUILDER, *_IMPATIENT[name])

        recipe = dataclasses.replace(
            core,
            name=core.name.replace(CLUSTER_API_CORE.name, name),
            package=f"{core.module}/{folder}",
            patches=patches,
        )
        recipes.append(recipe)
    return recipes


# Providers of contract v1beta1 are left out, because their objects are too different from the
# objects of our class.
KUBEADM = {
    recipe.name: recipe
    for core in (CLUSTER_API_CORE, IMPATIENT_CORE, *OTHER_CORES.values())
    if core.version >= "1.12"
    for recipe in kubeadm_of(core)
}

# Rancher Turtles runs the controllers of this operator for its CAPIProviders. Without the patch,
# the webhook server listens on all networks.
OPERATOR = Recipe(
    name="cluster-api-operator",
    version="0.29.0",
    module="sigs.k8s.io/cluster-api-operator",
    package="sigs.k8s.io/cluster-api-operator/cmd",
    patches=(
        Patch(
            "main.go",
            "\t\t\t\tPort:    webhookPort,\n",
            '\t\t\t\tHost: "127.0.0.1", Port: webhookPort,\n',
        ),
    ),
)
