"""The packager: settings of clusters become Fleet bundles, and both become commits."""
