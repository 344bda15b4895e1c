"""Checkpoints: a session in one document, and a session made of one again."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import delta, done, final
from tests.support.profiles import examples
from tests.support.rows import every_row
from tests.support.stores.contract import append_batch
from tests.support.strategies import PRODUCER_EVENTS
from voicemem.config.session import SessionPatch
from voicemem.context.builder import ContextOptions, render_body, select_context
from voicemem.context.policy_registry import Policies
from voicemem.errors import Refused
from voicemem.memory.checkpoints import parse_checkpoint, restore_checkpoint, write_checkpoint
from voicemem.protocol.codec import DecodedEvent, decode_event
from voicemem.protocol.events import SessionUpdate
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime, new_id
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.off_loop import OffLoop
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.batches import validated_update
from voicemem.store.append_rules import Offer
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import SessionEnding, Stream

NOW = 1_778_390_400_000
CONFIG = {"llm": {"system_messages": [{"role": "system", "content": "Be kind."}], "params": {"a": 1.5}}, "user_id": "u"}


def no_check(_: SessionPatch) -> None:
    """Settings that may all be set."""


def offer(place: int, event: JsonObject, numbered: bool) -> Offer:
    """An event as it is offered to a journal, refused ones too."""
    given = event | {"seq": place} if numbered else event
    arrival = decode_event(msgspec.json.encode(given))
    seq = place if numbered else None
    if not isinstance(arrival, DecodedEvent):
        return Offer(seq, NOW + place, b"", refusal=arrival.code)
    patch = None
    if isinstance(arrival.event, SessionUpdate):
        arrival = validated_update(arrival.event, arrival.payload)
        patch = arrival.patch
    ending = (
        SessionEnding(event.get("ts") or NOW + place // 3, event.get("reason") or "ended")
        if event["type"] == "session.end"
        else None
    )
    return Offer(seq, NOW + place // 3, arrival.payload, update=patch, ending=ending)


API_KEY = "-".join(("an", "api", "key"))  # no literal: texts of calls are drawn from those of this file too
BAD = st.sampled_from([{"type": "asr"}, {"type": "magic"}, {"type": "session.update", "llm": {"api_key": API_KEY}}])


@examples(0.4)
@given(
    st.lists(PRODUCER_EVENTS | BAD, max_size=15), st.booleans(), st.sampled_from([None, "api", "idle"]), st.booleans()
)
async def test_what_is_restored_elsewhere_reads_as_the_original(
    call: list[JsonObject], numbered: bool, ended: str | None, pretty: bool
) -> None:
    """History and context are the same bytes, the journal is the same, and producers go on with the same seq."""
    here, there = InMemoryStore(), InMemoryStore()
    try:
        opened = await here.journal.open_producer(
            "p", "s", "main", SessionPatch(CONFIG, {"llm.api_key": API_KEY}), None, NOW
        )
        key = opened.stream.key
        await append_batch(
            here.journal, key, "main", None, [offer(n, one, numbered) for n, one in enumerate(call, 1)], NOW
        )
        if ended:
            await here.journal.close_session(key, SessionEnding(NOW, ended, ended == "idle"), new_id(), NOW + 99)
        original = await here.journal.find_session("p", "s")
        assert original is not None
        document = b"".join([piece async for piece in write_checkpoint(here, OffLoop(), original)])
        assert API_KEY.encode() not in document
        if pretty:
            document = json.dumps(json.loads(document), indent=1).encode()
        copy = await restore_checkpoint(
            Sessions(there, Runtime(lambda: NOW + 1000), no_check), "q", "r", await parse_checkpoint(document)
        )
        assert [getattr(original, name) for name in SAME] == [getattr(copy, name) for name in SAME]
        assert await shown(here, original) == await shown(there, copy)
        rows = [row._replace(payload=b"") for row in await here.journal.read_rows(key, 0, 100)]
        assert rows == [row._replace(payload=b"") for row in await there.journal.read_rows(copy.key, 0, 100)]
        one = await here.journal.open_producer("p", "s", "main", SessionPatch({}, {}), None, NOW + 2000)
        other = await there.journal.open_producer("q", "r", "main", SessionPatch({}, {}), None, NOW + 2000)
        assert (one.next_seq, one.reopened, one.stream.state) == (other.next_seq, other.reopened, other.stream.state)
    finally:
        await here.close_store()
        await there.close_store()


SAME = ("state", "reason", "position", "started_ms", "ended_ms", "provisional", "config", "ending_ts", "ending_reason")


async def shown(store: InMemoryStore, stream: Stream) -> tuple[bytes, bytes]:
    """The bytes of the history and of the context."""
    read_models = ReadModelCache(store)
    history = (await read_models.get(stream)).encode_messages()
    options = ContextOptions(tools=True)
    body = await select_context(read_models, Policies(), stream, options, partial(render_body, options=options))
    return history, msgspec.json.encode(body)


# What is no checkpoint

EVENTS: list[JsonObject] = [
    final(1, "Hello.", 5) | {"seq": 1},
    delta(1, "Hi.", 6) | {"seq": 2},
    done(1, 7) | {"seq": 3},
]


def document(
    events: list[JsonObject] = EVENTS, change: Callable[[JsonObject], object] = lambda _: None, **entry: Any
) -> JsonObject:
    """A checkpoint that someone wrote by hand, with the right hash."""
    session: JsonObject = {
        "session_id": "s",
        "state": "running",
        "reason": None,
        "started_at": NOW,
        "ended_at": None,
        "config": {},
    }
    made: JsonObject = {"voicemem": "checkpoint", "version": 1, "session": session}
    made["events"] = [
        {"position": n, "producer": "main", "seq": event.get("seq"), "received_ms": NOW, "event": event} | entry
        for n, event in enumerate(events, 1)
    ]
    change(made)
    return made | {"sha256": sha256(made)}


def sha256(made: JsonObject) -> str:
    """As the documentation says: of compact JSON with sorted keys, a line each."""
    lines = [json.dumps(one, sort_keys=True, separators=(",", ":")) for one in (made["session"], *made["events"])]
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


async def problem_of(made: JsonObject) -> str:
    """What is said of a checkpoint that cannot be restored."""
    with pytest.raises(Refused) as refused:
        await parse_checkpoint(msgspec.json.encode(made))
    assert "invalid_checkpoint" == refused.value.code
    return refused.value.detail


async def test_a_checkpoint_by_hand_is_read() -> None:
    """The helper of these tests writes what is otherwise right."""
    assert 3 == len((await parse_checkpoint(msgspec.json.encode(document()))).restored.rows)


async def test_a_configuration_whose_schema_cannot_be_used_is_refused() -> None:
    """As where a session is created: no document would ever fit it."""
    config = {"working_memory": {"schema": {"$ref": "#/$defs/nowhere"}}}
    made = await parse_checkpoint(
        msgspec.json.encode(document(change=lambda made: made["session"].update(config=config)))
    )
    store = InMemoryStore()
    try:
        with pytest.raises(Refused, match="it refers to something that is not in it"):
            await restore_checkpoint(Sessions(store, Runtime(lambda: NOW), no_check), "q", "r", made)
        assert await store.journal.find_session("q", "r") is None
    finally:
        await store.close_store()


def own(kind: str, **fields: Any) -> list[JsonObject]:
    return [{"type": kind, **fields}]


DEEP: Any = 1
for _ in range(33):
    DEEP = [DEEP]

BY_HAND: list[tuple[str, JsonObject, str]] = [
    ("kind", document(change=lambda made: made.update(voicemem="backup")), "not a voicemem checkpoint"),
    ("version", document(change=lambda made: made.update(version=2)), "has another version"),
    ("hash", document() | {"sha256": "0" * 64}, "was changed"),
    ("no hash", {k: v for k, v in document().items() if k != "sha256"}, "not a voicemem checkpoint"),
    ("text", document() | {"events": [{**document()["events"][0], "received_ms": 1}]}, "was changed"),
    ("session", document(change=lambda made: made["session"].pop("config")), "A part of the checkpoint"),
    ("times", document(change=lambda made: made["session"].update(started_at=10**15)), "A part of the checkpoint"),
    ("hole", document(change=lambda made: made["events"].pop(1)), "position 2: an entry of the journal is missing"),
    ("entry", document(change=lambda made: made["events"].append([])), "A part of the checkpoint"),
    ("more", document(own=1), "A part of the checkpoint"),
    ("unknown type", document(own("magic"), producer="main"), "position 1: The event's type is unknown"),
    ("bad event", document([final(1, "x", seq=1) | {"final": 1}]), "position 1: Expected true or false"),
    ("long text", document([final(1, "x" * 300_000, seq=1)]), "position 1: A text may be at most"),
    ("reserved", document([final(1, "x", seq=1, metadata={"heard": "no"})]), "position 1: The event's metadata"),
    ("integer", document([final(1, "x", seq=1, metadata={"a": 2**53 + 1})]), "position 1: An integer"),
    ("deep", document([final(1, "x", seq=1, metadata={"a": DEEP})]), "position 1: The JSON is nested deeper"),
    ("own of a producer", document(own("session.closed", reason="api", ts=1)), "position 1: An event of the server's"),
    ("seq without producer", document(producer=None), "only a producer's events may have a seq"),
    ("seqs", document([EVENTS[0], EVENTS[0]]), "position 2: The events of a producer must be in the order"),
    ("mixed", document([EVENTS[0], done(1)]), "position 2: A producer must give all of its events a seq"),
    ("mixed", document([done(1), EVENTS[0]]), "position 2: The events of a producer must be in the order"),
    ("other seq", document([EVENTS[1]], seq=1), "position 1: The event must have the same seq"),
    (
        "text",
        document(own("memory.edited", memory_id="m", text_sha256="0" * 64, text="A."), producer=None),
        "position 1: ",
    ),
    ("schema", document(own("memory.document", operation="form", schema={"type": 1}), producer=None), "position 1: "),
    (
        "long document",
        document(own("memory.document", operation="replace", content="x" * 70_000), producer=None),
        "64 KiB",
    ),
    (
        "document",
        document(own("memory.document", operation="replace", content=[1]), producer=None),
        "a text or an object",
    ),
    ("refused", document(own("refused", code="magic")), "position 1: The code of a refused event"),
    ("open", document(own("session.open")), "position 1: The event's type is unknown"),
]


@every_row(("made", "said"), [case[1:] for case in BY_HAND], ids=[case[0] for case in BY_HAND])
async def test_what_is_no_checkpoint_is_refused(made: JsonObject, said: str) -> None:
    """Whatever ingest would refuse, and what was changed, is told with its place and never with its content."""
    assert said in await problem_of(made)


async def test_secrets_that_were_put_in_are_taken_out() -> None:
    """Neither a configuration nor an update in a checkpoint can bring secrets into the journal."""
    update = {"type": "session.update", "llm": {"api_key": "secret", "model": "m"}, "seq": 1}
    made = await parse_checkpoint(msgspec.json.encode(document([update])))
    assert [{"type": "session.update", "llm": {"model": "m"}, "seq": 1}] == [
        msgspec.json.decode(row.payload) for row in made.restored.rows
    ]


async def test_an_end_that_waits_for_other_producers_still_waits() -> None:
    """Its time and its reason are those of the first one."""
    ends = [{"type": "session.end", "reason": name, "ts": ts} for name, ts in (("left", 7), ("lost", 8))]
    made = (await parse_checkpoint(msgspec.json.encode(document(ends)))).restored
    assert (SessionEnding(7, "left"), None) == (made.ending, made.ended_ms)
    assert [True] == [producer.ended for producer in made.producers]
