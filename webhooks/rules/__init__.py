"""The admission rules: what is wrong with an object beyond its schema, by theme."""
