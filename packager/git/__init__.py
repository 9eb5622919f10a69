"""The Git repository that Fleet consumes: read it, plan what changes, commit and push, and survive what goes wrong."""
