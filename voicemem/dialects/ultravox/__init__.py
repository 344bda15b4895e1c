"""Ultravox: data messages of a call, and the webhook at its end."""
