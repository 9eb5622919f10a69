"""Validation of objects and manifests by JSON Schemas and rules, as Kubernetes words them."""
