"""Conversations of frameworks that report texts and tools, while a player may report what was heard.

`Conversation` sends the reports of one session. `Sessions` keeps them on the event loop of the client, whatever thread
or event loop a run has. `Call` is for the program that plays the replies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from voicemem.client import Client, SyncClient
from voicemem.integrations.background_session import BackgroundSession, NewestEntries
from voicemem.integrations.runs import run_start, text_of
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
T = TypeVar("T")
P = ParamSpec("P")


class Conversation:
    """The reports of one session: texts and tools of the framework, and playback of its replies, by default the newest.

    `item` is the id of an utterance or reply in the memory, which other producers may use too.
    """

    def __init__(self, session: BackgroundSession) -> None:
        self.session = session
        """The way to the memory; `session.session` is the client's session once it is open, else None."""
        self.session_id = session.session_id
        self.prefix = f"{secrets.token_hex(4)}-"
        self.count = 0
        self.reply: str | None = None
        self.utterance: str | None = None
        """The user's newest utterance sent from here: the next tool calls are in its turn."""
        self.agent: str | None = None
        self.heard: NewestEntries[str, str] = NewestEntries(100)
        """Heard texts of cut replies, used while the memory is away."""
        self.after_tools = 0
        """The earliest time of the next event: an answer is later than its tool calls."""
        self.opening: frozenset[str] | None = None
        """The ids of the framework's messages from before the memory had any."""

    @property
    def is_over(self) -> bool:
        """True if the session has ended, and must be opened again for more."""
        return self.session.session is not None and self.session.session.state == "ended"

    # What your player calls

    def interrupted(
        self, heard_text: str | None = None, audio_end_ms: float | None = None, *, item: str | None = None
    ) -> None:
        """Report that the user cut a reply, by default the newest, after this text, or this much of its audio.

        Give `audio_end_ms` after `played`, or the length of the audio is not known.
        """
        self.cut(item, heard_text, audio_end_ms)

    def cut(self, item: str | None, heard_text: str | None, audio_end_ms: float | None) -> None:
        item = item or self.reply
        if item is not None:
            position = None if audio_end_ms is None else round(audio_end_ms)
            self.send({"type": "interrupt", "item": item, "heard_text": heard_text, "audio_end_ms": position})
            if heard_text is not None:
                self.heard[item] = heard_text

    def played(
        self,
        audio_ms: float | None = None,
        total_audio_ms: float | None = None,
        done: bool = False,
        *,
        item: str | None = None,
    ) -> None:
        """Report how far a reply was played, how long its audio is, and whether it was played to its end."""
        item = item or self.reply
        if item is not None:
            position, total = (None if ms is None else round(ms) for ms in (audio_ms, total_audio_ms))
            event = {"audio_ms": position, "total_audio_ms": total, "done": done or None}
            self.send({"type": "tts", "item": item, **event})

    def announced(self, text: str) -> None:
        """Report a text of the agent that no model made, such as a greeting."""
        self.reply = self.new_item()
        self.send({"type": "message", "item": self.reply, "role": "assistant", "source": "greeting", "text": text})

    def end(self, reason: str | None = None) -> None:
        """Report the end of the call."""
        self.send({"type": "session.end", "reason": reason})

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk. Never raises."""
        await self.session.aclose()

    # What the framework reports

    def new_item(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"

    def user_said(self, text: str, item: str) -> JsonObject:
        """Report a whole utterance. Return the event that takes it back."""
        self.utterance = item
        said = {"type": "asr", "item": item, "segment": 0, "final": True}
        self.send({**said, "text": text})
        return {**said, "text": ""}

    def reply_grew(self, text: str, item: str) -> None:
        self.reply = item
        self.send({"type": "llm.delta", "item": item, "text": text})

    def replied(self, text: str | None, item: str, agent: str | None = None) -> JsonObject:
        """Report a whole reply; without a text, its deltas so far. Return the event that takes it back."""
        self.reply = item
        self.send({"type": "llm.done", "item": item, "text": text, "agent": agent or self.agent})
        return {"type": "llm.cancel", "item": item}

    def tool_called(self, call_id: str, name: str, arguments: Any) -> None:
        """Report that the LLM called a tool, with JSON or a string of it."""
        call = {"type": "tool.call", "call_id": call_id, "name": name, "arguments": parsed(arguments)}
        self.send({**call, "item": self.utterance})

    def tool_returned(self, call_id: str, result: Any) -> None:
        self.send({"type": "tool.result", "call_id": call_id, "result": parsed(result)})

    async def known_messages(self, own: Sequence[Any]) -> list[Any] | None:
        """Return the messages of the memory in OpenAI's form; `own` are the framework's, in the form of `runs`."""
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return None
        messages: list[Any] = body["messages"]
        if self.opening is None:
            start = run_start(own)
            said = {text_of(one.content) for one in own[start:]}
            spoken = (one for one in messages if one["role"] in ("user", "assistant") and one["content"])
            is_new = all(one["content"] in said for one in spoken)
            self.opening = frozenset(one.id for one in own[:start] if one.id) if is_new else frozenset()
        return messages

    def send(self, event: JsonObject) -> None:
        """Send an event with the current time, without fields that are None."""
        known = {name: value for name, value in event.items() if value is not None}
        at = max(time.time_ns() // 1_000_000, self.after_tools)
        if event["type"].startswith("tool."):
            self.after_tools = at + 1
        self.session.send({"ts": at, **known})


def parsed(value: Any) -> Any:
    """Return the JSON of a string; anything else unchanged."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else msgspec.json.decode(msgspec.json.encode(value))
    except (*MALFORMED, TypeError, ValueError):
        return str(value)


