"""Parking of a cluster: a pure plan of the next step, and what reads, drains and writes for it."""
