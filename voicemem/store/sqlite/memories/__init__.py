"""Memories on SQLite: rows, and their words in a full-text table of the same file."""
