"""An LLM that answers at once with one memory: the first line that it is shown, for `bench.background`.

python -m bench.harness.remembering_llm     prints its port
"""

from __future__ import annotations

import asyncio
import json
import re
import signal

import uvloop
from aiohttp import web

LINE = re.compile(r"^\[(\d+)\] [^:]*: (.*)$", re.MULTILINE)


async def remember(request: web.Request) -> web.Response:
    body = await request.json()
    line = LINE.search(body["messages"][-1]["content"])
    memories = [] if line is None else [{"text": line[2], "kind": "episode", "from": [int(line[1])], "confidence": 0.9}]
    content = json.dumps({"memories": memories})
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": content}}]})


async def serve() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", remember)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
