"""Predict the effect of manifests on machines and on Harvester, for `caphv plan`.

`reading` asks the API server by dry runs for the objects after a change. `planning` compares a
cluster before and after, and `harvester` asks whether its Harvester has what the cluster needs.
"""
