"""Forget a part of a memory: contexts no longer show it, but the history does until it is erased."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from voicemem.errors import Refused
from voicemem.protocol.events import MemoryForgotten
from voicemem.protocol.types import Natural
from voicemem.sessions.derived import append_derived
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.streams import Stream
from voicemem.transcript.history import begun_positions, turn_entries
from voicemem.transcript.messages import Forgotten


class ForgetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to forget: all up to a turn, all but the newest messages, or everything (the default)."""

    through_turn: Natural | None = None
    keep_last: Natural | None = None
    everything: bool | None = None


class Forgot(Struct, frozen=True):
    """How many messages of the history are forgotten, and how many are remembered."""

    position: int
    forgotten: int
    remembered: int


async def forget(
    read_models: ReadModelCache, stream: Stream, request: ForgetRequest, now_ms: Callable[[], int]
) -> Forgot:
    """Forget a part of a memory. Raises `Refused` (`invalid_field`, `unknown_turn`)."""
    options = [value for value in (request.through_turn, request.keep_last, request.everything) if value is not None]
    if len(options) > 1 or request.everything is False:
        raise Refused(
            "invalid_field", "Use only one of through_turn, keep_last and everything; everything must be true."
        )
    stream, read_model = await append_derived(
        read_models, stream, lambda read_model: forgotten_event(read_model, request), now_ms
    )
    remembered = len(read_model.remembered_indexes())
    return Forgot(stream.position, len(read_model.current_messages()) - remembered, remembered)


def forgotten_event(read_model: ReadModel, request: ForgetRequest) -> MemoryForgotten | None:
    """The event to journal; None if it would change nothing. Raises `Refused` (`unknown_turn`)."""
    if request.through_turn is None:
        return forget_all_but_newest(read_model, request.keep_last or 0, everything=request.keep_last is None)
    newest = read_model.state.turn_numbers[-1] if read_model.state.turn_numbers else -1
    if request.through_turn > newest:
        raise Refused("unknown_turn")
    known = read_model.state.forgotten or Forgotten()
    return MemoryForgotten(through_turn=request.through_turn) if request.through_turn > known.through_turn else None


def forget_all_but_newest(read_model: ReadModel, count: int, everything: bool) -> MemoryForgotten | None:
    """Forget all but the newest `count` messages. What is still being said is not a message yet, and stays."""
    # Not only what is carried over now: None means that nothing was carried over yet, and that must not happen later.
    carried = everything and read_model.state.carried != ()
    messages, indexes = read_model.current_messages(), read_model.remembered_indexes()
    if count >= len(indexes):
        return MemoryForgotten(carried=True) if carried else None
    kept = set(indexes[len(indexes) - count :])
    turn = messages[min(kept, default=indexes[-1])].turn_id
    return MemoryForgotten(
        turn=turn,
        kept=tuple(sorted(kept_positions(read_model, turn, kept))),
        carried=carried,
    )


def kept_positions(read_model: ReadModel, number: int, kept: set[int]) -> set[int]:
    """The journal positions at which the parts of a turn began that stay: `kept` messages, and unfinished ones."""
    state, turn = read_model.state, read_model.state.turns[number]
    begun = begun_positions(state, turn)
    entries = enumerate(turn_entries(state, turn), read_model.turn_starts[number])
    forgotten = state.forgotten or Forgotten()
    return {
        order
        for order in begun - {entry.order for index, entry in entries if index not in kept}
        if not forgotten.covers(number, order)
    }
