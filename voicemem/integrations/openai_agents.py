"""OpenAI Agents SDK: a session whose history is what was heard, and realtime sessions remembered as they were played.

    from voicemem.integrations import openai_agents

    memory = openai_agents.session(client, "call-1")
    result = await Runner.run(agent, "What is the weather in Oslo?", session=memory)
    memory.interrupted(heard_text="In Oslo it ")

    memory = openai_agents.attach(realtime_session, client, tracker=tracker, session_id="call-2")

See docs/openai-agents.md. The SDK is imported nowhere here: its sessions and listeners are protocols.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Protocol

from voicemem.client import Client
from voicemem.integrations.background_session import AttachedMemory, BackgroundSession, NewestEntries, config_of
from voicemem.integrations.conversation import Conversation, parsed
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
HANDOFF = "transfer_to_"
"""The beginning of the names of tools that hand over to another agent."""
__all__ = ["AgentsSession", "AttachedMemory", "attach", "input_items", "session"]


def input_items(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the items for messages in OpenAI's form, as `session.context()` returns them in `messages`."""
    items: list[JsonObject] = []
    for message in messages:
        content = message.get("content")
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": content or ""})
            continue
        if content:
            items.append({"role": message["role"], "content": content})
        for call in message.get("tool_calls") or ():
            function = {name: call["function"][name] for name in ("name", "arguments")}
            items.append({"type": "function_call", "call_id": call["id"], **function})
    return items


def newest(items: list[JsonObject], limit: int | None) -> list[JsonObject]:
    """Return the newest items, without results of calls that are left out."""
    if limit is None or len(items) <= limit:
        return items
    chosen = items[len(items) - limit :]
    called = {item["call_id"] for item in chosen if item.get("type") == "function_call"}
    return [one for one in chosen if one.get("type") != "function_call_output" or one["call_id"] in called]


def text_of(item: Any) -> str:
    """Return the text of an item; parts without text are left out."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part.get("text") or part.get("transcript") or "" for part in parts if isinstance(part, dict))


class AgentsSession(Conversation):
    """An `agents.memory.Session`, from which the SDK gets the items before a run, and to which it adds new ones."""

    session_settings: Any = None

    def __init__(self, session: BackgroundSession) -> None:
        super().__init__(session)
        self.added: deque[tuple[JsonObject, JsonObject | None]] = deque(maxlen=1000)
        """Items that this process added, used while the memory is away, each with the event that takes it back."""
        self.handoffs: NewestEntries[str, None] = NewestEntries(100)
        """The calls of tools that hand over to another agent."""

    # What the SDK calls

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the newest `limit` items as heard; while the memory is away, those that this process added."""
        body = await self.session.context(style="openai", tools=True)
        items = [item for item, _ in self.added] if body is None else input_items(body["messages"])
        return newest(items, limit)

    async def add_items(self, items: list[Any]) -> None:
        """Add the new items of a run, without waiting."""
        for item in items:
            try:
                self.add(dict(item))
            except Exception as error:  # items of a kind that this version does not know
                LOG.warning("The memory has missed an item of a run: %r.", error)

    async def pop_item(self) -> Any | None:
        """Take back the newest item that this process added, and return it; None if there is none.

        Traces of tools stay in the journal, where a call without a result is in no context.
        """
        if not self.added:
            return None
        item, undo = self.added.pop()
        if undo is not None:
            self.send(undo)
        return item

    async def clear_session(self) -> None:
        """Forget everything up to now. Raises `ClientError` while the memory is away."""
        self.added.clear()
        self.reply = None
        if self.session.session is not None:
            await self.session.session.flush(self.session.client.options.read_timeout_s)
            await self.session.session.forget(everything=True)

    # Events

    def cut(self, item: str | None, heard_text: str | None, audio_end_ms: float | None) -> None:
        super().cut(item, heard_text, audio_end_ms)
        own = next((one for one, _ in reversed(self.added) if one.get("role") == "assistant"), None)
        if own is not None and heard_text is not None and item in (None, self.reply):
            own["content"] = heard_text

    def add(self, item: JsonObject) -> None:
        kind, role = item.get("type", "message"), item.get("role")
        undo = None
        if kind == "function_call":
            self.tool_called(item["call_id"], item["name"], item["arguments"])
            if item["name"].startswith(HANDOFF):
                self.handoffs[item["call_id"]] = None
        elif kind == "function_call_output":
            self.tool_returned(item["call_id"], item["output"])
            if item["call_id"] in self.handoffs:
                self.hand_over(parsed(item["output"]))
        elif kind == "message" and role in ("user", "assistant") and (text := text_of(item)):
            if role == "user":  # items do not name the agent that answers
                self.agent = None
            said = self.user_said if role == "user" else self.replied
            undo = said(text, self.new_item())
        self.added.append((item, undo))

    def hand_over(self, result: Any) -> None:
        """Note the agent that replies in this run from now on."""
        agent = result.get("assistant") if isinstance(result, dict) else None
        self.agent = agent if isinstance(agent, str) and agent else self.agent


