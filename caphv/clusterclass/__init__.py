"""ClusterClasses: the objects that one makes of a topology, as Cluster API makes them."""
