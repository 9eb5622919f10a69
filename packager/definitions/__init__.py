"""Cluster definitions, from which all objects of a cluster are built, without any I/O."""