class PlaybackTracker(Protocol):
    """The part of the SDK's `RealtimePlaybackTracker` that is used here."""

    def get_state(self) -> Any:
        """A mapping with `current_item_id` and `elapsed_ms`."""


class RealtimeListener:
    """A `RealtimeModelListener`, which gets each event of the model. It never raises and never waits."""

    def __init__(self, session: Any, ledger: Ledger, tracker: PlaybackTracker | None, bytes_per_ms: float) -> None:
        self.session = session
        self.ledger = ledger
        self.tracker = tracker
        self.bytes_per_ms = bytes_per_ms
        self.users: set[str] = set()
        self.is_stopped = False
        """True if the program, not the caller, has stopped the model."""
        self.handlers: dict[str, Callable[[Any, float], None]] = {
            "item_updated": self.on_item,
            "input_audio_transcription_completed": self.on_transcript,
            "transcript_delta": self.on_delta,
            "output_text_delta": self.on_delta,
            "audio": self.on_audio,
            "audio_interrupted": self.on_interrupted,
            "turn_ended": self.on_turn_ended,
            "function_call": self.on_tool_call,
            "raw_server_event": self.on_raw,
        }

    async def on_event(self, event: Any) -> None:
        if getattr(event, "type", None) in self.handlers:
            self.guarded(self.follow_player, event)
            self.guarded(self.handlers[event.type], event)

    def guarded(self, handler: Callable[[Any, float], None], event: Any) -> None:
        try:
            handler(event, now_ms())
        except Exception as error:  # whatever it is, the phone call continues
            self.ledger.missed(getattr(event, "type", None) or type(event).__name__, error)

    def follow_sending(self, model: Any) -> None:
        """Follow the SDK's events to the model: results of tools are nowhere else."""
        original = model.send_event

        @wraps(original)
        async def send_event(event: Any) -> None:
            self.guarded(self.on_sending, event)
            await original(event)

        model.send_event = send_event

    def on_sending(self, event: Any, at: float) -> None:
        kind = type(event).__name__
        if kind == "RealtimeModelSendToolOutput":
            self.ledger.tool_returned(event.tool_call.call_id, parsed(event.output), at, event.tool_call.name)
        elif kind == "RealtimeModelSendInterrupt":
            self.is_stopped = True

    # The caller

    def on_item(self, event: Any, at: float) -> None:
        """Place the caller's turn as soon as it begins, since its transcript may come after the reply."""
        item = event.item
        if getattr(item, "role", None) != "user" or item.item_id in self.users:
            return
        texts = [part.text for part in item.content if part.type == "input_text" and part.text]
        self.users.add(item.item_id)
        if texts and texts[0].startswith("guardrail triggered: "):  # the SDK itself speaks for the user
            return
        if texts:
            self.ledger.user_typed("\n".join(texts), at)
        else:
            self.ledger.transcribed(item.item_id, "", at, False)

    def on_raw(self, event: Any, at: float) -> None:
        """Report the end of the caller's speech, for which the SDK has no event of its own."""
        if event.data.get("type") == "input_audio_buffer.speech_stopped":
            self.users.add(event.data["item_id"])
            self.ledger.transcribed(event.data["item_id"], "", at, False, ended=True)

    def on_transcript(self, event: Any, at: float) -> None:
        self.users.add(event.item_id)
        self.ledger.transcribed(event.item_id, event.transcript.strip(), at, True)

    # The agent

    def on_delta(self, event: Any, at: float) -> None:
        """Report text of the current agent, which the SDK's events do not name."""
        agent = getattr(getattr(self.session, "_current_agent", None), "name", None)
        self.ledger.agent = agent or self.ledger.agent
        self.ledger.said(event.item_id, event.delta, at)

    def on_audio(self, event: Any, at: float) -> None:
        self.ledger.audio_made(event.item_id, len(event.data) / self.bytes_per_ms)

    def on_turn_ended(self, event: Any, at: float) -> None:
        """Report that the response is generated; it may play for long."""
        for reply in self.ledger.open_replies:
            if not reply.complete:
                self.ledger.said_all(reply.name, at)
                self.ledger.span_made(reply.name, at)
                if not reply.spoken.audio_ms:
                    self.ledger.finished(reply.name, at)

    def on_tool_call(self, event: Any, at: float) -> None:
        self.ledger.tool_called(event.call_id, event.name, parsed(event.arguments or "{}"), at)

    # The player

    def position(self) -> tuple[str | None, float]:
        """Return the player's current item and position, before the SDK forgets them."""
        state = {} if self.tracker is None else self.tracker.get_state()
        return state.get("current_item_id"), state.get("elapsed_ms") or 0.0

    def follow_player(self, event: Any, at: float) -> None:
        """Report the current position, and that all earlier replies were played to the end."""
        current, played_ms = self.position()
        names = [reply.name for reply in self.ledger.open_replies]
        for item_id in names[: names.index(current)] if current in names else ():
            self.ledger.finished(item_id, at)
        if current in names:
            self.ledger.played(current, played_ms, at)

    def on_interrupted(self, event: Any, at: float) -> None:
        current, played_ms = self.position()
        cause, self.is_stopped = "command" if self.is_stopped else "user_speech", False
        for reply in self.ledger.open_replies:
            if reply.name == current and reply.complete and reply.is_played_out(played_ms):
                self.ledger.finished(reply.name, at)
            elif reply.name == current or (self.tracker is None and reply.name == event.item_id):
                self.ledger.cut(reply.name, None if self.tracker is None else played_ms, at, cause=cause)
            elif self.tracker is None:
                self.ledger.finished(reply.name, at)
            elif reply.position_ms:
                self.ledger.cut(reply.name, None, at, cause=cause)
            else:
                self.ledger.withdrawn(reply.name, at)

    def end(self, reason: str | None = None) -> None:
        """End the call: audio not played by now is not heard."""
        at = now_ms()
        self.follow_player(None, at)
        current, played_ms = self.position()
        for reply in self.ledger.open_replies:
            if self.tracker is None or (reply.name == current and reply.is_played_out(played_ms)):
                self.ledger.finished(reply.name, at)
        self.ledger.end(at, reason)


