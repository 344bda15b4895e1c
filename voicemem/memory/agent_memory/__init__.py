"""What clients of agent-memory-server know as working memory and long-term memory, told in sessions and memories."""
