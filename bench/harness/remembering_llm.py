"""An LLM that answers at once with one memory: the first line that it is shown, for `bench.background`.

python -m bench.harness.remembering_llm     prints its port
"""

from __future__ import annotations

import json
import re

import uvloop
from aiohttp import web

from bench.harness.web_server import serve_until_stopped

LINE = re.compile(r"^\[(\d+)\] [^:]*: (.*)$", re.MULTILINE)


async def remember(request: web.Request) -> web.Response:
    body = await request.json()
    line = LINE.search(body["messages"][-1]["content"])
    memories = [] if line is None else [{"text": line[2], "kind": "episode", "from": [int(line[1])], "confidence": 0.9}]
    content = json.dumps({"memories": memories})
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": content}}]})


async def main() -> None:
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", remember)
    await serve_until_stopped(app)


if __name__ == "__main__":
    uvloop.run(main())