def session(
    client: Client,
    session_id: str | None = None,
    *,
    user_id: str | None = None,
    config: Mapping[str, Any] | None = None,
    producer: str = "openai-agents",
) -> AgentsSession:
    """Return a session for `Runner.run(…, session=…)`. Call it in a running event loop.

    `user_id` and `config` are for a new session: `{"memory_from": {"sessions": 3}}` carries earlier calls over.
    """
    return AgentsSession(BackgroundSession(client, session_id, producer, config_of(user_id, config)))


def attach(
    session: Any,
    client: Client,
    *,
    tracker: PlaybackTracker | None = None,
    session_id: str | None = None,
    user_id: str | None = None,
    config: Mapping[str, Any] | None = None,
    producer: str = "openai-agents",
    bytes_per_ms: float = 48.0,
) -> AttachedMemory:
    """Remember a call of a `RealtimeSession`. Call it in a running event loop, before the session is entered.

    `tracker` is the `RealtimePlaybackTracker` to which your player reports and with which the session was made;
    without it a cut is found by time. `bytes_per_ms` is the rate of the output's audio: 48 for PCM of 24 kHz, 8 for
    G.711. `user_id` and `config` are for a new session. Nothing raises into the SDK, or blocks it.
    """
    background = BackgroundSession(client, session_id, producer, config_of(user_id, config))
    ledger = Ledger(background.send, f"{secrets.token_hex(4)}-")
    listener = RealtimeListener(session, ledger, tracker, bytes_per_ms)
    session.model.add_listener(listener)
    listener.follow_sending(session.model)
    return AttachedMemory(background, ledger, listener.end)
