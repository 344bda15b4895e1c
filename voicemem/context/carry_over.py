"""Carry-over: what a session knows from earlier sessions of its user, journaled once so that it never changes."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from voicemem.config.session import MemoryFrom, SessionConfig
from voicemem.context.policies.summary import render_messages
from voicemem.errors import SessionSetAside
from voicemem.protocol.events import CarriedSession, MemoryCarried
from voicemem.sessions.derived import append_derived
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.records import SessionFilter
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message

MAX_CHARACTERS = 16 * 1024
"""Limit for the messages of one session."""
PAGE, MAX_PAGES = 16, 16
"""How many earlier sessions are read at a time, and how often: sessions in which nothing was said are skipped."""


def may_carry_over(stream: Stream, session_config: SessionConfig) -> bool:
    """Whether a session may carry something over: not one that has ended, or has no user."""
    has_source = session_config.memory_from is not None and session_config.user_id is not None
    return has_source and stream.state == "running"


async def carry_over(memories: ReadModelCache, stream: Stream, session_config: SessionConfig) -> ReadModel:
    """Journal what a session carries over, which it must be allowed to (`may_carry_over`); its memory after that."""
    memory_from, user_id = session_config.memory_from, session_config.user_id
    assert memory_from is not None
    assert user_id is not None
    carried = await collect_carried_sessions(memories, stream, user_id, memory_from)
    _, memory = await append_derived(
        memories,
        stream,
        lambda memory: MemoryCarried(sessions=carried) if memory.state.carried is None else None,
        lambda: stream.started_ms,  # before everything else in the session
    )
    return memory


async def collect_carried_sessions(
    memories: ReadModelCache, stream: Stream, user_id: str, memory_from: MemoryFrom
) -> tuple[CarriedSession, ...]:
    """The texts of the user's last ended sessions, the oldest first."""
    carried: list[CarriedSession] = []
    ended = SessionFilter(project=stream.project, state="ended", user_id=user_id, limit=PAGE)
    for _ in range(MAX_PAGES):
        page = await memories.journal.list_sessions(ended)
        for earlier in page:
            text = await earlier_text(memories, earlier, memory_from)
            if text:
                carried.append(CarriedSession(earlier.id, f"{heading(earlier)}\n{text}"))
            if len(carried) == memory_from.sessions:
                return tuple(reversed(carried))
        if len(page) < PAGE:
            break
        ended = msgspec.structs.replace(ended, after=(page[-1].started_ms, page[-1].key))
    return tuple(reversed(carried))


async def earlier_text(memories: ReadModelCache, earlier: Stream, memory_from: MemoryFrom) -> str:
    """What an earlier session adds; nothing if it is set aside, since that must not stop this one."""
    try:
        return session_text(await memories.get(earlier), memory_from)
    except SessionSetAside:
        return ""


def heading(stream: Stream) -> str:
    began = datetime.fromtimestamp(stream.started_ms / 1000, UTC)
    return f"From an earlier call with this user, begun {began:%Y-%m-%d %H:%M} UTC:"


def session_text(memory: ReadModel, memory_from: MemoryFrom) -> str:
    """A session's newest messages; or, if configured, its summary and the messages after it.

    When those are too many, a note after the summary says how many are left out.
    """
    messages, summary = memory.remembered_messages(), memory.state.summary
    if memory_from.what == "messages" or summary is None:
        return render_messages(take_newest(messages, memory_from.max_messages))
    rest = messages[bisect_right(messages, summary.through_turn, key=attrgetter("turn_id")) :]
    shown = take_newest(rest, len(rest))
    left_out = len(rest) - len(shown)
    note = f"(… {left_out} message{'s' * (left_out > 1)} left out)" if left_out else ""
    return "\n".join(filter(None, (summary.text, note, render_messages(shown))))


def take_newest(messages: list[Message], count: int) -> list[Message]:
    """Up to `count` of the newest messages, fewer if they are long."""
    left, first = MAX_CHARACTERS, len(messages)
    while first and len(messages) - first < count and (left := left - len(messages[first - 1].content)) >= 0:
        first -= 1
    return messages[first:]
