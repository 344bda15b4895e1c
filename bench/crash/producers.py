"""The producers of a crash run. They come back after every kill, and make the mistakes that producers make: they resend
what was acknowledged, leave a gap, or keep an old connection alongside the new one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from bench.crash.calls import UNKNOWN, Part, Script
from bench.crash.checker import Stay
from bench.crash.history import History
from bench.crash.moments import Trigger
from bench.crash.server import Front, Server
from voicemem.runtime import now_ms

JsonObject = dict[str, Any]
PATIENCE_S = 20.0
"""A live service answers within this many seconds."""
DELAYED_MS = 20_000
"""For so long after a node stood still, what it reads may be old."""
REST_S = 2.5
"""How long a producer says nothing that stays connected: longer than the `idle_timeout` of its session."""
GONE = (OSError, WebSocketException, TimeoutError, aiohttp.ClientError)
"""Errors that mean that the service was killed, or is not ready yet."""


class World:
    """What all participants of a run share."""

    def __init__(
        self,
        servers: Sequence[Server],
        front: Front,
        history: History,
        trigger: Trigger,
        http: aiohttp.ClientSession,
    ) -> None:
        self.servers = servers
        self.front = front
        self.history = history
        self.trigger = trigger
        self.http = http

    def node(self) -> Server:
        """One of the servers, for one attempt or request; it may be down."""
        return random.choice(self.servers)

    async def ask(self, method: str, path: str, body: Any = None, server: Server | None = None) -> tuple[int, bytes]:
        """Send one request, to any server. Raises one of `GONE`."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        rest = (server or self.node()).rest
        async with self.http.request(method, rest + path, json=body, timeout=timeout) as answer:
            return answer.status, await answer.read()

    async def insist(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a successful answer, however many attempts that takes."""
        while True:
            with suppress(*GONE):
                status, answer = await self.ask(method, path, body)
                if status in (200, 201):
                    return [msgspec.json.decode(line) for line in answer.splitlines()]
                if status < 500:
                    raise RuntimeError(f"{method} {path} was answered with {status}: {answer.decode()}")
            await asyncio.sleep(random.uniform(0.01, 0.05))

    async def state(self, session: str) -> str:
        return str((await self.insist("GET", f"/v1/sessions/{session}"))[0]["state"])

    async def closed(self, session: str) -> None:
        """Wait until a session has ended."""
        while await self.state(session) != "ended":  # noqa: ASYNC110 (the service does not notify)
            await asyncio.sleep(0.05)


class Producer:
    """Sends one part of a session; `over` when nothing more of it can be stored."""

    def __init__(self, world: World, script: Script, part: Part, rng: random.Random) -> None:
        self.world = world
        self.history = world.history
        self.script = script
        self.part = part
        self.rng = rng
        self.session = script.session
        self.name = part.producer
        self.over = False
        self.pause = part.pause_after
        self.gap_made = False

    @property
    def acked(self) -> int:
        return self.history.line(self.session, self.name).acked

    @property
    def last(self) -> int:
        return len(self.part.events)

    async def run(self) -> None:
        while not self.over:
            with suppress(*GONE):
                await self.attempt()
            self.over = self.over or self.acked >= self.last
            if not self.over:
                await asyncio.sleep(self.rng.uniform(0.005, 0.05))

    async def attempt(self) -> None:
        """Send from where the service stands, until all is acknowledged or the service is gone."""
        raise NotImplementedError

    def take(self, begin: int, count: int) -> list[JsonObject]:
        """The events from a seq on; they are noted as sent."""
        events = self.part.events[begin - 1 : begin - 1 + count]
        for event in events:
            refusal = UNKNOWN if event["seq"] in self.part.refused else None
            self.history.sent(self.session, self.name, event, refusal)
        return events

    def begin_at(self, next_seq: int) -> int:
        """Where to send from: sometimes before the expected seq."""
        return max(1, next_seq - self.rng.randint(1, 9)) if self.rng.random() < 0.3 else next_seq

    def complain(self, problem: JsonObject) -> None:
        """Handle an error about one of our events."""
        code, seq = problem["code"], problem.get("seq")
        if code == "session_ended":
            self.over = True
        elif self.is_without_store(problem):
            pass  # the connection closes, and everything comes again
        elif code == "superseded" and self.history.is_troubled(now_ms() - DELAYED_MS):
            pass  # by an open of our own that a node has read late
        elif code == "seq_gap" and self.gap_made:
            self.gap_made = False
            self.history.counts["gaps"] += 1
        elif isinstance(seq, int):
            self.history.refused(self.session, self.name, seq, code)
        else:
            self.history.find(self.session, f"{self.name} got {code}")

    def is_without_store(self, frame: JsonObject) -> bool:
        """Whether a frame says that the store is away, where one may be: it is a server of its own."""
        is_away = frame.get("code") == "store_unavailable" and frame.get("seq") is None
        return is_away and self.history.lease_ms is not None


class SocketProducer(Producer):
    """Streams over a websocket."""

    def __init__(self, world: World, script: Script, part: Part, rng: random.Random) -> None:
        super().__init__(world, script, part, rng)
        self.heard = asyncio.Event()
        self.server = world.node()
        self.stay = Stay("", 0)
        """The connection that counts."""
        self.rest_at = part.rest_after
        self.strays = 0
        """Opens that were never answered: each may still supersede a later one."""

    async def attempt(self) -> None:
        try:
            async with AsyncExitStack() as sockets:
                await self.connect_and_stream(sockets)
        finally:
            self.history.contact(self.session)
        if self.pause is not None and self.acked >= self.pause and not self.over:
            self.pause = None
            await (self.world.closed(self.session) if self.part.away_s is None else asyncio.sleep(self.part.away_s))

    async def connect_and_stream(self, sockets: AsyncExitStack) -> None:
        socket = await self.connection(sockets)
        ready = await self.open(socket)
        if ready["state"] == "ended":
            self.over = True
        elif self.rng.random() < 0.1:  # as a connection that has not noticed that it was replaced
            newer = await self.connection(sockets)
            ready = await self.open(newer)
            await self.haunt(socket, ready["next_seq"])
            socket = newer
        if not self.over:
            await self.stream(socket, ready["next_seq"])

    async def connection(self, sockets: AsyncExitStack) -> ClientConnection:
        self.server = self.world.node()
        opening = connect(self.server.ingest, compression=None, proxy=None, open_timeout=PATIENCE_S, close_timeout=0.2)
        return await sockets.enter_async_context(opening)

    async def open(self, socket: ClientConnection) -> JsonObject:
        names = {"session_id": self.session, "producer": self.name}
        self.strays += 1
        await socket.send(
            msgspec.json.encode({"type": "session.open", **names, "session": self.script.config}), text=True
        )
        async with asyncio.timeout(PATIENCE_S):
            frame: JsonObject = msgspec.json.decode(await socket.recv())
        if frame["type"] != "session.ready":
            raise TimeoutError  # a drain has begun
        taken = frame["epoch"] - self.history.line(self.session, self.name).epoch
        self.strays = max(0, self.strays - taken)
        self.history.ready(self.session, self.name, frame)
        self.stay = self.history.arrived(self.session, self.name, self.server.rest)
        self.world.trigger.hit("opened", self.server)
        return frame

    async def haunt(self, old: ClientConnection, next_seq: int) -> None:
        """Send the next event over a replaced connection: it must not be taken, and the answer must be `superseded`."""
        with suppress(ConnectionClosed, TimeoutError):
            for event in self.take(next_seq, 1):
                await old.send(msgspec.json.encode(event), text=True)
            async with asyncio.timeout(PATIENCE_S):
                frame = msgspec.json.decode(await old.recv())
            if frame.get("code") == "superseded":
                self.history.counts["superseded"] += 1
            elif frame["type"] != "goaway" and not self.is_without_store(frame):
                answer = frame.get("code", frame["type"])
                self.history.find(self.session, f"a replaced connection of {self.name} got {answer}")

    async def stream(self, socket: ClientConnection, next_seq: int) -> None:
        listening = asyncio.create_task(self.listen(socket))
        try:
            until = self.pause if self.pause is not None else self.last
            if self.rng.random() < 0.15 and next_seq + 2 <= until:
                self.gap_made = True
                await self.send(socket, self.take(next_seq + 2, 1))
            seq = self.begin_at(next_seq)
            while seq <= until and not self.over and not listening.done():
                events = self.take(seq, min(self.rng.randint(1, 6), until - seq + 1))
                await self.send(socket, events)
                seq += len(events)
                await asyncio.sleep(self.rng.uniform(0, 0.08))
                if self.rest_at is not None and seq > self.rest_at:
                    self.rest_at = None
                    await asyncio.wait({listening}, timeout=REST_S)
            while self.acked < until and not self.over and not listening.done():
                self.heard.clear()
                async with asyncio.timeout(PATIENCE_S):
                    await self.heard.wait()
        finally:
            listening.cancel()
            self.gap_made = False

    async def send(self, socket: ClientConnection, events: list[JsonObject]) -> None:
        if self.rng.random() < 0.5:
            await socket.send(msgspec.json.encode(events), text=True)
        else:
            for event in events:
                await socket.send(msgspec.json.encode(event), text=True)
        if events and events[-1]["type"] == "session.end":
            self.world.trigger.hit("end sent", self.server)

    async def listen(self, socket: ClientConnection) -> None:
        try:
            async for message in socket:
                frame = msgspec.json.decode(message)
                self.hear(frame)
                self.heard.set()
                if frame.get("code") == "superseded":  # nothing comes after that
                    break
        except ConnectionClosed:
            pass
        finally:
            self.heard.set()

    def hear(self, frame: JsonObject) -> None:
        if frame.get("code") != "superseded":
            self.stay.heard()
        elif self.strays:
            self.strays -= 1
            return
        if frame["type"] == "ack":
            self.history.acknowledged(self.session, self.name, frame["seq"])
            self.world.trigger.hit("acknowledged", self.server)
            if frame["seq"] == self.last:
                self.world.trigger.hit("end acknowledged", self.server)
        elif frame["type"] == "error":
            self.complain(frame)
            if frame["code"] == UNKNOWN:
                self.history.acknowledged(self.session, self.name, frame["seq"])


class HttpProducer(Producer):
    """Posts batches to an existing session."""

    async def attempt(self) -> None:
        server = self.world.node()
        await self.world.ask("GET", "/livez", server=server)  # so that events do not count as sent while it is down
        next_seq = self.acked + 1
        events = self.take(self.begin_at(next_seq), self.rng.randint(1, 12))
        if events[-1]["type"] == "session.end":
            self.world.trigger.hit("end sent", server)
        path = f"/v1/sessions/{self.session}/events?producer={self.name}"
        status, body = await self.world.ask("POST", path, events, server)
        self.history.contact(self.session)
        if status == 503:
            return
        answer = msgspec.json.decode(body)
        if "errors" not in answer:
            self.history.find(self.session, f"events over HTTP were answered with {status}")
            return
        for problem in answer["errors"]:
            self.complain(problem)
        self.history.next_seq(self.session, self.name, answer["next_seq"])
        self.world.trigger.hit("acknowledged", server)
