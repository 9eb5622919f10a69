"""Stand-ins for the bootstrap and control plane providers of Talos Linux.

Modelled after v0.6.11 of siderolabs/cluster-api-bootstrap-provider-talos and v0.5.12 of
siderolabs/cluster-api-control-plane-provider-talos.
"""
