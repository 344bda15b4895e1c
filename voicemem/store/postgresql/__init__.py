"""The store for several nodes: one PostgreSQL database. The design is in docs/postgresql.md."""
