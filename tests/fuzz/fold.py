"""The fold: whatever a journal holds, there is a memory of it, which every reader can be given.

An input is a journal as JSON lines; what cannot stand in one is left out of it.
"""

from __future__ import annotations

import itertools

import atheris

from tests.fuzz.driver import drive

with atheris.instrument_imports(include=["voicemem"]):
    import msgspec
    import orjson

    from voicemem.context.formats import ENRICHERS, RequestFormat, request_body
    from voicemem.errors import InvalidFrame
    from voicemem.protocol.codec import MALFORMED, METADATA_ORDER, DecodedEvent, decode_event, decode_journaled
    from voicemem.protocol.events import (
        Auth,
        JournaledEvent,
        RefusalMarker,
        SessionClosed,
        SessionGap,
        SessionOpen,
        SessionReopened,
    )
    from voicemem.transcript import history
    from voicemem.transcript.fold import DecodedRow, fold_all
    from voicemem.transcript.messages import Message
    from voicemem.transcript.state import State, decode_state, encode_state
    from voicemem.transcript.turns import turns

OWN = (SessionClosed, SessionReopened, SessionGap, RefusalMarker)
"""What only the server journals."""
READER = RequestFormat(enrich=tuple(ENRICHERS), tools=True, alternate=True)
READERS = [
    msgspec.structs.replace(READER, vendor=vendor, style=style)
    for vendor in (None, "custom")
    for style in ("openai", "anthropic", "gemini")
]


def check(data: bytes) -> None:
    """Fold a journal, read it in every way, and fold it again in other ways that must give the same."""
    entries = [DecodedRow(position, 1_000 * position, event) for position, event in enumerate(journal(data), 1)]
    state = fold_all(State(), entries)
    memory = history.messages(state)
    check_messages(memory)
    check_messages(history.messages(state, unfinished=True))
    check_readers(state, memory)
    assert history.messages(piecewise(entries)) == memory


def journal(data: bytes) -> list[JournaledEvent]:
    """The events of these lines that a journal can hold."""
    return [event for line in data.split(b"\n") if (event := journaled(line)) is not None]


def journaled(line: bytes) -> JournaledEvent | None:
    """The event of a line, as a producer's that was taken, or as one of the server's own."""
    try:
        arrival = decode_event(line)
    except InvalidFrame:
        return None
    if isinstance(arrival, DecodedEvent) and not isinstance(arrival.event, (SessionOpen, Auth)):
        return decode_journaled(arrival.payload)
    try:
        event = decode_journaled(line)
    except MALFORMED:
        return None
    return event if isinstance(event, OWN) else None


def check_messages(memory: list[Message]) -> None:
    """Messages are as docs/memory.md has them, in the order of its rule 7, and can be written as JSON."""
    for message in memory:
        own = [key for key in message.metadata if key in METADATA_ORDER]
        assert own == [key for key in METADATA_ORDER if key in own]
        assert list(message.metadata)[: len(own)] == own
        assert "source" in own
        if "interrupted" in own:
            assert {"interrupt_timestamp", "original"} <= set(own)
            assert message.role == "assistant"
        else:
            assert message.content or message.role == "assistant"
            assert "heard" not in own
        assert message.turn_id >= 0
    turn_ids = [message.turn_id for message in memory]
    assert turn_ids == sorted(turn_ids)
    for one, other in itertools.pairwise(memory):
        assert one.turn_id < other.turn_id or one.role >= other.role  # in a turn the user stands first
    written = msgspec.json.encode(memory)
    names = ["role", "content", "turn_id", "timestamp", "metadata"]
    assert all(list(message) == names for message in orjson.loads(written))


def check_readers(state: State, memory: list[Message]) -> None:
    """Every format, the turns and a snapshot can be made and written."""
    uses = history.tool_uses(state)
    for format in READERS:
        orjson.loads(msgspec.json.encode(request_body(memory, uses, format)))
    orjson.loads(msgspec.json.encode([*turns(state)]))
    assert history.messages(decode_state(encode_state(state))) == memory


def piecewise(entries: list[DecodedRow]) -> State:
    """The state of the same journal, folded entry by entry, read in between, and restored in the middle."""
    state = State()
    for entry in entries:
        fold_all(state, [entry])
        if entry.position % 7 == 0:
            history.messages(state, unfinished=entry.position % 2 == 0)
        if entry.position == len(entries) // 2:
            state = decode_state(encode_state(state))
    return state


if __name__ == "__main__":
    drive(check)
