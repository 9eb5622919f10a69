"""Evacuation of hosts: a pure plan of the next step, and what reads and writes for it."""
