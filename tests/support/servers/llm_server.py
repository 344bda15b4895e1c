"""An OpenAI-compatible server that answers as it is told: real chunks at their times, errors, drops, garbage, tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from aiohttp import web
from multidict import CIMultiDictProxy

from voicemem.protocol.types import JsonObject


class Script(NamedTuple):
    """How one request is answered; without `texts` and `tools` the answer says nothing."""

    texts: Sequence[str] = ()
    """One chunk each; joined where no stream is asked for."""
    tools: Sequence[JsonObject] = ()
    """`{"id","name","arguments"}`; the arguments may be a list, of fragments."""
    pause_s: float = 0.0
    """Before each chunk."""
    hold_after: int | None = None
    """After so many chunks nothing comes any more, until the caller goes away or `LlmServer.go_on` is set."""
    status: int = 200
    error: Any = None
    """The body of an answer of another status."""
    drop_after: int | None = None
    """After so many chunks the connection is broken off."""
    raw: bytes | None = None
    """The body as it is, instead of chunks."""
    id: str | None = None
    """Of the completion; else one of its own for each. `""` for none."""
    done: bool = True
    """Whether the stream ends with `[DONE]`, and with a reason."""
    first: JsonObject | None = None
    """A chunk before all others."""


class Request(NamedTuple):
    """What the server was sent."""

    path: str
    headers: CIMultiDictProxy[str]
    body: JsonObject


class LlmServer:
    """Answers requests by its scripts, the last one again and again."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts) or [Script(["Hello."])]
        self.requests: list[Request] = []
        self.hung_up = 0
        """How many callers went away before the end."""
        self.go_on = asyncio.Event()
        self.url = ""
        self.models: Any = None
        """The answer to a request for its models; 404 without one."""

    async def list_models(self, _: web.Request) -> web.Response:
        return web.json_response(self.models, status=404 if self.models is None else 200)

    def then(self, *scripts: Script) -> None:
        """Answer so from now on."""
        self.scripts = list(scripts)

    @property
    def last(self) -> JsonObject:
        """The body of the newest request."""
        return self.requests[-1].body

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(Request(request.path_qs, request.headers, body))
        script = self.scripts[0] if len(self.scripts) == 1 else self.scripts.pop(0)
        if script.status != 200:
            if 300 <= script.status < 400:
                return web.Response(status=script.status, headers={"Location": script.error})
            return web.json_response(script.error or {"error": {"message": "no"}}, status=script.status)
        identity = f"chatcmpl-{len(self.requests)}" if script.id is None else script.id
        try:
            if not body.get("stream"):
                return await self.answer(script, identity)
            return await self.stream(request, script, identity)
        except (asyncio.CancelledError, ConnectionResetError):
            self.hung_up += 1
            raise

    async def answer(self, script: Script, identity: str) -> web.Response:
        await asyncio.sleep(script.pause_s)
        if script.hold_after is not None:
            await self.go_on.wait()
        if script.raw is not None:
            return web.Response(body=script.raw, content_type="application/json")
        message: JsonObject = {"role": "assistant", "content": "".join(script.texts) or None}
        if script.tools:
            message["tool_calls"] = [
                {"id": tool["id"], "type": "function", "function": {"name": tool["name"], "arguments": whole(tool)}}
                for tool in script.tools
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if script.tools else "stop"}
        return web.json_response(
            {"id": identity, "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    async def stream(self, request: web.Request, script: Script, identity: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if script.raw is not None:
            await response.write(script.raw)
        else:
            for number, chunk in enumerate(completion_chunks(script, identity)):
                await asyncio.sleep(script.pause_s)
                if script.hold_after == number:
                    await self.go_on.wait()
                if script.drop_after == number:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if script.done:
                await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class Endpoint(Protocol):
    """What answers requests at a base URL; whoever waits for `go_on` is let go at the end."""

    url: str
    go_on: asyncio.Event

    async def handle(self, request: web.Request, /) -> web.StreamResponse: ...


AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)


def whole(tool: JsonObject) -> str:
    return "".join(tool["arguments"])


def completion_chunks(script: Script, identity: str) -> list[JsonObject]:
    """What is streamed, without the end's `[DONE]`."""
    head = {"id": identity, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[tuple[JsonObject, str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": text}, None) for text in script.texts]
    for index, tool in enumerate(script.tools):
        pieces = [tool["arguments"]] if isinstance(tool["arguments"], str) else list(tool["arguments"])
        begin = {"id": tool["id"], "type": "function", "function": {"name": tool["name"], "arguments": ""}}
        deltas.append(({"tool_calls": [{"index": index, **begin}]}, None))
        deltas += [({"tool_calls": [{"index": index, "function": {"arguments": one}}]}, None) for one in pieces]
    if script.done:
        deltas.append(({}, "tool_calls" if script.tools else "stop"))
    said = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
    return said if script.first is None else [script.first, *said]


@asynccontextmanager
async def llm_server(*scripts: Script) -> AsyncIterator[LlmServer]:
    """A running server; its `url` is a base URL."""
    async with running_llm(LlmServer(*scripts)) as server:
        yield server


@asynccontextmanager
async def running_llm(server: AnyEndpoint, path: str = "/{path:.*}") -> AsyncIterator[AnyEndpoint]:
    """The same for a server that answers in a way of its own, on these paths."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post(path, server.handle)
    if isinstance(server, LlmServer):
        app.router.add_get("/v1/models", server.list_models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        server.go_on.set()
        await runner.cleanup()
