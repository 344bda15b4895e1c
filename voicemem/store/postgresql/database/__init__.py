"""The database: connections, transactions that write, the schema, and which server answers."""
