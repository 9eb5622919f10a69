"""Stand-ins for the bootstrap and control plane providers of RKE2, K3s and kubeadm: same objects, no software."""
