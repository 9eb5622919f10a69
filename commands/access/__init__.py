"""Open what options name: clusters, Harvesters and repositories; and change it."""
