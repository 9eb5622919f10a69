"""YAML and JSON as people write them: read as kubectl reads them, with the line of everything and traps by name."""
