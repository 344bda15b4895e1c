"""From events to journal, memory and answer; several recorders on one store (docs/ingest.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pytest

from tests.support.events import LARGE_TEXT, final_transcript, session_end, unknown_event
from tests.support.frames import decode_frame
from tests.support.profiles import seeds
from voicemem.config.session import SessionPatch
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import SessionOpen
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.batches import DEFAULT_END_REASON, EventBatch, ProducerLease
from voicemem.sessions.recording.commits import SETTLED_TOGETHER
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.port import Store
from voicemem.store.records import JournalRow
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import SessionEnding, Stream
from voicemem.telemetry import Telemetry
from voicemem.transcript import history
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

NOW = 1_778_390_400_000


def anything(session_patch: SessionPatch) -> None:
    """Settings that may all be set."""


class Node(NamedTuple):
    """One recorder, with memories of its own."""

    store: Store
    read_models: ReadModelCache
    recorder: Recorder

    async def open(
        self, session_id: str = "s", producer: str = "main", admin: bool = False, from_seq: int | None = None
    ) -> ProducerLease:
        """A line into a session, new or not."""
        frame = SessionOpen(session_id=session_id, producer=producer, from_seq=from_seq)
        opened, *_ = await self.recorder.open_producer("p", session_id, frame, admin)
        return ProducerLease(opened.stream, producer, opened.epoch, admin)

    async def record(self, line: ProducerLease, *events: JsonObject) -> EventBatch:
        """What becomes of events that come in one batch."""
        return await self.recorder.record(line, decode_frame(msgspec.json.encode(events)))

    async def stream(self, session_id: str = "s") -> Stream:
        stream = await self.store.journal.find_session("p", session_id)
        assert stream is not None
        return stream

    async def read(self, session_id: str = "s") -> list[str]:
        """What the messages of a session say, to a reader of this node."""
        read_model = await self.read_models.get(await self.stream(session_id))
        return [message.content for message in read_model.messages()]

    async def rows(self, session_id: str = "s") -> list[JournalRow]:
        """The journal of a session."""
        return await self.store.journal.read_rows((await self.stream(session_id)).key, 0, 100_000)

    async def events(self, session_id: str = "s") -> list[JsonObject]:
        """The events in it."""
        return [json.loads(row.payload) for row in await self.rows(session_id)]

    async def from_scratch(self, session_id: str = "s") -> list[Message]:
        """The memory as the fold of the whole journal."""
        rows = await self.rows(session_id)
        given = [DecodedRow(row.position, row.received_ms, decode_journaled(row.payload), row.producer) for row in rows]
        return history.messages(fold_all(State(), given))


def node(store: Store) -> Node:
    read_models = ReadModelCache(store)
    return Node(
        store, read_models, Recorder(store.journal, read_models, Runtime(lambda: NOW), anything, Telemetry.untraced())
    )


@pytest.fixture
def nodes(two_handles: tuple[Store, Store]) -> list[Node]:
    """Two nodes on one store."""
    return [node(store) for store in two_handles]


@pytest.fixture
async def one() -> AsyncIterator[Node]:
    """A node on an empty store."""
    store = InMemoryStore()
    yield node(store)
    await store.close_store()


async def test_answers_of_a_large_commit_let_others_in(one: Node) -> None:
    """What is ready on the event loop meanwhile is done after the first answers, and before the last."""
    count, order = 2 * SETTLED_TOGETHER, list[str]()
    lines = [await one.open(f"s{number}") for number in range(count)]

    async def record(line: ProducerLease) -> None:
        assert 1 == (await one.record(line, final_transcript(1))).stored
        if not order:
            asyncio.get_running_loop().call_soon(order.append, "other")
        order.append("answer")

    commits = one.recorder.feed.commits
    await asyncio.gather(*map(record, lines))
    assert commits + 1 == one.recorder.feed.commits
    assert SETTLED_TOGETHER == order.index("other")
    assert count == order.count("answer")


def codes(recorded: EventBatch) -> list[tuple[int | None, str]]:
    """Seq and code of every problem."""
    return [(problem.seq, problem.code) for problem in recorded.problems]


# One recorder


async def test_a_batch_is_answered_as_a_whole(one: Node) -> None:
    """The answer has the highest seq on disk, every problem in its order, and the seq to go on with."""
    line = await one.open()
    recorded = await one.record(
        line,
        final_transcript(1),
        unknown_event(2),
        final_transcript(3),
        final_transcript(3, text="Other."),
        final_transcript(9),
    )
    assert (3, 4, False) == (recorded.acked, recorded.next_seq, recorded.ended)
    assert [(2, "unknown_type"), (3, "seq_conflict"), (9, "seq_gap")] == codes(recorded)
    assert 4 == recorded.problems[-1].expected


async def test_problems_hold_no_payload(one: Node) -> None:
    """What the sender is told names the fault, and repeats nothing of what was sent."""
    line = await one.open()
    recorded = await one.record(
        line, {"type": "geheim", "seq": 1}, final_transcript(2, final="geheim"), final_transcript(9, text="geheim")
    )
    assert 3 == len(recorded.problems)
    assert "geheim" not in repr(recorded.problems)


async def test_an_empty_batch_is_nothing(one: Node) -> None:
    """Nothing is stored, nothing acknowledged."""
    line = await one.open()
    recorded = await one.record(line)
    assert (None, [], 1) == (recorded.acked, recorded.problems, recorded.next_seq)


async def test_only_the_bad_without_seq(one: Node) -> None:
    """A batch in which no seq can be read consumes nothing."""
    line = await one.open()
    recorded = await one.record(line, unknown_event(), final_transcript(1) | {"seq": "1"})
    assert (None, 1) == (recorded.acked, recorded.next_seq)
    assert [(None, "unknown_type"), (None, "invalid_field")] == codes(recorded)
    assert [] == await one.rows()


async def test_time_and_producer_are_the_lines(one: Node) -> None:
    """A row is stamped with the recorder's clock and the line's producer."""
    await one.record(await one.open(producer="asr"), final_transcript(1))
    assert [(1, "asr", 1, NOW)] == [row[:4] for row in await one.rows()]


async def test_what_was_stored_is_in_the_memory(one: Node) -> None:
    """What was committed waits beside a cached memory, so that the next read needs no journal."""
    line = await one.open()
    for seq in range(1, 4):
        await one.record(line, final_transcript(seq))
        read_model = one.read_models.find(line.key)
        assert read_model is not None
        assert seq == read_model.position
    assert ["Line 1.", "Line 2.", "Line 3."] == await one.read()


async def test_what_was_not_stored_is_not_in_the_memory(one: Node) -> None:
    """Duplicates, conflicts, gaps and refused events leave the memory as the journal has it."""
    line = await one.open()
    await one.record(
        line,
        final_transcript(1),
        final_transcript(1),
        final_transcript(1, text="Other."),
        final_transcript(7),
        unknown_event(2),
        final_transcript(3),
    )
    assert ["Line 1.", "Line 3."] == await one.read()
    assert await one.from_scratch() == one.read_models.cached[line.key].messages()


async def test_an_open_says_the_next_turn(one: Node) -> None:
    """The next turn is behind the newest of anybody's."""
    line = await one.open()
    await one.record(line, final_transcript(1, turn_id=7))
    frame = SessionOpen(session_id="s", producer="other")
    assert 8 == (await one.recorder.open_producer("p", "s", frame, False))[1]


