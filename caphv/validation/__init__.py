"""Validation of objects and manifests: JSON Schemas and rules, with errors worded as Kubernetes words them."""
