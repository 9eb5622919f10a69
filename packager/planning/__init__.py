"""Plans the next commit: clusters, definitions and upgrades in, changes of files out."""
