"""Callers of the running service, and a webhook receiver that keeps what it gets and answers as it is told."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp
import documented
from aiohttp import web
from multidict import CIMultiDictProxy
from websockets.asyncio.client import connect
from yarl import URL

from voicemem.app import App, running
from voicemem.config.service import Address, Settings

JsonObject = dict[str, Any]
Serve = Callable[..., Coroutine[Any, Any, App]]
"""The fixture that starts a service."""
PROBLEM = "application/problem+json"
LOOPBACK = ("127.0.0.0/8", "::1/128")
"""The allow-list under which a session's own webhook may be a receiver on this machine."""


class Answered(NamedTuple):
    """What came back for one request."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[JsonObject]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.body.split(b"\n") if line]

    @property
    def told(self) -> tuple[int, str]:
        """Status and code of a problem document, whose other fields are checked on the way."""
        assert PROBLEM == self.headers["Content-Type"]
        problem = self.json
        assert {"type", "title", "status", "detail", "reason"} == set(problem) - {"error"}  # which is the gateway's
        assert problem["type"].endswith(problem["reason"])
        assert self.status == problem["status"]
        assert problem["title"]
        assert problem["detail"]
        assert b"Traceback" not in self.body
        return self.status, problem["reason"]


class Caller:
    """Calls the REST API of a service, each time on a connection of its own; every answer must be as documented."""

    def __init__(self, app: App | str, key: str | None = None) -> None:
        """`app` may be the base URL of a service in another process."""
        self.base = app if isinstance(app, str) else f"http://{app.rest_address}"
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, headers: JsonObject | None = None, **more: Any) -> Answered:
        """One request; the path is sent as it is written."""
        url = URL(self.base + path, encoded=True)
        async with (
            aiohttp.ClientSession(headers=self.headers) as session,
            session.request(method, url, headers=headers, allow_redirects=False, **more) as answer,
        ):
            answered = Answered(answer.status, answer.headers, await answer.read())
        documented.check(method, path, *answered)
        return answered

    async def get(self, path: str, headers: JsonObject | None = None) -> Answered:
        return await self.call("GET", path, headers)

    async def post(self, path: str, body: Any = None) -> Answered:
        """Post bytes as they are, anything else as JSON."""
        if isinstance(body, bytes):
            return await self.call("POST", path, data=io.BytesIO(body))
        return await self.call("POST", path, json=body) if body is not None else await self.call("POST", path)

    async def patch(self, path: str, body: Any) -> Answered:
        return await self.call("PATCH", path, json=body)

    async def delete(self, path: str) -> Answered:
        return await self.call("DELETE", path)

    # What most tests begin with

    async def create(self, session_id: str = "s", **config: Any) -> JsonObject:
        """A new session, as it is shown."""
        answered = await self.post("/v1/sessions", {"session_id": session_id, **config})
        assert 201 == answered.status, answered.body
        return dict(answered.json)

    async def send(self, *events: JsonObject, session_id: str = "s", query: str = "") -> JsonObject:
        """What the service answers to these events."""
        answered = await self.post(f"/v1/sessions/{session_id}/events{query}", list(events))
        assert 200 == answered.status, answered.body
        return dict(answered.json)

    async def end(self, session_id: str = "s", **body: Any) -> JsonObject:
        """The session after its end."""
        answered = await self.post(f"/v1/sessions/{session_id}/end", body)
        assert 200 == answered.status, answered.body
        return dict(answered.json)

    async def session(self, session_id: str = "s") -> JsonObject:
        return dict((await self.get(f"/v1/sessions/{session_id}")).json)

    async def contents(self, session_id: str = "s", query: str = "") -> list[JsonObject]:
        """The messages of a session."""
        answered = await self.get(f"/v1/sessions/{session_id}/history{query}")
        assert 200 == answered.status, answered.body
        return list(answered.json["contents"])

    async def context(self, query: str = "", session_id: str = "s") -> JsonObject:
        """The body for the next LLM call."""
        answered = await self.get(f"/v1/sessions/{session_id}/context{query}")
        assert 200 == answered.status, answered.body
        return dict(answered.json)

    async def journal(self, session_id: str = "s", query: str = "") -> list[JsonObject]:
        """The rows of a session's journal."""
        return (await self.get(f"/v1/sessions/{session_id}/events{query}")).lines


