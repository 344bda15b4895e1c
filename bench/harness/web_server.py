"""A web application of a bench in a process of its own, which prints its port and serves until SIGTERM."""

from __future__ import annotations

import asyncio
import signal

from aiohttp import web


async def serve_until_stopped(app: web.Application) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await stopped.wait()
    await runner.cleanup()
