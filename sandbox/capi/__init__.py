"""Cluster API in the sandbox.

The core and kubeadm's providers are the real programs. The bootstrap and control plane providers of
RKE2, K3s and Talos have stand-ins, with the same objects and no software.
"""
