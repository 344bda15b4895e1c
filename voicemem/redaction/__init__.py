"""Redaction: removes sensitive data from events before they are journaled (docs/redaction.md)."""
