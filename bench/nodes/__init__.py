"""Several nodes on one PostgreSQL server, measured beside one process on SQLite."""
