"""The embedded store: one SQLite file, one writer that group-commits, synchronous=FULL."""
