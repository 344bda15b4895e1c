"""Long-term memory: what was said in earlier calls, found again."""
