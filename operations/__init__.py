"""What all day-2 commands share: read what belongs to a cluster, and diagnose it.

Why a package next to the reconciler: the reconciler acts on caches that it keeps for months, with
the rights of the provider. A person asks once, with their own kubeconfig and their own rights, and
wants to know what is wrong even where they may not see everything. So this package reports what it
could not read, and never imports the reconciler.

A package imports those below it only (a contract in `pyproject.toml`):

    change            scales, upgrades, plans and applies: all that writes to clusters
    backup | doctor   copies and moves clusters; checks what they depend on
    capacity          what a Harvester has, what clusters need of it, what is free
    status            the model of clusters, what is wrong with them, and what to do next
    read              requests in, plain objects out

All but `read`, and the modules named `reading` or `writing`, are pure functions of plain objects.
"""
