"""The packager as a process: watches a management cluster and keeps the repository true to it."""
