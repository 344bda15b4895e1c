"""Redaction: takes out of events what must not be kept, before they are journaled (docs/redaction.md)."""
