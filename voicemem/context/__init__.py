"""What the next LLM request gets of a memory."""
