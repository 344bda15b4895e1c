"""MCP over standard input and output: one client, which has started this process."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from voicemem.mcp.caller import Service, caller_with
from voicemem.mcp.server import MemoryServer


async def serve_stdio(service: Service, key: str | None) -> None:
    """Serve until standard input ends. Raises `ClientError` for a key that cannot be one."""
    caller = caller_with(service, key)
    server = MemoryServer(lambda _: caller).protocol
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
