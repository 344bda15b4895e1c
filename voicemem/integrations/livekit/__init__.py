"""LiveKit Agents: one line before `session.start` makes a call remembered as it was heard.

    from voicemem.integrations import livekit

    memory = livekit.attach(session, client, session_id="call-1")
    await session.start(agent=…, room=ctx.room)
    ctx.add_shutdown_callback(memory.aclose)

See docs/livekit.md. The framework is imported only here and only when it is used (`voicemem-core[livekit]`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voicemem.client import Client
from voicemem.integrations.background_session import AttachedMemory, BackgroundSession, check_installed, config_of
from voicemem.integrations.livekit.call import LiveKitCall
from voicemem.integrations.livekit.remembering import Remembering, chat_context

if TYPE_CHECKING:
    from livekit.agents import AgentSession

__all__ = ["AttachedMemory", "attach", "chat_context"]


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
    """Remember a call; to be used in a running event loop, before `session.start`.

    With `context`, each request to the LLM gets the messages as they were heard, in the place of the framework's own,
    and what `config` carries over from earlier calls of `user_id`: `{"memory_from": {"sessions": 3}}`; both are those
    of a new session. While the memory is away the framework's own messages are used; asking takes at most the client's
    `context_timeout_s`.

    Nothing raises into the framework, or holds it up, but for that. Raises `ImportError` without `livekit-agents`.
    """
    check_installed("livekit.agents", "LiveKit Agents", "livekit")
    background = BackgroundSession(client, session_id, producer, config_of(user_id, config))
    remembering = Remembering(background, lambda: session.history.items) if context else None
    call = LiveKitCall(session, background.send, f"{secrets.token_hex(4)}-", remembering)
    call.listen()
    return AttachedMemory(background, call.ledger, call.end)
