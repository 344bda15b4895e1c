"""`voicemem.store.delivery_port` on PostgreSQL: endpoints, the rows that a start or a close adds, their attempts."""
