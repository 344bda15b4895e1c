"""Events over HTTP while the websocket cannot be reached, with the same producers and acks."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from voicemem.client import errors
from voicemem.client.buffer import Ack
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Producer, ServerFrame
from voicemem.client.transport.rest import RestClient, session_path


@dataclass(eq=False)
class HttpFallback:
    """Posts the events of producers.

    `on_answer` is called whenever the server answers, `on_failure` when it does not; an error from that ends `run`.
    """

    rest: RestClient
    options: Options
    on_answer: Callable[[], None]
    on_failure: Callable[[errors.Unreachable], None]

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.options)
        self.pending: dict[Producer, None] = {}
        """Producers to open or with something to send, in their order of arrival."""
        self.declaring: set[Producer] = set()
        """Producers that no longer have the seq that the server expects, and declare a gap with their next events."""
        self.blocked: set[Producer] = set()
        """Producers that only an open over a websocket can revive."""
        self.wake = asyncio.Event()
        self.stopping = asyncio.Event()
        self.slots = asyncio.Semaphore(8)  # producers whose events are posted at the same time

    def open_producer(self, producer: Producer) -> None:
        self.schedule(producer)

    def schedule(self, producer: Producer) -> None:
        if producer not in self.blocked:
            self.pending[producer] = None
            self.wake.set()

    def remove(self, producer: Producer) -> None:
        self.pending.pop(producer, None)

    def stop(self) -> None:
        self.stopping.set()
        self.wake.set()

    async def run(self) -> None:
        """Post until `stop` is called, then finish the current requests. Raises `ClientError`."""
        while not self.stopping.is_set():
            if self.pending:
                await self.post_round()
            await self.wake.wait()
            self.wake.clear()

    async def post_round(self) -> None:
        producers, self.pending = list(self.pending), {}
        outcomes = await asyncio.gather(*(self.post(producer) for producer in producers), return_exceptions=True)
        lost: errors.Unreachable | None = None
        for producer, outcome in zip(producers, outcomes, strict=True):
            if isinstance(outcome, errors.Unreachable):
                lost = outcome
                self.schedule(producer)
            elif isinstance(outcome, BaseException):
                raise outcome
        if lost is not None:
            self.on_failure(lost)
            longest_s = None if isinstance(lost, errors.Busy) else self.options.away_delay_s
            with suppress(TimeoutError):
                async with asyncio.timeout(self.backoff.next_s(longest_s)):
                    await self.stopping.wait()
        else:
            self.backoff.reset()

    async def post(self, producer: Producer) -> None:
        async with self.slots:
            if producer.finished:
                return
            try:
                if not producer.opened:
                    await self.create(producer)
                batch = producer.buffer.take_batch(256 * 1024)  # bytes that share a body
                if batch:
                    try:
                        self.apply_answer(producer, batch, await self.post_batch(producer, batch))
                    except errors.ClientError:
                        producer.buffer.rewind(batch[0].seq)
                        raise
                    if producer.buffer.unsent:
                        self.schedule(producer)
            except errors.RequestRefused as refused:
                self.on_refusal(producer, refused)

    async def post_batch(self, producer: Producer, batch: list[Ack]) -> Any:
        """Post events. Returns `next_seq` and `errors`, whether or not all were stored.

        Raises `RequestRefused` for an error of the whole request, and `Unreachable`.
        """
        query = {"producer": producer.name}
        # The epoch lets the server refuse this process once another has opened the producer. But an open whose answer
        # was lost may have raised it too: an outdated epoch would be refused as superseded, by our own open, for good.
        if producer.epoch is not None and not producer.unanswered_opens:
            query["epoch"] = str(producer.epoch)
        body = b"\n".join(ack.payload for ack in batch) or b"[]"
        if batch and producer in self.declaring:
            query["from_seq"] = str(batch[0].seq)
        path = session_path(producer.session_id, "/events")
        try:
            answer = await self.rest.request("POST", path, query, body)
        except errors.RequestRefused as refused:
            if not refused.problem.keys() >= {"next_seq", "errors"}:
                raise
            answer = refused.problem
        self.on_answer()
        return answer

    def apply_answer(self, producer: Producer, batch: list[Ack], answer: Any) -> None:
        """Handle the answer to one body: each event is stored, refused, or must be resent."""
        for error in answer["errors"]:
            frame = msgspec.convert({"type": "error", **error}, ServerFrame)
            if not producer.on_error(frame):
                continue
            if frame.code == "seq_gap" and producer not in self.declaring:  # declare the gap
                self.declaring.add(producer)
                producer.buffer.rewind()
                self.schedule(producer)
            else:
                self.blocked.add(producer)
            return
        self.declaring.discard(producer)
        producer.on_ack(min(batch[-1].seq, answer["next_seq"] - 1))

    async def create(self, producer: Producer) -> None:
        """Create the session if it does not exist, and ask for its position. Raises as `RestClient.request`."""
        document: Any = {"state": "running"}
        try:
            body = {**(producer.config or {}), "session_id": producer.session_id}
            document = await self.rest.request("POST", "/v1/sessions", None, body)
        except errors.RequestRefused as refused:
            if refused.code != "session_exists":
                raise
        answer = await self.post_batch(producer, [])
        if producer.opened:
            return
        contents: list[Any] = []
        try:
            path = session_path(producer.session_id, "/history")
            contents = (await self.rest.request("GET", path, {"open": "true", "limit": "1"}))["contents"]
        except errors.RequestRefused:  # the key may not read
            pass
        turn = int(contents[-1]["turn_id"]) + 1 if contents else 1
        state, next_seq = document["state"], answer["next_seq"]
        producer.on_ready(ServerFrame("session.ready", next_seq=next_seq, state=state, next_turn=turn))

    def on_refusal(self, producer: Producer, refused: errors.RequestRefused) -> None:
        """Handle the refusal of a whole request. Raises if it concerns the client as a whole, or is transient."""
        if errors.is_transient(refused.code, refused.status) or refused.code.startswith("http_"):
            raise errors.transient_error(self.rest.url, refused.code, refused.status, refused.detail) from None
        self.on_answer()
        if refused.code == "unknown_session":  # the store has changed: create the session again
            producer.opened = False
            self.schedule(producer)
        elif refused.code == "session_erased":
            producer.fail(errors.SessionErased(refused.code, refused.detail))
        elif refused.status in errors.CLIENT_FATAL_STATUSES and producer.opened:
            raise refused
        else:
            producer.fail(refused)
