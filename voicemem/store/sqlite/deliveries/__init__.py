"""`voicemem.store.delivery_port` on SQLite: endpoints, the rows that a start or a close adds, their attempts."""
