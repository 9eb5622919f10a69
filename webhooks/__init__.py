"""The admission webhook: what an object may contain, and the server that answers the API server."""
