"""What applying manifests would do to machines and to Harvester: what `caphv plan` is made of.

`pools` turns a cluster before and after into groups of equal machines, with what its ClusterClass makes of it, and
`effects` compares the two: pure functions of plain objects. `reading` asks the API server what the objects would be, by
dry runs.
"""
