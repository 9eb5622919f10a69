"""Read management clusters, Harvesters and workload clusters: requests in, plain objects out."""
