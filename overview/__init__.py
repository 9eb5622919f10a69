"""Everything that belongs to a cluster, read once and put together: what all day-2 commands share.

Why a package next to the reconciler: the reconciler acts on caches that it keeps for months, with the rights of the
provider. A person asks once, with their own kubeconfig and their own rights, and wants to know what is wrong even where
they may not see everything. So this package says what it may not see, and never imports the reconciler. It only reads,
except for the changes that a command makes.

`reader` and `harvester` do the I/O and return plain objects. `assembly` turns them into `model`, and `diagnosis` says
what is wrong, why, and what to do next: pure functions of plain objects.
"""
