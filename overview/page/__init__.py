"""The live page: what `caphv status` shows, in a browser, kept up to date by server-sent events."""
