"""ClusterClasses: create the objects of a topology as Cluster API creates them."""
