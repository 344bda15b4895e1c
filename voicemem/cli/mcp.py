"""`voicemem mcp`: the memory as tools for LLMs."""

from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from voicemem.cli.common import CommandFailed, Server, rest_options, run, variable_option
from voicemem.config.service import parse_address

KEY_PER_CALLER = "Over HTTP every client sends its own key, and one for all would let everybody in. Leave out --key."


@click.command(short_help="Give LLMs the memory as tools (Model Context Protocol).")
@rest_options
@variable_option(
    "--http",
    "VOICEMEM_MCP_HTTP",
    "Serve streamable HTTP on HOST:PORT, for clients that send keys of their own; without it, serve one client on"
    " standard input and output.",
    "http_address",
)
@variable_option(
    "--mcp-url",
    "VOICEMEM_MCP_URL",
    "With --http: the URL by which clients reach it, where that is another, such as https://mcp.example.com/mcp.",
)
@variable_option(
    "--mcp-issuer",
    "VOICEMEM_MCP_ISSUER",
    "With --http: the URL of the OAuth authorization server that gives clients a key or a session token.",
)
@click.option("--insecure", is_flag=True, help="With --http beyond loopback: also serve a memory that has no keys.")
@click.pass_context
def mcp(
    context: click.Context, /, server: Server, http_address: str | None, insecure: bool, **urls: str | None
) -> None:
    """Give LLMs the memory as tools: search_memories, get_context, get_history, remember, forget, recent_calls.

    It is a process of its own, which asks a running service over REST. The key, or a session token, says what the
    client may see; over standard input and output it is VOICEMEM_KEY. It needs the scope read, and ingest for remember
    and forget.

    \b
    Examples:
      voicemem mcp
      voicemem mcp --http 127.0.0.1:8090 --url http://127.0.0.1:8080
    """
    try:
        from voicemem.mcp.client import Service
        from voicemem.mcp.http import HttpSettings, serve_http
        from voicemem.mcp.server import serve_stdio
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("voicemem"):
            raise
        raise CommandFailed("`voicemem mcp` needs the extra `mcp`: pip install 'voicemem-core[server,mcp]'") from None

    async def serve() -> None:
        service = Service(server.url)
        try:
            if http_address is None:
                await serve_stdio(service, server.key)
            else:
                await serve_http(service, settings, lambda url: click.echo(f"MCP  {url}"))
        finally:
            await service.close()

    if http_address is None:
        if insecure or any(urls.values()):
            raise click.UsageError("--mcp-url, --mcp-issuer and --insecure are for --http.")
    else:
        if context.get_parameter_source("key") is ParameterSource.COMMANDLINE:
            raise click.UsageError(KEY_PER_CALLER)
        for name, value in urls.items():
            if value is not None and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname):
                flag = f"--{name.replace('_', '-')}"
                raise click.BadParameter(f"{flag} must be a URL that begins with https:// or http://.")
        settings = HttpSettings(parse_address(http_address), urls["mcp_url"], urls["mcp_issuer"], insecure)
    run(serve())
