"""An LLM that answers at once and streams as OpenAI's API does, for `bench.gateway`.

python -m bench.harness.llm CHUNKS PAUSE_S     prints its port
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

from bench.harness.web_server import serve_until_stopped

CHUNK = (
    b'data: {"id":"%s","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":"word "},"finish_reason":%s}]}\n\n'
)


class Llm:
    """Streams so many chunks, with a pause before each but the first."""

    def __init__(self, chunks: int, pause_s: float) -> None:
        self.chunks = chunks
        self.pause_s = pause_s
        self.answered = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.answered += 1
        identity = f"chatcmpl-{self.answered}".encode()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(1, self.chunks + 1):
            if number > 1 and self.pause_s:
                await asyncio.sleep(self.pause_s)
            await response.write(CHUNK % (identity, b'"stop"' if number == self.chunks else b"null"))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def serve(llm: Llm) -> None:
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", llm.handle)
    await serve_until_stopped(app)


if __name__ == "__main__":
    uvloop.run(serve(Llm(int(sys.argv[1]), float(sys.argv[2]))))
