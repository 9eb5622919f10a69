"""The Git repository that Fleet consumes: read it, plan changes, commit and push them."""