def as_object(value: Any, name: str) -> JsonObject:
    """Return an object, for frameworks that take only these."""
    return value if isinstance(value, dict) else {name: value}


class ClientCalls:
    """Runs requests where their client runs: here, or on the event loop of a `SyncClient`."""

    def __init__(self, client: Client | SyncClient) -> None:
        self.client = client._wrapped if isinstance(client, SyncClient) else client
        self.thread = client._thread if isinstance(client, SyncClient) else None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.thread is None:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.thread.loop))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a request for code without asyncio. Raises `RuntimeError` unless there is a `SyncClient`."""
        if self.thread is None:
            work.close()
            raise RuntimeError("Calls without asyncio need a SyncClient; a Client serves those with it, such as aget.")
        return self.thread.run(work)


M = TypeVar("M", bound=Conversation)


class Sessions(Generic[M]):
    """The sessions of one plugin; `make` creates their conversations. No method raises."""

    def __init__(
        self,
        client: Client | SyncClient,
        make: Callable[[BackgroundSession], M],
        config: Mapping[str, Any] | None,
        producer: str,
    ) -> None:
        self.client = client._wrapped if isinstance(client, SyncClient) else client
        self.loop: asyncio.AbstractEventLoop | None = client._thread.loop if isinstance(client, SyncClient) else None
        """The event loop of the sessions; for an asynchronous client, None until the first use."""
        self.make = make
        self.config = config
        self.producer = producer
        self.open: dict[str, M] = {}
        self.logged: set[str] = set()

    def session(self, session_id: str) -> M:
        conversation = self.open.get(session_id)
        if conversation is None or conversation.is_over:
            background = BackgroundSession(self.client, session_id, self.producer, self.config)
            conversation = self.open[session_id] = self.make(background)
        return conversation

    def find_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of this thread, which becomes that of an asynchronous client."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        self.loop = self.loop or running
        return running

    def soon(self, session_id: str, do: Callable[[M], object]) -> None:
        """Call `do` with a session's conversation: now, or soon on the event loop of the client."""

        def safely() -> None:
            with self.guarded("The memory has missed something of a run"):
                do(self.session(session_id))

        try:
            if self.find_loop() is self.loop is not None:
                safely()
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(safely)
            else:
                self.log_once("Runs without asyncio are not remembered: they need a SyncClient.")
        except RuntimeError as error:  # the loop was closed, and the plugin is still used
            self.log_once(f"Runs are not remembered: {error}.")

    async def ask(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> T | None:
        """Return the answer of a session's conversation; None if there is none."""
        with self.guarded():
            if self.find_loop() is self.loop:
                return await ask(self.session(session_id))
            return await asyncio.wait_for(asyncio.wrap_future(self.submitted(session_id, ask)), self.limit_s)
        return None

    def wait(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> T | None:
        """Ask a session's conversation, for code that is not asynchronous."""
        with self.guarded():
            if self.find_loop() is self.loop:
                raise RuntimeError("a run on the client's own event loop must be asynchronous, such as ainvoke")
            return self.submitted(session_id, ask).result(self.limit_s)
        return None

    @property
    def limit_s(self) -> float:
        return self.client.options.context_timeout_s + 1.0  # more than the read may take

    def submitted(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> Future[T]:
        """Return a future of the client's event loop. Raises `RuntimeError` if the loop does not run."""
        if self.loop is None or self.loop.is_closed():
            raise RuntimeError("the client's event loop does not run")

        async def answer() -> T:
            return await ask(self.session(session_id))

        return asyncio.run_coroutine_threadsafe(answer(), self.loop)

    @contextmanager
    def guarded(self, consequence: str = "The agent continues with its own messages") -> Iterator[None]:
        """Log any exception once, so that the agent continues."""
        try:
            yield
        except Exception as error:
            self.log_once(f"{consequence}: {error!r}.")

    def log_once(self, sentence: str) -> None:
        if sentence not in self.logged:
            self.logged.add(sentence)
            LOG.warning("%s", sentence)


def reported(method: Callable[Concatenate[Conversation, P], None]) -> Callable[Concatenate[Call, P], None]:
    """Return a method of `Call` that soon calls the method of its conversation."""

    @wraps(method)
    def report(call: Call, /, *arguments: P.args, **named: P.kwargs) -> None:
        call.sessions.soon(call.session_id, lambda memory: getattr(memory, method.__name__)(*arguments, **named))

    return report


class Call:
    """One call, to which your player reports from any thread; `item` names a reply, by default the newest.

    No method raises, and none but `aclose` and `close` waits.
    """

    def __init__(self, sessions: Sessions[Any], session_id: str) -> None:
        self.sessions = sessions
        self.session_id = session_id

    announced = reported(Conversation.announced)
    interrupted = reported(Conversation.interrupted)
    played = reported(Conversation.played)
    end = reported(Conversation.end)

    async def aclose(self) -> None:
        """Wait a few seconds until all of it is on disk."""
        await self.sessions.ask(self.session_id, Conversation.aclose)

    def close(self) -> None:
        """Like `aclose`, for code that is not asynchronous."""
        self.sessions.wait(self.session_id, Conversation.aclose)
