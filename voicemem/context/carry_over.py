"""The carry-over: text from a user's earlier sessions for a new one, journaled once so that it never changes."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from voicemem.config.session import MemoryFrom, SessionConfig
from voicemem.context.summary_policy import render_messages
from voicemem.errors import SessionQuarantined
from voicemem.protocol.events import CarriedSession, MemoryCarried
from voicemem.protocol.quoting import quoted
from voicemem.sessions.derived import append_derived
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message

MAX_CARRIED_CHARACTERS = 16 * 1024
"""The most characters that are carried over from one session."""
PAGE, MAX_PAGES = 16, 16
"""How many earlier sessions are read at a time, and how often; sessions without messages are skipped."""


async def carry_over(
    read_models: ReadModelCache, stream: Stream, session_config: SessionConfig
) -> tuple[Stream, ReadModel]:
    """Journal the carry-over of a running session with a user and `memory_from`. Return its row and memory then."""
    memory_from, user_id = session_config.memory_from, session_config.user_id
    assert memory_from is not None
    assert user_id is not None
    carried = await collect_carried_sessions(read_models, stream, user_id, memory_from)
    return await append_derived(
        read_models,
        stream,
        lambda read_model: MemoryCarried(sessions=carried) if read_model.state.carried is None else None,
        lambda: stream.started_ms,  # before everything else in the session
    )


async def collect_carried_sessions(
    read_models: ReadModelCache, stream: Stream, user_id: str, memory_from: MemoryFrom
) -> tuple[CarriedSession, ...]:
    """Return the texts of the user's last ended sessions, the oldest first."""
    carried: list[CarriedSession] = []
    ended = SessionFilter(project=stream.project, state="ended", user_id=user_id, limit=PAGE)
    for _ in range(MAX_PAGES):
        page = await read_models.store.journal.list_sessions(ended)
        for earlier in page:
            text = ""
            with suppress(SessionQuarantined):  # an unreadable session must not stop this one
                text = session_text(await read_models.get(earlier), memory_from)
            if text:
                began = f"{datetime.fromtimestamp(earlier.started_ms / 1000, UTC):%Y-%m-%d %H:%M}"
                heading = f"From an earlier call with this user, begun {began} UTC:"
                carried.append(CarriedSession(earlier.id, f"{heading}\n{text}"))
            if len(carried) == memory_from.sessions:
                return tuple(reversed(carried))
        if len(page) < PAGE:
            break
        ended = msgspec.structs.replace(ended, after=(page[-1].started_ms, page[-1].key))
    return tuple(reversed(carried))


def session_text(read_model: ReadModel, memory_from: MemoryFrom) -> str:
    """Return a session's newest messages; or, if configured, its summary and the messages after it.

    If those are too many, a note after the summary says how many are left out.
    """
    messages, summary = read_model.remembered_messages(), read_model.state.summary
    if memory_from.what == "messages" or summary is None:
        return render_messages(take_newest(messages, memory_from.max_messages))
    rest = messages[bisect_right(messages, summary.through_turn, key=attrgetter("turn_id")) :]
    shown = take_newest(rest, len(rest))
    left_out = len(rest) - len(shown)
    note = f"(… {left_out} message{'s' * (left_out > 1)} left out)" if left_out else ""
    return "\n".join(filter(None, (f"Summary of what was said: {quoted(summary.text)}", note, render_messages(shown))))


def take_newest(messages: Sequence[Message], count: int) -> Sequence[Message]:
    """Return up to `count` of the newest messages, fewer if they are long."""
    left, first = MAX_CARRIED_CHARACTERS, len(messages)
    while first and len(messages) - first < count and (left := left - len(messages[first - 1].content)) >= 0:
        first -= 1
    return messages[first:]
