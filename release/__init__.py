"""Release artifacts, written to `out/` by `python -m release`: manifests, chart, bill of materials."""
