"""Working memories as agent-memory-server's clients know them."""
