"""What stands in a session as these clients see it, and the service's own events that make it what a PUT says."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec import Struct, to_builtins

from voicemem.memory.add import forget_all_but_newest
from voicemem.memory.agent_memory.models import GivenWorkingMemory, StrategyConfig
from voicemem.memory.agent_memory.working.messages import Change, Standing, standing
from voicemem.memory.working_memory import check_data_size
from voicemem.protocol.events import MemoryData, MemorySummary, ServerEvent
from voicemem.protocol.types import JsonObject
from voicemem.redaction.rules import Rules
from voicemem.redaction.texts import redact_value
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.history import turn_entries

KEPT_DATA = "agent_memory"
"""The key in the data of a session with what voicemem itself has no place for."""


class KeptData(Struct, frozen=True, omit_defaults=True):
    """What of a working memory has no place in a session, and stands in its data, under `KEPT_DATA`."""

    memories: tuple[str, ...] = ()
    """Their ids."""
    tokens: int = 0
    strategy: StrategyConfig = StrategyConfig()
    context: str | None = None
    """Where the session's first turn leaves no room for a summary before it."""


class Look(NamedTuple):
    """A session at a position, as these clients see it."""

    position: int
    messages: list[Standing]
    hidden: int
    """Messages that are remembered, but that the summary stands for."""
    through: int
    """The last turn that it stands for; -1 without one."""
    context: str | None
    data: JsonObject
    kept: KeptData

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be taken away."""
        return not (self.messages or self.context or self.data or self.kept.memories)


def look_at(read_model: ReadModel) -> Look:
    """What stands in a session now."""
    remembered, summary = read_model.remembered_messages(), read_model.state.summary
    through = -1 if summary is None else summary.through_turn
    hidden = bisect_right(remembered, through, key=attrgetter("turn_id"))
    data = dict(read_model.state.data)
    kept = kept_data(data.pop(KEPT_DATA, None))
    context = (None if summary is None else summary.text) or kept.context
    return Look(read_model.position, standing(remembered[hidden:]), hidden, through, context, data, kept)


def kept_data(value: object) -> KeptData:
    """What is kept in the data; nothing where somebody has put something else there."""
    try:
        return msgspec.convert(value, KeptData)
    except msgspec.ValidationError:
        return KeptData()


def remembered_orders(read_model: ReadModel) -> list[int]:
    """The journal positions at which the remembered messages began."""
    read_model.refresh()
    entries = (
        entry
        for number in read_model.state.turn_numbers
        for entry in turn_entries(read_model.state, read_model.state.turns[number])
    )
    orders = [entry.order for entry in entries]
    return [orders[index] for index in read_model.remembered_indexes()]


def forgotten_event(read_model: ReadModel, look: Look, change: Change) -> ServerEvent | None:
    if not change.forget:
        return None
    keep = len(read_model.remembered_indexes()) - look.hidden - change.forget
    return forget_all_but_newest(read_model, keep, everything=False)


def summary_event(read_model: ReadModel, look: Look, change: Change, given: GivenWorkingMemory) -> ServerEvent | None:
    """The client's `context` as the summary of what was before the first message."""
    summary = read_model.state.summary
    if (given.context or "") == ("" if summary is None else summary.text):
        return None
    through = summary_turn(read_model)
    if through is None:
        return None
    covered = bisect_right(read_model.current_messages(), through, key=attrgetter("turn_id"))
    return MemorySummary(through_turn=through, text=given.context or "", messages=covered)


def summary_turn(read_model: ReadModel) -> int | None:
    """The last turn that a summary may stand for without hiding a message; None if there is none before the first."""
    remembered, summary = read_model.remembered_messages(), read_model.state.summary
    through = -1 if summary is None else summary.through_turn
    first = bisect_right(remembered, through, key=attrgetter("turn_id"))
    if first < len(remembered):
        through = max(through, remembered[first].turn_id - 1)
    else:
        through = max(through, read_model.state.newest_turn, 0)
    return through if through >= 0 else None


def data_event(read_model: ReadModel, given: GivenWorkingMemory, rules: Rules | None) -> ServerEvent | None:
    kept = KeptData(
        memories=tuple(dict.fromkeys(record.id or "" for record in given.memories)),
        tokens=given.tokens,
        strategy=given.long_term_memory_strategy,
        context=given.context if summary_turn(read_model) is None else None,
    )
    data: JsonObject = given.data or {}
    if rules is not None:
        data = redact_value(data, rules)
    if kept != KeptData():
        data = data | {KEPT_DATA: {name: listed(value) for name, value in to_builtins(kept).items()}}
    if data == read_model.state.data:
        return None
    check_data_size(data)
    return MemoryData(operation="replace", content=data)


def listed(value: object) -> object:
    """A value as it is read from JSON."""
    return [*value] if isinstance(value, tuple) else value
