"""Replies of the gateway that nobody finished: its process was killed, or the store could not take their end.

They are closed as generated when the gateway is next called for their session.
"""

from __future__ import annotations

from collections.abc import Container

from voicemem.events import LlmDone
from voicemem.series import NEVER
from voicemem.state import Reply, State
from voicemem.store.base import Journal

LOOK_BACK = 256
"""Turns, the newest ones: a reply that was left open is found by the call after it."""


async def ends_of_left(
    journal: Journal, key: int, state: State, producer: str, running: Container[tuple[int, str]]
) -> list[LlmDone]:
    """An end for each open reply of a session that this producer began, and that is not `running` (by key and item).

    It is of the time when the reply last grew, so that a later interruption finds it as it would have then.
    """
    found = []
    for number in state.numbers[-LOOK_BACK:]:
        for reply in state.turns[number].replies:
            if reply.item is None or reply.generation.complete or (key, reply.item) in running:
                continue
            first = await journal.rows(key, reply.order - 1, 1)
            if first and first[0].producer == producer:
                found.append(LlmDone(turn_id=number, item=reply.item, ts=last_ts(reply)))
    return found


def last_ts(reply: Reply) -> int:
    said = reply.generation.plain.last(NEVER)
    return reply.begin if said is None else said.ts
