"""Programs for developers and releases, which are not installed."""
