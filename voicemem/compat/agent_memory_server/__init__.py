"""agent-memory-server's API, so that its clients work unchanged (docs/from-agent-memory-server.md).

A working memory is a session here, and a long-term memory is a memory.
"""
