"""`voicemem.store.port.Journal` on SQLite: streams, and the rows of their journals."""
