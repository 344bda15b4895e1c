"""What must not be kept, taken out of events before they are journaled (docs/redaction.md)."""
