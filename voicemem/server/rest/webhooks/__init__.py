"""Webhooks of the project: its endpoints, and what is sent to them."""
