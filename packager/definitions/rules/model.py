"""What all rules about definitions share."""

KINDS = ("ClusterDefinition",)
