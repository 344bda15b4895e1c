"""The real service under a model: its connections, its REST API, its receiver, and its life on one file.

`Service` runs in this process, and only while it is asked something, under a clock that stands still; `Process` is
`voicemem serve`, which can be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from click.testing import CliRunner, Result
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from yarl import URL

from tests.support.callers.rest import RestResponse
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, webhook_receiver
from tests.support.services import ANY_PORT
from voicemem.app import App, running
from voicemem.cli import main
from voicemem.config.service import Settings
from voicemem.protocol.types import JsonObject

T = TypeVar("T")
Enough = Callable[[list[JsonObject]], bool]
"""Whether all is there that must be."""
Talk = tuple[int, Sequence[str], Enough]
"""A connection, and what is sent on it."""
TIMEOUT_S = 20.0
"""Nothing takes this long."""
LATE_S = 10.0
"""What does not happen in this time, though it may happen later than its cause, does not happen."""
KEY = "kept-from-strangers"
"""Whoever else looks for a server on the ports of this machine is turned away."""
HEADERS = {"Authorization": f"Bearer {KEY}"}
ERASED = "erased-at-first"
"""A session that was erased: an open of it is refused, after everything before it was answered."""


class InProcessDriver:
    """The service in this process. Every method returns when the service has nothing more to do for it."""

    def __init__(self, folder: Path, now_ms: int) -> None:
        self.path = folder / "calls.db"
        self.saved = folder / "saved.db"
        self.now_ms = now_ms
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.sockets: dict[int, ClientConnection] = {}
        self.receiver = WebhookReceiver()
        self.stumbles = 0
        self.app: App | None = None
        self.serving = AsyncExitStack()
        self.rest, self.ingest = "", ""
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        """Let the service, and everybody else on the loop, go on until this is done."""
        return self.runner.run(within(work, timeout_s))

    async def begin(self) -> None:
        self.receiver = await self.stack.enter_async_context(webhook_receiver())
        self.http = await self.stack.enter_async_context(aiohttp.ClientSession(headers=HEADERS))
        await self.start()
        await self.request("POST", "/v1/sessions", {"session_id": ERASED})
        await self.request("DELETE", f"/v1/sessions/{ERASED}")

    def finish(self) -> None:
        """Stop everything, and leave nothing behind."""
        try:
            self.run(self.end())
        finally:
            self.runner.close()

    async def end(self) -> None:
        for socket in self.sockets.values():
            await socket.close()
        await self.stop()
        await self.stack.aclose()

    # The process

    async def start(self) -> None:
        settings = Settings(
            store=f"sqlite:{self.path}",
            rest=ANY_PORT,
            ingest=ANY_PORT,
            webhook_url=self.receiver.url(),
            admin_key=KEY,
        )
        self.app = await self.serving.enter_async_context(running(settings, clock=lambda: self.now_ms))
        self.rest, self.ingest = f"http://{self.app.rest_address}", f"ws://{self.app.ingest_address}"

    async def stop(self) -> None:
        await self.serving.aclose()
        self.app = None

    async def restart(self, restore: bool) -> dict[int, tuple[list[JsonObject], int | None]]:
        """Stop and start, on the file or on its backup; what each connection was told, and the code that closed it."""
        await self.stop()
        told = {number: await closed(socket) for number, socket in self.sockets.items()}
        self.sockets.clear()
        if restore:
            # What clears the file of erased content may be at it a moment longer than the service runs.
            await eventually(lambda: self.command("restore").exit_code == 0, "not restored")
        await self.start()
        return told

    def back_up(self) -> None:
        """Copy the file while the service has it."""
        done = self.command("backup")
        assert done.exit_code == 0, done.output

    def command(self, name: str) -> Result:
        """`voicemem backup` or `voicemem restore`, between the file and the one backup that there is."""
        return CliRunner().invoke(main, [name, "--force", "--store", f"sqlite:{self.path}", str(self.saved)])

    # Time

    async def settle(self, connected: dict[str, set[str]]) -> None:
        """Wait until the service has noticed who is still connected; then everything that is due is done."""
        assert self.app is not None
        presence = self.app.services.presence

        def noticed() -> bool:
            return {session_id: set(names) for (_, session_id), names in presence.connected.items()} == connected

        await eventually(noticed, "connections are not noticed")
        await presence.sweep()
        await self.app.services.retention.expire()
        await self.app.services.retention.compact()

    # Connections

    async def connect(self, number: int) -> None:
        self.sockets[number] = await connect(
            f"{self.ingest}/v1/ingest", compression=None, max_queue=None, additional_headers=HEADERS
        )

    async def disconnect(self, number: int, abruptly: bool) -> None:
        socket = self.sockets.pop(number)
        if abruptly:
            socket.transport.abort()
        await socket.close()

    async def exchange_all(self, talks: Sequence[Talk]) -> list[list[JsonObject]]:
        """Talk on several connections at once."""
        return list(await asyncio.gather(*(self.exchange(*talk) for talk in talks)))

    async def exchange(self, number: int, frames: Sequence[str], enough: Enough) -> list[JsonObject]:
        """Send frames; all that is answered to them, however late what must be there may come."""
        socket = self.sockets[number]
        for text in (*frames, json.dumps({"type": "session.open", "session_id": ERASED})):
            await socket.send(text)
        answers: list[JsonObject] = []
        while (frame := await heard(socket, TIMEOUT_S)).get("session_id") != ERASED:
            answers.append(frame)
        assert frame["code"] == "session_erased"
        with suppress(TimeoutError):
            while not enough(answers):
                answers.append(await heard(socket, LATE_S))
        return answers

    # REST

    async def request(
        self, method: str, path: str, body: Any = None, headers: JsonObject | None = None
    ) -> RestResponse:
        """One request; bytes go as they are, anything else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        url = URL(self.rest + path, encoded=True)
        async with self.http.request(method, url, data=data, headers=headers) as answer:
            return RestResponse(answer.status, answer.headers, await answer.read())

    # The receiver

    def stumble(self) -> None:
        """Fail once before the next webhook event is taken; the second attempt comes at once."""
        if not self.receiver.replies:
            self.receiver.replies.append(Reply(500))
            self.stumbles += 1

    async def webhook_events(self, count: int) -> list[JsonObject]:
        """The bodies of all attempts, once so many distinct webhook events came and were taken."""
        seen = self.receiver.webhook_events

        def taken() -> bool:
            failed = self.stumbles - len(self.receiver.replies)
            return len({webhook_event.id for webhook_event in seen}) >= count and len(seen) - failed >= count

        await eventually(taken, "a notice is missing")
        return [webhook_event.json for webhook_event in seen]


