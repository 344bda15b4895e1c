"""Webhooks of Vapi, as a dialect."""
