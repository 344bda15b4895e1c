"""Events over HTTP, for as long as the websocket cannot be reached: the same lines, the same acks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.client.buffer import Ack
from voicemem.client.errors import ClientError, RequestRefused, SessionErased, Unreachable
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Frame, Line
from voicemem.client.rest import PASSING, Rest, session_path

BODY_BYTES = 256 * 1024
AT_ONCE = 8
"""Sessions that are posted for at the same time."""
FATAL = frozenset({401, 403})


class Fallback:
    """Posts what lines hold.

    `answered` is called whenever the server answers, `failed` when it does not; what that raises ends the posting.
    """

    def __init__(
        self, rest: Rest, options: Options, answered: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self.rest = rest
        self.backoff = Backoff(options)
        self.answered = answered
        self.failed = failed
        self.work: dict[Line, None] = {}
        """Lines to be opened or with something to send, in the order in which they came."""
        self.stuck: set[Line] = set()
        """Lines with a hole that only a websocket's `from_seq` can tell of."""
        self.wake = asyncio.Event()
        self.limit = asyncio.Semaphore(AT_ONCE)

    def open_line(self, line: Line) -> None:
        self.has_more(line)

    def has_more(self, line: Line) -> None:
        if line not in self.stuck:
            self.work[line] = None
            self.wake.set()

    def forget(self, line: Line) -> None:
        self.work.pop(line, None)

    async def run(self, stopping: asyncio.Event) -> None:
        """Post until told to stop, and then finish what is under way. Raises `ClientError` when nothing may go on."""
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                wake = asyncio.create_task(self.wake.wait())
                try:
                    await asyncio.wait({stop, wake}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    wake.cancel()
                self.wake.clear()
                if not stopping.is_set() and self.work:
                    await self.post_round(stop)
        finally:
            stop.cancel()

    async def post_round(self, stop: asyncio.Task[Any]) -> None:
        """Everything that waits, once; after a failure there is a pause."""
        lines, self.work = list(self.work), {}
        outcomes = await asyncio.gather(*(self.post(line) for line in lines), return_exceptions=True)
        lost: Unreachable | None = None
        for line, outcome in zip(lines, outcomes, strict=True):
            if isinstance(outcome, Unreachable):
                lost = outcome
                self.has_more(line)
            elif isinstance(outcome, BaseException):
                raise outcome
        if lost is not None:
            self.failed(lost)
            await asyncio.wait({stop}, timeout=self.backoff.next_s())
        else:
            self.backoff.reset()

    async def post(self, line: Line) -> None:
        """Open a line if need be, and post one body of its events."""
        async with self.limit:
            if line.over:
                return
            try:
                if not line.opened:
                    await self.open(line)
                await self.post_events(line)
            except RequestRefused as refused:
                self.take_refusal(line, refused)

    async def post_events(self, line: Line) -> None:
        batch = line.buffer.take(BODY_BYTES)
        if not batch:
            return
        try:
            self.hear(line, batch, await self.append(line, batch))
        except ClientError:
            line.buffer.rewind(batch[0].seq)
            raise
        if line.buffer.unsent:
            self.has_more(line)

    async def append(self, line: Line, batch: list[Ack]) -> Any:
        """Raises `RequestRefused`, `Unreachable`."""
        query = {"producer": line.producer}
        if line.epoch is not None and not line.opens:  # an open without answer may have raised the epoch
            query["epoch"] = str(line.epoch)
        body = b"\n".join(ack.payload for ack in batch) or b"[]"
        answer = await self.rest.call("POST", session_path(line.session_id, "/events"), query, body)
        self.answered()
        return answer

    def hear(self, line: Line, batch: list[Ack], answer: Any) -> None:
        """The answer to one body: every event of it is stored, refused, or to be sent again."""
        last = min(batch[-1].seq, answer["next_seq"] - 1)
        for error in answer["errors"]:
            frame = msgspec.convert({"type": "error", **error}, Frame)
            if line.hear_error(frame):
                self.stuck.add(line)
                return
        line.hear_ack(last)

    async def open(self, line: Line) -> None:
        """Make the session if there is none, and ask where this producer stands. Raises as `Rest.call` does."""
        document: Any = {"state": "running"}
        try:
            made = msgspec.json.encode({**(line.config or {}), "session_id": line.session_id})
            document = await self.rest.call("POST", "/v1/sessions", None, made)
        except RequestRefused as refused:
            if refused.code != "session_exists":
                raise
        answer = await self.append(line, [])
        frame = Frame("session.ready", next_seq=answer["next_seq"], state=document["state"])
        if not line.opened:
            line.hear_ready(msgspec.structs.replace(frame, next_turn=await self.next_turn(line)))

    async def next_turn(self, line: Line) -> int:
        """The turn behind the newest message; 1 for a key that may not read."""
        try:
            path = session_path(line.session_id, "/history")
            contents = (await self.rest.call("GET", path, {"open": "true", "limit": "1"}))["contents"]
        except RequestRefused:
            return 1
        return int(contents[-1]["turn_id"]) + 1 if contents else 1

    def take_refusal(self, line: Line, refused: RequestRefused) -> None:
        """A request about a line was refused as a whole. Raises what is about the client, or passing."""
        if refused.status in PASSING or refused.code.startswith("http_"):
            raise Unreachable(f"The server answered {refused.status}: {refused.detail}") from None
        self.answered()
        if refused.code == "unknown_session":  # the store is another one: make the session again
            line.opened = False
            self.has_more(line)
        elif refused.code == "session_erased":
            line.fail(SessionErased(refused.code, refused.detail))
        elif refused.status in FATAL and line.opened:
            raise refused
        else:
            line.fail(refused)
