"""The admission rules about objects beyond their schema, by theme."""
