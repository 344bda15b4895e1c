"""The one way into the journals: events of producers are gathered, checked, redacted and committed."""
