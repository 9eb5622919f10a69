"""Benchmarks of the provider on a simulated Harvester: `make bench` or `python -m tools.bench`."""
