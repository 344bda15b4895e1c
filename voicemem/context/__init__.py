"""The context: what the next LLM request gets of a memory."""
