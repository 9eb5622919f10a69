"""The capacity of a Harvester, the needs of clusters, and the free rest."""
