"""Retell: the websocket of a custom LLM, and the webhooks of calls."""
