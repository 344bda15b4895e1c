"""Memories that an LLM writes from what was heard in a call, each of which must name the lines that it comes from."""
