"""Chat completions over the memory: an LLM request that knows what was heard."""