def said(body: JsonObject) -> list[str]:
    """What stands in the messages of a context."""
    return [message["content"] for message in body["messages"]]


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[App]:
    """A service on free ports that ends with the block, for tests that start another on its file."""
    free = Address("127.0.0.1", 0)
    async with running(Settings(**{"rest": free, "ingest": free, **settings})) as app:
        yield app


async def make_key(app: App, *scopes: str, project: str = "default") -> str:
    """The text of a new key."""
    _, text = await app.services.access.create_key(project, "test", scopes)
    return text


async def keyed(app: App, *scopes: str, project: str = "default") -> Caller:
    """A caller with a key of its own."""
    return Caller(app, await make_key(app, *scopes, project=project))


async def talk(app: App, request: bytes, until: bytes | None = None, timeout_s: float = 5.0) -> bytes:
    """What the REST port answers to these bytes, until it closes the connection or has said `until`."""
    reader, writer = await asyncio.open_connection(*app.rest_address)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read() if until is None else reader.readuntil(until), timeout_s)
    finally:
        writer.close()
        await writer.wait_closed()


async def opening(app: App, session_id: str = "s", **more: Any) -> JsonObject:
    """What the websocket answers to a `session.open`."""
    async with connect(f"ws://{app.ingest_address}/v1/ingest", compression=None) as socket:
        await socket.send(json.dumps({"type": "session.open", "session_id": session_id, **more}))
        return dict(json.loads(await socket.recv()))


async def produce(app: App, events: Iterable[JsonObject], session_id: str = "s", **more: Any) -> list[JsonObject]:
    """Send events over the websocket and wait until the last is acknowledged; the frames that came back."""
    numbered = [{"seq": seq, **event} for seq, event in enumerate(events, 1)]
    async with connect(f"ws://{app.ingest_address}/v1/ingest", compression=None) as socket:
        await socket.send(json.dumps({"type": "session.open", "session_id": session_id, **more}))
        await socket.send(json.dumps(numbered))
        frames: list[JsonObject] = []
        while not frames or frames[-1].get("seq") != numbered[-1]["seq"]:
            frames.append(json.loads(await socket.recv()))
        return frames


async def closed(app: App, session_id: str = "s") -> None:
    """Wait for the close of a session; its end is acknowledged before."""

    async def state() -> str | None:
        stream = await app.services.store.stream("default", session_id)
        return None if stream is None else stream.state

    await until("ended", state)


class Reply(NamedTuple):
    """How a receiver answers one notice; with `gate`, not before that is set."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    gate: asyncio.Event | None = None


class Notice(NamedTuple):
    """One POST as it came in."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return dict(json.loads(self.body))

    @property
    def payload(self) -> JsonObject:
        return dict(self.json["payload"])

    @property
    def id(self) -> str:
        return str(self.json["noticeId"])


class Receiver:
    """Keeps every notice; answers with the next of `replies`, or with `otherwise` when none is left."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.otherwise = Reply()
        self.notices: list[Notice] = []
        self.changed = asyncio.Condition()
        self.at_once: Counter[str] = Counter()
        """How many requests are being answered, by path, and the most that ever were."""
        self.most: Counter[str] = Counter()
        self.port = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, request: web.Request) -> web.Response:
        notice = Notice(request.path, request.headers, await request.read())
        reply = self.replies.pop(0) if self.replies else self.otherwise
        self.at_once[request.path] += 1
        self.most[request.path] = max(self.most[request.path], self.at_once[request.path])
        async with self.changed:
            self.notices.append(notice)
            self.changed.notify_all()
        try:
            if reply.gate is not None:
                await reply.gate.wait()
        finally:
            self.at_once[request.path] -= 1
        return web.Response(status=reply.status, headers=reply.headers, text="answered")

    async def wait(self, count: int = 1, timeout_s: float = 10.0) -> list[Notice]:
        """The notices, once there are so many."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(lambda: len(self.notices) >= count)
        return self.notices

    async def one(self) -> Notice:
        """The first notice, once it is there."""
        return (await self.wait())[0]


@asynccontextmanager
async def receiving(*replies: Reply) -> AsyncIterator[Receiver]:
    """A receiver on a free port, which refuses connections again after the block."""
    receiver = Receiver(*replies)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        await runner.cleanup()


async def until(expected: Any, ask: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> None:
    """Ask again and again, until the answer is the expected one."""
    async with asyncio.timeout(timeout_s):
        while await ask() != expected:  # noqa: ASYNC110 (it happens in the service, which tells nobody)
            await asyncio.sleep(0.01)
