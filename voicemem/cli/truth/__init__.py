"""Calls of which it is known what was heard, and the events that an engine would have sent about them."""
