"""Rotate the token of an identity: issue, test, write, verify, and only then revoke the former one.

`identity` reads the identity and what depends on it, `plan` decides what a rotation does,
`preflight` finds what would stop it, and `run` carries it out.
"""
