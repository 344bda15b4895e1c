"""Carrying over: what a session knows from earlier ones of its user, journaled once so that it stays the same."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from operator import attrgetter

from voicemem.admission import Stream
from voicemem.appending import append_made
from voicemem.config import MemoryFrom, SessionConfig
from voicemem.events import CarriedSession, MemoryCarried
from voicemem.memories import Memories
from voicemem.memory import Memory
from voicemem.messages import Message
from voicemem.policies.summary import joined
from voicemem.store.base import StreamFilter

MAX_CHARACTERS = 16 * 1024
"""Of the messages of one session."""


async def carry(memories: Memories, stream: Stream, settings: SessionConfig) -> Memory:
    """The memory of a session that has what is carried over. One that has ended, or has no user, gets no more."""
    wanted = settings.memory_from
    if wanted is None or settings.user_id is None or stream.state != "running":
        return await memories.at(stream)
    carried = await carried_for(memories, stream, settings.user_id, wanted)
    _, memory = await append_made(
        memories,
        stream,
        lambda memory: MemoryCarried(sessions=carried) if memory.state.carried is None else None,
        lambda: stream.started_ms,  # it stands before everything
    )
    return memory


async def carried_for(
    memories: Memories, stream: Stream, user_id: str, wanted: MemoryFrom
) -> tuple[CarriedSession, ...]:
    """The user's last sessions that have ended, the oldest first."""
    ended = StreamFilter(project=stream.project, state="ended", user_id=user_id, limit=wanted.sessions)
    found = []
    for earlier in reversed(await memories.journal.streams(ended)):
        text = text_of(await memories.at(earlier), wanted)
        if text:
            found.append(CarriedSession(earlier.id, f"{heading(earlier)}\n{text}"))
    return tuple(found)


def heading(stream: Stream) -> str:
    began = datetime.fromtimestamp(stream.started_ms / 1000, UTC)
    return f"From an earlier call with this user, begun {began:%Y-%m-%d %H:%M} UTC:"


def text_of(memory: Memory, wanted: MemoryFrom) -> str:
    """A session's summary, if it has one and it is wanted, and its newest messages that are not in it."""
    messages, summary = memory.remembered_messages(), memory.state.summary
    if wanted.what == "messages" or summary is None:
        return joined(newest(messages, wanted.max_messages))
    rest = messages[bisect_right(messages, summary.through_turn, key=attrgetter("turn_id")) :]
    return "\n".join(filter(None, (summary.text, joined(newest(rest, wanted.max_messages)))))


def newest(messages: list[Message], count: int) -> list[Message]:
    """So many of the newest messages, fewer where they are long."""
    left, first = MAX_CHARACTERS, len(messages)
    while first and len(messages) - first < count and (left := left - len(messages[first - 1].content)) >= 0:
        first -= 1
    return messages[first:]
