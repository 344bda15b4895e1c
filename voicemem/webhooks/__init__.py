"""Webhooks: what they say, how they are signed, attempted, and managed."""
