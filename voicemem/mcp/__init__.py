"""The memory as tools for LLMs: an MCP server that reads and writes over REST (docs/mcp.md)."""