async def test_an_older_epoch_is_refused_in_the_transaction(nodes: list[Node]) -> None:
    """Even where no one told the older line, its appends are refused, and nothing of them is stored."""
    old = await nodes[0].open()
    assert 1 == (await nodes[0].record(old, final_transcript(1))).acked
    new = await nodes[1].open()
    recorded = await nodes[0].record(old, final_transcript(1), final_transcript(2), unknown_event(2), session_end(3))
    assert {"superseded"} == {problem.code for problem in recorded.problems}
    assert (None, False) == (recorded.acked, recorded.ended)
    assert 2 == (await nodes[1].record(new, final_transcript(2, text="New."))).acked
    assert ["Line 1.", "New."] == await nodes[0].read()


async def test_without_an_epoch_none_is_checked(one: Node) -> None:
    """A request over HTTP needs no open."""
    await one.open()
    line = ProducerLease(await one.stream(), "main", None, may_call_out=False)
    assert 1 == (await one.record(line, final_transcript(1))).acked


@pytest.mark.parametrize("event", [{"type": "session.open", "session_id": "s"}, {"type": "auth", "token": "t"}])
async def test_frames_of_a_websocket_are_no_events(one: Node, event: JsonObject) -> None:
    """What opens or authenticates a connection is in no journal."""
    recorded = await one.record(await one.open(), event | {"seq": 1}, event)
    assert [(1, "unknown_type"), (None, "unknown_type")] == codes(recorded)
    assert [{"type": "refused", "code": "unknown_type"}] == await one.events()


@pytest.mark.parametrize("other", [{"session_id": "t"}, {"producer": "other"}])
async def test_an_event_of_another_line_is_refused(one: Node, other: JsonObject) -> None:
    """An event that names another session or producer than its line is not taken for this one."""
    recorded = await one.record(
        await one.open(), final_transcript(1, **other), final_transcript(2, session_id="s", producer="main")
    )
    assert [(1, "invalid_field")] == codes(recorded)
    assert 2 == recorded.acked


