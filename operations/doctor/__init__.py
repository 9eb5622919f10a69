"""Check everything that clusters depend on, each check with a remedy.

A condition says what stopped a reconcile. The doctor says what will stop one next: a token that
ends on Friday, an IPPool with two addresses left, a right that the next cluster will need.
`reading` does the I/O. All checks are pure functions of the objects that it read, so that tests
need no server.
"""