async def heard(socket: ClientConnection, timeout_s: float) -> JsonObject:
    """The next frame. Raises `TimeoutError`."""
    return dict(json.loads(await asyncio.wait_for(socket.recv(), timeout_s)))


async def within(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    return await asyncio.wait_for(work, timeout_s)


async def eventually(true: Callable[[], bool], what: str) -> None:
    """Wait until it is true."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LATE_S):
            while not true():  # noqa: ASYNC110 (it happens in the service, which tells no one)
                await asyncio.sleep(0.001)
    assert true(), what


async def closed(socket: ClientConnection) -> tuple[list[JsonObject], int | None]:
    """What still came, and the code that closed the connection."""
    frames: list[JsonObject] = []
    try:
        while True:
            frames.append(await heard(socket, TIMEOUT_S))
    except ConnectionClosed as gone:
        return frames, gone.rcvd.code if gone.rcvd else None


class SubprocessDriver(InProcessDriver):
    """`voicemem serve` on the file, which can be killed. Its clock is the machine's."""

    async def begin(self) -> None:
        self.errors = self.path.with_name("errors.txt").open("ab")
        await super().begin()

    async def start(self) -> None:
        command = ["serve", "--store", f"sqlite:{self.path}", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", *command, "--webhook-url", self.receiver.url(), "--admin-key", KEY),
            stdout=asyncio.subprocess.PIPE,
            stderr=self.errors,
            env={name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")},
        )
        assert self.process.stdout is not None
        lines = [(await self.process.stdout.readline()).decode().split() for _ in range(4)]
        self.ingest = lines[1][-1].removesuffix("/v1/ingest")
        self.rest = lines[2][-1].removesuffix("/v1/sessions")

    async def stop(self) -> None:
        """Drain."""
        self.process.send_signal(signal.SIGTERM)
        await self.process.communicate()
        assert self.process.returncode == 0

    async def kill(self) -> dict[int, list[JsonObject]]:
        """Kill it in the midst of whatever it does, start the next one; what each connection had been told."""
        self.process.kill()
        await self.process.communicate()
        told = {number: (await closed(socket))[0] for number, socket in self.sockets.items()}
        self.sockets.clear()
        await self.start()
        return told

    async def kill_while_sending(self, number: int, frames: Sequence[str], answers: int) -> dict[int, list[JsonObject]]:
        """Kill it after this was sent, and so many answers to it at most were heard."""
        socket = self.sockets[number]
        for frame in frames:
            await socket.send(frame)
        early: list[JsonObject] = []
        with suppress(TimeoutError):
            while len(early) < answers:
                early.append(await heard(socket, 0.2))
        told = await self.kill()
        told[number][:0] = early
        return told

    async def settle(self, connected: dict[str, set[str]]) -> None:
        """Nothing that such a service does depends on the time."""

    async def end(self) -> None:
        await super().end()
        self.errors.close()
        said = self.path.with_name("errors.txt").read_text()
        assert "Traceback" not in said, said
