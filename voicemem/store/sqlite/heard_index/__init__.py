"""The index of heard messages on SQLite: full-text search in a file of its own, beside the store."""
