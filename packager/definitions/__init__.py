"""Cluster definitions: a small file of a user in, all objects of a cluster out, without any I/O."""
