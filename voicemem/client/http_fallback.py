"""Events over HTTP, for as long as the websocket cannot be reached: the same lines, the same acks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.client.buffer import Ack
from voicemem.client.errors import ClientError, RequestRefused, SessionErased, Unreachable
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Producer, ServerFrame
from voicemem.client.rest import TRANSIENT_STATUSES, RestClient, session_path

BODY_BYTES = 256 * 1024
MAX_CONCURRENT_POSTS = 8
"""Sessions that are posted for at the same time."""
FATAL_STATUSES = frozenset({401, 403})


class HttpFallback:
    """Posts what lines hold.

    `answered` is called whenever the server answers, `failed` when it does not; what that raises ends the posting.
    """

    def __init__(
        self, rest: RestClient, options: Options, on_answer: Callable[[], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self.rest = rest
        self.backoff = Backoff(options)
        self.on_answer = on_answer
        self.on_failure = on_failure
        self.pending: dict[Producer, None] = {}
        """Lines to be opened or with something to send, in the order in which they came."""
        self.blocked: set[Producer] = set()
        """Lines with a hole that only a websocket's `from_seq` can tell of."""
        self.wake = asyncio.Event()
        self.slots = asyncio.Semaphore(MAX_CONCURRENT_POSTS)

    def open_producer(self, producer: Producer) -> None:
        self.schedule(producer)

    def schedule(self, producer: Producer) -> None:
        if producer not in self.blocked:
            self.pending[producer] = None
            self.wake.set()

    def remove(self, producer: Producer) -> None:
        self.pending.pop(producer, None)

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
                if not stopping.is_set() and self.pending:
                    await self.post_round(stop)
        finally:
            stop.cancel()

    async def post_round(self, stop: asyncio.Task[Any]) -> None:
        """Everything that waits, once; after a failure there is a pause."""
        producers, self.pending = list(self.pending), {}
        outcomes = await asyncio.gather(*(self.post(producer) for producer in producers), return_exceptions=True)
        lost: Unreachable | None = None
        for producer, outcome in zip(producers, outcomes, strict=True):
            if isinstance(outcome, Unreachable):
                lost = outcome
                self.schedule(producer)
            elif isinstance(outcome, BaseException):
                raise outcome
        if lost is not None:
            self.on_failure(lost)
            await asyncio.wait({stop}, timeout=self.backoff.next_s())
        else:
            self.backoff.reset()

    async def post(self, producer: Producer) -> None:
        """Open a line if need be, and post one body of its events."""
        async with self.slots:
            if producer.finished:
                return
            try:
                if not producer.opened:
                    await self.open(producer)
                await self.post_events(producer)
            except RequestRefused as refused:
                self.on_refusal(producer, refused)

    async def post_events(self, producer: Producer) -> None:
        batch = producer.buffer.take_batch(BODY_BYTES)
        if not batch:
            return
        try:
            self.apply_answer(producer, batch, await self.post_batch(producer, batch))
        except ClientError:
            producer.buffer.rewind(batch[0].seq)
            raise
        if producer.buffer.unsent:
            self.schedule(producer)

    async def post_batch(self, producer: Producer, batch: list[Ack]) -> Any:
        """Raises `RequestRefused`, `Unreachable`."""
        query = {"producer": producer.producer}
        if (
            producer.epoch is not None and not producer.unanswered_opens
        ):  # an open without answer may have raised the epoch
            query["epoch"] = str(producer.epoch)
        body = b"\n".join(ack.payload for ack in batch) or b"[]"
        answer = await self.rest.request("POST", session_path(producer.session_id, "/events"), query, body)
        self.on_answer()
        return answer

    def apply_answer(self, producer: Producer, batch: list[Ack], answer: Any) -> None:
        """The answer to one body: every event of it is stored, refused, or to be sent again."""
        last = min(batch[-1].seq, answer["next_seq"] - 1)
        for error in answer["errors"]:
            frame = msgspec.convert({"type": "error", **error}, ServerFrame)
            if producer.on_error(frame):
                self.blocked.add(producer)
                return
        producer.on_ack(last)

    async def open(self, producer: Producer) -> None:
        """Make the session if there is none, and ask where this producer stands. Raises as `Rest.call` does."""
        document: Any = {"state": "running"}
        try:
            made = msgspec.json.encode({**(producer.config or {}), "session_id": producer.session_id})
            document = await self.rest.request("POST", "/v1/sessions", None, made)
        except RequestRefused as refused:
            if refused.code != "session_exists":
                raise
        answer = await self.post_batch(producer, [])
        frame = ServerFrame("session.ready", next_seq=answer["next_seq"], state=document["state"])
        if not producer.opened:
            producer.on_ready(msgspec.structs.replace(frame, next_turn=await self.next_turn(producer)))

    async def next_turn(self, producer: Producer) -> int:
        """The turn behind the newest message; 1 for a key that may not read."""
        try:
            path = session_path(producer.session_id, "/history")
            contents = (await self.rest.request("GET", path, {"open": "true", "limit": "1"}))["contents"]
        except RequestRefused:
            return 1
        return int(contents[-1]["turn_id"]) + 1 if contents else 1

    def on_refusal(self, producer: Producer, refused: RequestRefused) -> None:
        """A request about a line was refused as a whole. Raises what is about the client, or passing."""
        if refused.status in TRANSIENT_STATUSES or refused.code.startswith("http_"):
            raise Unreachable(f"The server answered {refused.status}: {refused.detail}") from None
        self.on_answer()
        if refused.code == "unknown_session":  # the store is another one: make the session again
            producer.opened = False
            self.schedule(producer)
        elif refused.code == "session_erased":
            producer.fail(SessionErased(refused.code, refused.detail))
        elif refused.status in FATAL_STATUSES and producer.opened:
            raise refused
        else:
            producer.fail(refused)
