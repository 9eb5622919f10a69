"""Clusters as files, and files as clusters again, for `caphv backup` and `caphv restore`.

`graph` decides which objects belong to a cluster, `order` in which order and form they are created
again: pure functions of plain objects. `reading` and `writing` talk to a management cluster,
`files` and `sealing` to the disk.
"""
