"""The store of journals, snapshots, deliveries and keys: the port, its rules, and the engines."""
