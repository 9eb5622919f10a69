"""The packager as a process that watches a management cluster and updates the repository."""
