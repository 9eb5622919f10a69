"""Stand-ins for RKE2's bootstrap and control plane providers: the same objects, no RKE2 in the guests."""
