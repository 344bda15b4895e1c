"""The file: how it is opened, written, read, and cleared of what was deleted."""
