"""`voicemem ui`: the page of a running service, in a browser."""

from __future__ import annotations

import webbrowser

import aiohttp
import click

from voicemem.cli.common import URL_OPTION, CommandFailed, run
from voicemem.client.transport.failures import reason_of, with_check

PATH = "/ui/"
TIMEOUT_S = 15.0
TEXT_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")
"""Browsers that the library falls back to where there is no desktop; the page needs a script to run."""


@click.command(short_help="Open the page on which one looks at calls.")
@URL_OPTION
@click.option("--no-open", is_flag=True, help="Only print the address.")
def ui(url: str, no_open: bool) -> None:
    """Open the page of a running service in a browser, and print its address.

    There one looks at calls, live and ended: what was said, heard and cut off, what the next LLM request gets, and what
    became of webhooks. If the service has keys, the page asks for one; it never stands in an address.

    \b
    Examples:
      voicemem ui
      voicemem ui --url https://memory.example --no-open
    """
    address = url.rstrip("/") + PATH
    run(check_page(address))
    click.echo(address)
    if not no_open and not opened(address):
        click.echo("No browser could be opened here; open this address in yours.", err=True)


async def check_page(address: str) -> None:
    """Raise `CommandFailed` with what is to be done if the page is not there."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(address, allow_redirects=False) as response:
            if response.status == 200:
                return
            body = await response.json(content_type=None) if "json" in response.content_type else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise CommandFailed(f"No service answers at {address}: {with_check(reason_of(error, TIMEOUT_S))}") from None
    detail = body.get("detail") if isinstance(body, dict) else None
    if response.status == 404:
        raise CommandFailed(
            f"There is no page at {address}. Check that this is the REST address, and not served with `--ui off`."
        )
    raise CommandFailed(f"{address} answers {response.status}{f': {detail}' if detail else '.'}")


def opened(address: str) -> bool:
    """Whether a browser shows it."""
    try:
        browser = webbrowser.get()
        return getattr(browser, "name", "") not in TEXT_BROWSERS and browser.open(address)
    except (webbrowser.Error, OSError):
        return False
