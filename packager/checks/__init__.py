"""Checks of rendered bundles with all objects that clusters get; `helm` renders charts."""
