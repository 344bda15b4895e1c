"""Forgetting: what is gone from every context, and still in the history until it is erased."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.events import MemoryForgotten
from voicemem.protocol.types import Natural
from voicemem.sessions.cache import Memories, append_made
from voicemem.sessions.read_model import Memory
from voicemem.store.streams import Stream
from voicemem.transcript.history import turn_entries
from voicemem.transcript.messages import Forgotten


class ForgetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to forget: all up to a turn, all but the newest messages, or everything (also when nothing is said)."""

    through_turn: Natural | None = None
    keep_last: Natural | None = None
    everything: bool | None = None


class Forgot(Struct, frozen=True):
    """How many messages of the history contexts leave out, and how many they are made of."""

    position: int
    forgotten: int
    remembered: int


async def forget(memories: Memories, stream: Stream, request: ForgetRequest, now_ms: Callable[[], int]) -> Forgot:
    """Forget a part of a memory. Raises `Refused` (`invalid_field`, `unknown_turn`)."""
    given = [value for value in (request.through_turn, request.keep_last, request.everything) if value is not None]
    if len(given) > 1 or request.everything is False:
        raise Refused("invalid_field", "Give one of through_turn, keep_last, and everything as true.")
    stream, memory = await append_made(memories, stream, lambda memory: forgotten_event(memory, request), now_ms)
    remembered = len(memory.remembered())
    return Forgot(stream.position, len(memory.made_messages()) - remembered, remembered)


def forgotten_event(memory: Memory, request: ForgetRequest) -> MemoryForgotten | None:
    """What is to be journaled; None where nothing would change."""
    if request.through_turn is None:
        return forget_all_but_newest(memory, request.keep_last or 0, everything=request.keep_last is None)
    newest = memory.state.turn_numbers[-1] if memory.state.turn_numbers else -1
    if request.through_turn > newest:
        raise Refused("unknown_turn")
    known = memory.state.forgotten or Forgotten()
    return MemoryForgotten(through_turn=request.through_turn) if request.through_turn > known.through_turn else None


def forget_all_but_newest(memory: Memory, count: int, everything: bool) -> MemoryForgotten | None:
    """Everything but the newest messages; what is still being said is no message yet, and stays."""
    carried = everything and memory.state.carried != ()
    messages, places = memory.made_messages(), memory.remembered()
    if count >= len(places):
        return MemoryForgotten(carried=True) if carried else None
    kept = set(places[len(places) - count :])
    turn = messages[min(kept, default=places[-1])].turn_id
    return MemoryForgotten(
        turn=turn,
        kept=tuple(sorted(kept_positions(memory, turn, kept))),
        carried=carried,
    )


def kept_positions(memory: Memory, number: int, kept: set[int]) -> set[int]:
    """Where in the journal that began which stays of a turn: some messages, and what is no message yet."""
    state, turn = memory.state, memory.state.turns[number]
    begun = {one.order for one in (*turn.utterances, *(turn.typed or ()), *turn.replies)}
    entries = enumerate(turn_entries(state, turn), memory.begins[number])
    forgotten = state.forgotten or Forgotten()
    return {
        order
        for order in begun - {entry.order for index, entry in entries if index not in kept}
        if not forgotten.covers(number, order)
    }
