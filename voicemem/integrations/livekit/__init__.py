"""LiveKit Agents: one line before `session.start` makes a call remembered as it was heard.

    from voicemem.integrations import livekit

    memory = livekit.attach(session, client, session_id="call-1")
    await session.start(agent=…, room=ctx.room)
    ctx.add_shutdown_callback(memory.aclose)

See docs/livekit.md. The framework is imported only here and only when it is used (`voicemem-core[livekit]`).

Events of an `AgentSession` are reported to a ledger. Verified with livekit-agents 1.8.9. LiveKit speaks one segment
after another: `llm_node` makes the text of one or more, `tts_node` gets the text of one (or
`realtime_audio_output_node` its audio), and `transcription_node` is called once for each, just before it plays. Only
their order within one speech handle links them, and a context variable of the framework names the handle.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec
from weakref import WeakSet

from voicemem.client import Client
from voicemem.integrations.background_session import AttachedMemory, BackgroundSession, check_installed, config_of
from voicemem.integrations.ledger import Ledger, now_ms
from voicemem.integrations.livekit.nodes import Nodes
from voicemem.integrations.livekit.remembering import Remembering, chat_context, text_of
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    from livekit.agents import AgentSession

__all__ = ["AttachedMemory", "attach", "chat_context"]
NODES = ("on_user_turn_completed", "llm_node", "tts_node", "realtime_audio_output_node", "transcription_node")
UNNAMED = "default_agent"
"""The id of an agent without its own id or class."""
P = ParamSpec("P")


def handler(
    method: Callable[Concatenate[LiveKitCall, Any, P], None],
) -> Callable[Concatenate[LiveKitCall, Any, P], None]:
    """Return a callback for the framework, which first checks for a new agent or output, and never raises."""

    @wraps(method)
    def guarded(call: LiveKitCall, event: Any, /, *arguments: P.args, **named: P.kwargs) -> None:
        try:
            call.follow_agent()
            method(call, event, *arguments, **named)
        except Exception as error:  # whatever it is, the phone call continues
            call.ledger.missed(method.__name__, error)

    return guarded


class LiveKitCall:
    """Follows one `AgentSession` from its start to its close."""

    def __init__(
        self, session: Any, send: Callable[[JsonObject], object], prefix: str, remembering: Remembering | None
    ) -> None:
        self.session = session
        self.ledger = Ledger(send, prefix)
        self.nodes = Nodes(self.ledger, remembering)
        self.agents: WeakSet[Any] = WeakSet()
        self.agent: Any = None
        self.has_spoken = False
        """True if the caller's turn has a transcript; a turn without one was typed."""

    def listen(self) -> None:
        """Follow the session's events, and the texts that the program lets it say."""
        for name in ("say", "generate_reply"):
            self.nodes.wrap(self.session, name)
        for name, callback in {
            "user_state_changed": self.on_user_state,
            "user_input_transcribed": self.on_transcript,
            "conversation_item_added": self.on_item,
            "function_tools_executed": self.on_tools,
            "agent_false_interruption": self.on_false_interruption,
            "speech_created": self.on_speech,
            "close": self.on_close,
        }.items():
            try:
                self.session.on(name, callback)
            except Exception as error:  # a version without this event
                self.ledger.missed(name, error)

    def follow_agent(self) -> None:
        """Follow the current agent's nodes and the audio output, once each."""
        with suppress(RuntimeError):  # there is none yet
            agent = self.session.current_agent
            if agent not in self.agents:
                self.agents.add(agent)
                for name in NODES:
                    self.nodes.wrap(agent, name)
            if agent is not self.agent:
                self.agent, id = agent, getattr(agent, "id", None)
                self.ledger.agent = None if id == UNNAMED else id
        self.nodes.playback.watch(self.session.output.audio)

    def end(self, reason: str | None = None) -> None:
        self.ledger.end(now_ms(), reason)

    # Events of the session

    @handler
    def on_user_state(self, event: Any) -> None:
        """Report when the caller stopped speaking: at the event's time."""
        if "speaking" in (event.old_state, event.new_state):
            self.ledger.user_spoke(None if event.new_state == "speaking" else event.created_at * 1000)

    @handler
    def on_transcript(self, event: Any) -> None:
        language = None if event.language is None else str(event.language)
        self.has_spoken |= bool(event.is_final and event.transcript)
        at, user = event.created_at * 1000, event.speaker_id
        self.ledger.user_said(event.transcript, at, final=event.is_final, user=user, language=language)

    @handler
    def on_item(self, event: Any) -> None:
        """Take a message: the user's ends their turn, the agent's shows how a reply without audio ended."""
        item = event.item
        if getattr(item, "type", None) != "message":
            return
        if item.role == "user" and self.nodes.typed.report(item):
            return  # the caller's words meanwhile are a turn of their own
        if item.role == "user":
            # The words of a turn that the program ended late may have come with those of the previous turn.
            is_spoken = self.has_spoken or getattr(item, "transcript_confidence", None) is not None
            if text_of(item) and not is_spoken:
                self.ledger.user_typed(text_of(item), item.created_at * 1000)
            self.ledger.user_turn_ended()
            self.has_spoken = False
        elif item.role == "assistant" and (self.session.output.audio is None or not self.session.output.audio_enabled):
            self.nodes.playback.text_ended(item.interrupted, text_of(item), now_ms())

    @handler
    def on_tools(self, event: Any) -> None:
        for call, output in event.zipped():
            reply = self.nodes.speeches.tools.pop(call.call_id, None)
            self.ledger.tool_called(call.call_id, call.name, call.arguments, call.created_at * 1000, reply)
            if output is not None:
                self.ledger.tool_returned(call.call_id, output.output, output.created_at * 1000, call.name)

    @handler
    def on_false_interruption(self, event: Any) -> None:
        if event.resumed:
            self.nodes.playback.resumed(event.created_at * 1000)

    @handler
    def on_speech(self, event: Any) -> None:
        """Check for a new agent or output before anything is said."""

    @handler
    def on_close(self, event: Any) -> None:
        self.ledger.end(event.created_at * 1000, str(getattr(event.reason, "value", event.reason)))


def attach(
    session: AgentSession[Any],
    client: Client,
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    context: bool = False,
    config: Mapping[str, Any] | None = None,
    producer: str = "livekit",
) -> AttachedMemory:
    """Remember a call. Use it in a running event loop, before `session.start`.

    With `context`, each request to the LLM gets the messages as they were heard, in place of the framework's own, and
    text from earlier calls of `user_id` if `config` has `{"memory_from": {"sessions": 3}}`; both are for a new session.
    While the memory is away, the framework's own messages are used; the read takes at most the client's
    `context_timeout_s`.

    Nothing else blocks the framework, or raises into it. Raises `ImportError` without `livekit-agents`.
    """
    check_installed("livekit.agents", "LiveKit Agents", "livekit")
    background = BackgroundSession(client, session_id, producer, config_of(user_id, config))
    remembering = Remembering(background, lambda: session.history.items) if context else None
    call = LiveKitCall(session, background.send, f"{secrets.token_hex(4)}-", remembering)
    call.listen()
    return AttachedMemory(background, call.ledger, call.end)
