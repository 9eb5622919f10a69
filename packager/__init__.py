"""The packager, which turns settings of clusters into Fleet bundles, and commits both."""
