"""Show the output of `caphv status` in a browser, kept up to date by server-sent events."""
