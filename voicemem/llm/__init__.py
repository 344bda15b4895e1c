"""Requests to LLMs: which endpoint, how long, and how the answer is read."""