async def test_settings_are_checked(one: Node) -> None:
    """Settings that may not be set are refused with their own code; the event leaves nothing else."""

    def refuse(session_patch: SessionPatch) -> None:
        raise Refused("address_not_allowed")

    line = await one.open(admin=True)
    one.recorder.check_settings = refuse
    recorded = await one.record(line, {"type": "session.update", "seq": 1, "webhook": {"url": "http://10.0.0.1/"}})
    assert [(1, "address_not_allowed")] == codes(recorded)
    assert [{"type": "refused", "code": "address_not_allowed"}] == await one.events()
    with pytest.raises(Refused, match="address_not_allowed"):
        await one.open("t")


async def test_calling_out_needs_admin_at_an_open_too(one: Node) -> None:
    """A new session that makes the server call out is an admin's to make; where it is there already nothing is set."""
    frame = SessionOpen(session={"llm": {"api_key": "hush"}})
    with pytest.raises(Refused, match="forbidden"):
        await one.recorder.open_producer("p", "s", frame, False)
    await one.recorder.open_producer("p", "s", frame, True)
    assert 2 == (await one.recorder.open_producer("p", "s", frame, False))[0].epoch


@pytest.mark.parametrize(("admin", "expected"), [(True, []), (False, [(1, "forbidden")])])
async def test_calling_out_needs_admin(one: Node, admin: bool, expected: list[tuple[int, str]]) -> None:
    """Whether a line may set what calls out is decided when it is opened."""
    line = await one.open(admin=admin)
    recorded = await one.record(line, {"type": "session.update", "seq": 1, "llm": {"api_key": "hush"}})
    assert expected == codes(recorded)
    assert "hush" not in str(await one.events())


async def test_an_end_says_when_and_why(one: Node) -> None:
    """The session keeps the first end's time and reason; without them the clock's and a default."""
    for name, given, expected in (
        ("a", session_end(1, ts=5, reason="hangup"), SessionEnding(5, "hangup")),
        ("b", session_end(1), SessionEnding(NOW, DEFAULT_END_REASON)),
    ):
        line = await one.open(name)
        assert (await one.record(line, given)).ended
        assert (await one.record(line, given)).ended
        assert expected == (await one.stream(name)).ending


async def test_a_refused_end_ends_nothing(one: Node) -> None:
    """An end with the wrong `last_seq` is a refused event."""
    line = await one.open()
    recorded = await one.record(line, session_end(1, last_seq=4))
    assert (False, [(1, "last_seq_mismatch")]) == (recorded.ended, codes(recorded))
    assert (await one.stream()).ending is None


async def test_a_gap_is_told_once_per_line(one: Node) -> None:
    """One line hears of one gap once, until the expected seq comes; another line hears of it too."""
    line, other = await one.open(), ProducerLease(await one.stream(), "main", None, may_call_out=False)
    told = [codes(await one.record(line, final_transcript(seq))) for seq in (5, 6, 1, 7, 2, 3)]
    assert [[(5, "seq_gap")], [], [], [(7, "seq_gap")], [], []] == told
    assert [(8, "seq_gap")] == codes(await one.record(other, final_transcript(8), final_transcript(9)))


async def test_a_hole_is_in_the_journal(one: Node) -> None:
    """`from_seq` above the next seq is journaled as a gap, and what was lost cannot be stored any more."""
    await one.record(await one.open(), final_transcript(1))
    line = await one.open(from_seq=5)
    recorded = await one.record(line, final_transcript(3), final_transcript(5))
    assert ([(3, "seq_conflict")], 5, 6) == (codes(recorded), recorded.acked, recorded.next_seq)
    assert {"type": "session.gap", "producer": "main", "from_seq": 2, "to_seq": 4} == (await one.events())[1]


async def test_after_a_failed_commit_everything_is_forgotten(one: Node) -> None:
    """Nothing is answered, no cached memory is trusted, and a resend stores each event once."""
    assert isinstance(one.store, InMemoryStore)
    line, other = await one.open(), await one.open("t")
    await one.record(line, final_transcript(1))
    database = one.store.database
    await database.write(lambda c: c.raw.pragma("max_page_count", c.raw.pragma("page_count")))
    with pytest.raises(StoreUnavailable):
        await one.record(line, final_transcript(2, text=LARGE_TEXT))
    assert {} == dict(one.read_models.cached)
    await database.write(lambda c: c.raw.pragma("max_page_count", 2**30))
    assert 2 == (await one.record(line, final_transcript(1), final_transcript(2, text=LARGE_TEXT))).acked
    assert ["Line 1.", LARGE_TEXT] == await one.read()
    assert [] == await one.read(other.session_id)


