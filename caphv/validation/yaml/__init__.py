"""Read YAML and JSON as kubectl does, with the line of every value."""
