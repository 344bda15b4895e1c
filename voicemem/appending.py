"""Events of the server's own, made of a memory as it stands, and journaled right behind what they were made of."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from voicemem.admission import Stream
from voicemem.errors import Refused, StoreUnavailable
from voicemem.events import Own
from voicemem.memories import Memories
from voicemem.memory import Memory

MOST_APPENDS = 100
"""Attempts while the call goes on; each failed one means that something was journaled."""


async def append_made(
    memories: Memories, stream: Stream, make: Callable[[Memory], Own | None], now_ms: Callable[[], int]
) -> tuple[Stream, Memory]:
    """Journal what `make`, a pure function, makes of the memory, unless that is None; the session after it.

    Raises `Refused` (`unknown_session`, and what `make` raises), `StoreUnavailable`.
    """
    for _ in range(MOST_APPENDS):
        now = await memories.journal.stream(stream.project, stream.id)
        if now is None:
            raise Refused("unknown_session")
        memory = await memories.at(now)
        event = make(memory)
        if event is None:
            return now, memory
        appended = await memories.journal.append_own(stream.key, msgspec.json.encode(event), memory.stands_at, now_ms())
        if appended is not None:
            return appended, await memories.at(appended)
    raise StoreUnavailable("The session changes faster than this can be stored.")
