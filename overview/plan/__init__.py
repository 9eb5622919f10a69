"""What applying manifests would do to machines and to Harvester: what `caphv plan` is made of.

`templates` evaluates the patches of a ClusterClass as Cluster API's core does, `pools` turns a cluster before and after
into groups of equal machines, and `effects` compares the two: pure functions of plain objects. `reading` asks the API
server what the objects would be, by dry runs.
"""
