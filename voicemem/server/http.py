"""aiohttp's HTTP protocol with our answers: what is no HTTP gets a problem document too, and is not logged.

aiohttp answers and logs such requests before any handler sees them, with the bytes that were sent, keys included.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from voicemem.errors import CODES
from voicemem.server.problems import problem_response
from voicemem.settings import Address


class ProblemHandler(RequestHandler):
    """One HTTP connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        code = "internal" if status >= 500 else "invalid_http"
        if code == "internal":
            self.log_exception("A request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("The answer had begun already.")
        response = problem_response(code, CODES[code].sentence)
        response.force_close()
        return response


async def expect(request: web.Request) -> web.StreamResponse | None:
    """What an `Expect` header asks for: nothing but 100-continue is known."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return problem_response("invalid_http", "The only expectation that can be met is 100-continue.")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer proper has not begun
    return None


async def listen(runner: web.AppRunner, address: Address) -> asyncio.Server:
    """Listen with a runner that was set up. Raises `OSError`."""
    server = runner.server
    assert server is not None

    def handler() -> RequestHandler:
        made = server()
        made.__class__ = ProblemHandler
        return made

    return await asyncio.get_running_loop().create_server(handler, address.host, address.port, reuse_address=True)
