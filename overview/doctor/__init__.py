"""Checks of everything that clusters depend on, each with a remedy.

A condition says what stopped a reconcile. A doctor says what will stop one next: a token that ends on Friday, an IPPool
with two addresses left, a right that the next cluster will need. `reading` does the I/O; all checks are pure functions
of what it found, so that each has a test without a server.
"""
