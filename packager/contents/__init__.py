"""Compares the content of a repository with the wanted content."""
