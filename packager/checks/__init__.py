"""Checks of rendered bundles with what clusters would really get: charts rendered by `helm`, and all their objects."""
