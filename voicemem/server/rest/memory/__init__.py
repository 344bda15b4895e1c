"""What is remembered besides messages: memories, working memory, and what an LLM makes of calls."""
