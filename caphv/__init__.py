"""Cluster API provider for Harvester: what all parts share, and the command line."""
