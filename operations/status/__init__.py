"""Derive the state of clusters and its causes, the model of all day-2 commands."""
