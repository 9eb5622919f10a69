"""Release artifacts, written to `out/` by `python -m tools.release`: manifests, chart and more."""
