"""The admission webhook: rules for objects, and the server that answers the API server."""
