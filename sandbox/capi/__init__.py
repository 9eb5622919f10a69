"""Stand-ins for bootstrap and control plane providers of RKE2, K3s and kubeadm: the same objects and no software."""
