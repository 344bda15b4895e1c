"""`voicemem.store.ports.deliveries` on SQLite: endpoints, the rows that a start or a close adds, their attempts."""