async def test_problems_are_plain(one: Node) -> None:
    """A problem is its seq, a stable code, and a sentence."""
    recorded = await one.record(await one.open(), final_transcript(2))
    (problem,) = recorded.problems
    assert (2, "seq_gap", 1) == (problem.seq, problem.code, problem.expected)
    assert recorded.problems[0].detail.endswith("Expected seq 1.")


# Two recorders on one store


async def test_acknowledged_here_is_visible_there(nodes: list[Node]) -> None:
    """A read on one node has every event that another has acknowledged, at once."""
    lines = [await node.open(producer=name) for node, name in zip(nodes, ("asr", "llm"), strict=True)]
    for seq in range(1, 8):
        for node, line in zip(nodes, lines, strict=True):
            assert seq == (await node.record(line, final_transcript(seq, turn_id=2 * seq + nodes.index(node)))).acked
            assert 1 == len({tuple(await reader.read()) for reader in nodes})
    assert 14 == len(await nodes[0].rows())


async def test_a_producer_moves_from_node_to_node(nodes: list[Node]) -> None:
    """Wherever it opens, it goes on behind what is stored, and is told the same next turn."""
    for seq in range(1, 9):
        node = nodes[seq % 2]
        opened, next_turn, _ = await node.recorder.open_producer("p", "s", SessionOpen(), False)
        assert (seq, seq, seq) == (opened.epoch, opened.next_seq, next_turn)
        await node.record(ProducerLease(opened.stream, "main", opened.epoch, may_call_out=False), final_transcript(seq))
    assert await nodes[0].from_scratch() == (await nodes[1].read_models.get(await nodes[1].stream())).messages()


@pytest.mark.parametrize("seed", seeds(4))
async def test_nothing_is_lost_or_doubled(nodes: list[Node], seed: int) -> None:
    """Producers that append, resend and read on both nodes at once leave each of their seqs once, in order."""
    luck = random.Random(seed)
    names, last = ["asr", "llm", "tools"], 60
    await nodes[0].open()

    async def run(name: str) -> None:
        acked = 0
        while acked < last:
            node, first = luck.choice(nodes), luck.randint(max(1, acked - 5), acked + 1)
            batch = [
                final_transcript(seq, text=f"{name} {seq}", user=name) for seq in range(first, min(last, first + 7) + 1)
            ]
            line = ProducerLease(await node.stream(), name, None, may_call_out=False)
            recorded = await node.record(line, *batch)
            assert ([], batch[-1]["seq"]) == ([*recorded.problems], recorded.acked)
            acked = max(acked, batch[-1]["seq"])
            assert {f"{name} {seq}" for seq in range(1, acked + 1)} <= set(await luck.choice(nodes).read())

    await asyncio.gather(*(run(name) for name in names))
    rows = await nodes[0].rows()
    assert list(range(1, len(rows) + 1)) == [row.position for row in rows]
    for name in names:
        assert list(range(1, last + 1)) == [row.seq for row in rows if row.producer == name]
    for node in nodes:
        assert await node.from_scratch() == (await node.read_models.get(await node.stream())).messages()


@pytest.mark.parametrize("seed", seeds(4))
async def test_one_producer_on_both_nodes_at_once(nodes: list[Node], seed: int) -> None:
    """Two requests with the same events at the same time store them once, and both are acknowledged."""
    luck = random.Random(seed)
    await nodes[0].open()
    lines = [ProducerLease(await node.stream(), "main", None, may_call_out=False) for node in nodes]
    for first in range(1, 100, 10):
        batches = [[final_transcript(seq) for seq in range(first, first + luck.randint(10, 12))] for _ in nodes]
        sent = [node.record(line, *batch) for node, line, batch in zip(nodes, lines, batches, strict=True)]
        assert [batch[-1]["seq"] for batch in batches] == [recorded.acked for recorded in await asyncio.gather(*sent)]
    counts = Counter(row.seq for row in await nodes[0].rows())
    assert {1} == set(counts.values())
    assert await nodes[1].from_scratch() == (await nodes[0].read_models.get(await nodes[0].stream())).messages()


async def test_of_two_different_events_one_is_stored(nodes: list[Node]) -> None:
    """When two nodes are sent different events under one seq, one is acknowledged and the other a conflict."""
    await nodes[0].open()
    for seq in range(1, 11):
        lines = [ProducerLease(await node.stream(), "main", None, may_call_out=False) for node in nodes]
        sent = [nodes[n].record(lines[n], final_transcript(seq, text=f"From {n}.")) for n in (0, 1)]
        answers = await asyncio.gather(*sent)
        assert [[], [(seq, "seq_conflict")]] == sorted(codes(recorded) for recorded in answers)
        stored = (await nodes[0].events())[-1]["text"]
        assert f"From {[recorded.acked for recorded in answers].index(seq)}." == stored
