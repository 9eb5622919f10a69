"""Scripts of the tests: stages, skipped tests, mutants, messages of commits."""
