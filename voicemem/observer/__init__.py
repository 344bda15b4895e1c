"""Fetches the events of calls at other stacks itself, where these let others listen (docs/observer.md)."""
