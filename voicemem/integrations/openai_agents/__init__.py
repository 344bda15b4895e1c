"""OpenAI Agents SDK: a session whose history is what was heard, and realtime sessions remembered as they were played.

    from voicemem.integrations import openai_agents

    memory = openai_agents.session(client, "call-1")
    result = await Runner.run(agent, "What is the weather in Oslo?", session=memory)
    memory.interrupted(heard_text="In Oslo it ")

    memory = openai_agents.attach(realtime_session, client, tracker=tracker, session_id="call-2")

See docs/openai-agents.md. The SDK is imported nowhere here: its sessions and listeners are protocols.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from voicemem.client import Client
from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.openai_agents.items import input_items
from voicemem.integrations.openai_agents.realtime import PlaybackTracker, RealtimeListener
from voicemem.integrations.openai_agents.session import AgentsSession

__all__ = ["AgentsSession", "RealtimeMemory", "attach", "input_items", "session"]


def session(
    client: Client,
    session_id: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    producer: str = "openai-agents",
) -> AgentsSession:
    """A session for `Runner.run(…, session=…)`; to be made in a running event loop.

    `config` is that of a new session: `{"user_id": "ann", "memory_from": {"sessions": 3}}` brings earlier calls along.
    """
    return AgentsSession(BackgroundSession(client, session_id, producer, config))


class RealtimeMemory:
    """The memory of one `RealtimeSession`."""

    def __init__(self, session: BackgroundSession, listener: RealtimeListener) -> None:
        self.session = session
        """What is sent and read; `session.session` is the client's session once it is open, else None."""
        self.listener = listener

    async def aclose(self) -> None:
        """End the call, and wait a few seconds until all of it is on disk. Never raises."""
        self.listener.end()
        await self.session.aclose()


def attach(
    session: Any,
    client: Client,
    *,
    tracker: PlaybackTracker | None = None,
    session_id: str | None = None,
    config: Mapping[str, Any] | None = None,
    producer: str = "openai-agents",
    bytes_per_ms: float = 48.0,
) -> RealtimeMemory:
    """Remember a call of a `RealtimeSession`; to be used in a running event loop, before the session is entered.

    `tracker` is the `RealtimePlaybackTracker` that your player reports to and that the session was made with; without
    it a cut is found by time. `bytes_per_ms` is that of the output's audio: 48 for PCM of 24 kHz, 8 for G.711.
    Nothing raises into the SDK, or holds it up.
    """
    background = BackgroundSession(client, session_id, producer, config)
    ledger = Ledger(background.send, f"{secrets.token_hex(4)}-")
    listener = RealtimeListener(ledger, tracker, bytes_per_ms)
    session.model.add_listener(listener)
    listener.follow_sending(session.model)
    return RealtimeMemory(background, listener)
