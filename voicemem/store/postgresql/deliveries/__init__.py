"""`voicemem.store.ports.deliveries` on PostgreSQL: endpoints, the rows that a start or a close adds, their attempts."""
