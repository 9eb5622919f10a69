"""What a release consists of, written to `out/` by `python -m release`: manifests, chart, bill of materials."""
