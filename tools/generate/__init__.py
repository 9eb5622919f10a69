"""Writes files that are generated from schemas and code."""
