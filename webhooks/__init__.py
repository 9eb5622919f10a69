"""The admission webhook: what an object may say, and the server that tells the API server so."""
