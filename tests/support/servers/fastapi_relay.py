"""A FastAPI app under uvicorn with one websocket; it needs FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, WebSocket

from tests.support.waiting import eventually


@asynccontextmanager
async def fastapi_server(endpoint: Callable[[WebSocket], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of the websocket, which goes to `endpoint` once it is accepted."""
    application = FastAPI()

    @application.websocket("/relay")
    async def relay(websocket: WebSocket) -> None:
        await websocket.accept()
        await endpoint(websocket)

    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, ws="websockets-sansio", lifespan="off", log_level="warning"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await eventually(True, started)
    yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/relay"
    server.should_exit = True
    await serving
