"""Kinds and names of Talos's providers."""

from __future__ import annotations

from caphv.api.object import Key, Resource

CONFIGS = Resource("bootstrap.cluster.x-k8s.io", "v1alpha3", "talosconfigs", "TalosConfig")
CONTROL_PLANES = Resource(
    "controlplane.cluster.x-k8s.io", "v1alpha3", "taloscontrolplanes", "TalosControlPlane"
)
FINALIZER = f"talos.{CONTROL_PLANES.group}"


def bundle_name(cluster: Key) -> str:
    """Return the name of the Secret with all CAs and tokens of a cluster."""
    return f"{cluster.name}-talos"


def client_config_name(cluster: Key) -> str:
    """Return the name of the Secret with the credentials for machine APIs."""
    return f"{cluster.name}-talosconfig"
