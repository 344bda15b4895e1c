"""What every engine promises, through the port alone."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from appends import append
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import MAX_LABELS, SessionConfig, parse_config, validate_config
from voicemem.errors import Refused
from voicemem.store.admission import Offer, Outcome
from voicemem.store.port import Store
from voicemem.store.records import (
    ApiKey,
    Attempt,
    ClaimedDelivery,
    Delivery,
    DeliveryFilter,
    Endpoint,
    EndpointDelivery,
    JournalRow,
    OpenResult,
    RestoredSession,
    SessionFilter,
    SessionHeader,
    Snapshot,
)
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.outbox import FRONT_ROWS
from voicemem.store.sqlite.store import MemoryStore
from voicemem.store.streams import END_GRACE_MS, ProducerState, SessionEnding, Stream

NOW = 1_778_390_400_000
IDLE_MS = 60_000
REOPEN_MS = 3_600_000
LEASE_MS = 30_000
HOOK = "https://own.example/hook"
OPERATOR = "https://operator.example/hook"
END = SessionEnding(NOW + 5, "left")

ODD_NAMES = [
    "a.b",
    "a.b[0]",
    'say "hi"',
    '"',
    "it's",
    "back\\slash",
    "\\",
    '\\"',
    "ключ",
    "🦩",
    "e\u0301",
    "$",
    "[0]",
    "#-1",
    "",
    " ",
    "%_",
    "/",
    "line\nbreak",
    "\x7f",
    "nul\0",
]

numbers = itertools.count(1)
"""For names that no other example of a property test uses."""
on_one_store = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fields(seq: int | None, **more: Any) -> dict[str, Any]:
    return {"type": "llm.delta", "turn_id": 1, "text": "word ", **({} if seq is None else {"seq": seq}), **more}


def offer(seq: int | None, received_ms: int = NOW, **more: Any) -> Offer:
    return Offer(seq, received_ms, msgspec.json.encode(fields(seq, **more)))


def offers(first: int, last: int) -> list[Offer]:
    return [offer(seq) for seq in range(first, last + 1)]


def refused(seq: int | None, code: str = "invalid_field") -> Offer:
    return offer(seq, text="never to be stored")._replace(refusal=code)


def update(seq: int, patch: dict[str, Any]) -> Offer:
    return Offer(seq, NOW, msgspec.json.encode({"type": "session.update", "seq": seq}), update=validate_config(patch))


def end(seq: int, ts: int = END.ts, reason: str = END.reason) -> Offer:
    return Offer(seq, NOW, msgspec.json.encode({"type": "session.end", "seq": seq}), ending=SessionEnding(ts, reason))


def stored(*positions: int) -> list[Outcome]:
    return [Outcome(position) for position in positions]


async def begin(
    store: Store,
    session_id: str = "s",
    given: dict[str, Any] | None = None,
    *,
    producer: str = "main",
    from_seq: int | None = None,
    now_ms: int = NOW,
) -> OpenResult:
    return await store.open("p", session_id, producer, validate_config(given or {}), from_seq, now_ms)


async def begun(store: Store, session_id: str = "s", given: dict[str, Any] | None = None, now_ms: int = NOW) -> int:
    """The key of a session that is open."""
    return (await begin(store, session_id, given, now_ms=now_ms)).stream.key


async def send(
    store: Store, key: int, *batch: Offer, producer: str = "main", epoch: int | None = None, now_ms: int = NOW
) -> list[Outcome]:
    return [*(await append(store, key, producer, epoch, batch, now_ms)).outcomes]


async def close(
    store: Store, key: int, ending: SessionEnding | None = END, notice_id: str = "n", now_ms: int = NOW
) -> Stream:
    """The session as this closes it, which it must."""
    closed = await store.close(key, ending, notice_id, now_ms)
    assert closed is not None
    return closed


async def close_idle(store: Store, key: int, notice_id: str = "n") -> Stream:
    """A session that has been silent until now, closed for that."""
    await store.silence(key, NOW - IDLE_MS)
    return await close(store, key, None, notice_id)


async def finished(
    store: Store, session_id: str = "s", hook: str | None = HOOK, notice_id: str = "n", now_ms: int = NOW
) -> Stream:
    """A session that is closed, with an export for its own receiver."""
    key = await begun(store, session_id, {"webhook": {"url": hook}} if hook else {}, now_ms)
    return await close(store, key, END, notice_id, now_ms)


async def claim(
    store: Store, now_ms: int = NOW, busy: Sequence[str] = (), limit: int = 100, lease_ms: int = LEASE_MS
) -> list[ClaimedDelivery]:
    return await store.claim_deliveries(now_ms, lease_ms, busy, limit)


async def claim_one(store: Store, now_ms: int = NOW) -> ClaimedDelivery:
    (export,) = await claim(store, now_ms)
    return export


def attempt(status: int | None = 200, error: str | None = None, started_ms: int = NOW) -> Attempt:
    return Attempt(started_ms, 12, status, error, "ok")


def made_key(key_id: str, scopes: tuple[str, ...] = ("ingest", "read"), created_ms: int = NOW) -> ApiKey:
    return ApiKey(key_id, "p", "name", bytes(range(32)), scopes, created_ms)


async def journal(store: Store, key: int) -> list[dict[str, Any]]:
    return [msgspec.json.decode(row.payload) for row in await store.rows(key, 0, 100_000)]


async def kinds(store: Store, key: int) -> list[str]:
    return [event["type"] for event in await journal(store, key)]


async def producers(store: Store, key: int) -> dict[str | None, list[int | None]]:
    """The seqs of each producer, in the order of the journal."""
    seqs: dict[str | None, list[int | None]] = {}
    for row in await store.rows(key, 0, 100_000):
        seqs.setdefault(row.producer, []).append(row.seq)
    return seqs


def is_acknowledged(outcome: Outcome) -> bool:
    """Whether the event is on disk, as a refused one or a duplicate counts too."""
    return outcome.position is not None or outcome.duplicate


async def reread(store: Store, key: int) -> Stream:
    """The session's row as it is now."""
    return next(one for one in await store.streams(SessionFilter(project="p", limit=1000)) if one.key == key)


async def listed(store: Store, **conditions: Any) -> list[str]:
    return [stream.id for stream in await store.streams(SessionFilter(**{"project": "p", **conditions}))]


@pytest.fixture(params=["memory:", "sqlite:"])
async def handles(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Store]]:
    """Opens further handles on one store of each engine, as several nodes or processes would hold them."""
    opened: list[Store] = []

    def open_one() -> Store:
        if request.param == "sqlite:":
            opened.append(SqliteStore(str(tmp_path / "voicemem.db"), exclusive=False))
        elif not opened:
            opened.append(MemoryStore())
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close_store()


@pytest.fixture
def store(handles: Callable[[], Store]) -> Store:
    """An empty store of each engine."""
    return handles()


@pytest.fixture
def both(handles: Callable[[], Store]) -> tuple[Store, Store]:
    """Two handles on one empty store of each engine."""
    return handles(), handles()


# Creating


async def test_a_created_session_is_running(store: Store) -> None:
    """A new session runs from the given time, with the configuration that was given and an empty journal."""
    stream, how = await store.create("p", "s", validate_config({"name": "joker"}), NOW)

    assert "created" == how
    assert ("p", "session", "s") == (stream.project, stream.kind, stream.id)
    assert ("running", {"name": "joker"}) == (stream.state, stream.config)
    assert (NOW, NOW, 0) == (stream.started_ms, stream.silent_since_ms, stream.position)
    assert (None, None, None) == (stream.ended_ms, stream.reason, stream.ending)
    assert stream == await store.stream("p", "s")
    assert [] == await store.rows(stream.key, 0, 10)


async def test_an_unknown_session_is_none(store: Store) -> None:
    """A session that was never made is not found."""
    assert await store.stream("p", "s") is None


async def test_creating_again_with_the_same_configuration(store: Store) -> None:
    """The same configuration, secrets included, finds the session that is there."""
    given = {"labels": {"a": "1"}, "llm": {"api_key": "k"}}
    first, _ = await store.create("p", "s", validate_config(given), NOW)

    assert (first, "same") == await store.create("p", "s", validate_config(given), NOW + 1)


@pytest.mark.parametrize("other", [{}, {"llm": {"api_key": "other"}}, {"llm": {"api_key": "k", "model": "m"}}])
async def test_creating_again_with_another_configuration(store: Store, other: dict[str, Any]) -> None:
    """Another configuration, or another secret, is told apart and changes nothing."""
    given = {"llm": {"api_key": "k"}}
    first, _ = await store.create("p", "s", validate_config(given), NOW)

    assert (first, "different") == await store.create("p", "s", validate_config(other), NOW + 1)
    assert (first, "same") == await store.create("p", "s", validate_config(given), NOW + 2)


async def test_a_session_belongs_to_its_project(store: Store) -> None:
    """The same id in two projects is two sessions."""
    one, _ = await store.create("p", "s", validate_config({}), NOW)
    other, how = await store.create("q", "s", validate_config({}), NOW)

    assert "created" == how
    assert one.key != other.key
    assert other == await store.stream("q", "s")


async def test_secrets_are_kept_apart(store: Store) -> None:
    """The configuration that can be read never holds a secret."""
    given = {"llm": {"api_key": "k1"}, "webhook": {"url": HOOK, "secret": "k2"}}
    stream, _ = await store.create("p", "s", validate_config(given), NOW)

    assert {"llm": {}, "webhook": {"url": HOOK}} == stream.config


async def test_secrets_can_be_read_by_who_calls_out(store: Store) -> None:
    """By their place, as they are after every patch; of another session or an erased one there is nothing."""
    given = {"llm": {"api_key": "k1", "headers": {"X-A": "1"}}, "webhook": {"url": HOOK, "secret": "k2"}}
    stream, _ = await store.create("p", "s", validate_config(given), NOW)
    other, _ = await store.create("p", "other", validate_config({}), NOW)
    assert {"llm.api_key": "k1", "llm.headers": '{"X-A":"1"}', "webhook.secret": "k2"} == await store.secrets(
        stream.key
    )
    assert {} == await store.secrets(other.key)
    patch = validate_config({"llm": {"api_key": None, "headers": {"X-B": "2"}}})
    await store.change(stream.key, patch, b'{"type":"session.update"}', NOW)
    assert {"llm.headers": '{"X-B":"2"}', "webhook.secret": "k2"} == await store.secrets(stream.key)
    await store.erase(stream.key, NOW)
    assert {} == await store.secrets(stream.key)


@pytest.mark.parametrize(
    "given", [{"idle_timeout": None}, {"labels": None}, {"webhook": None}, {"llm": {"api_key": None, "params": None}}]
)
async def test_null_settings_are_left_at_their_defaults(store: Store, given: dict[str, Any]) -> None:
    """A setting that is given as null is one that is not given, also when it is given again."""
    stream, _ = await store.create("p", "s", validate_config(given), NOW)
    again, how = await store.create("p", "s", validate_config(given), NOW)

    assert SessionConfig() == parse_config(stream.config)
    assert (stream, "same") == (again, how)


# Opening


async def test_opening_makes_the_session(store: Store) -> None:
    """The first open makes the session, with epoch 1, to be sent on from seq 1."""
    opened = await begin(store, given={"name": "joker"})

    assert (1, 1, True, False) == (opened.epoch, opened.next_seq, opened.created, opened.reopened)
    assert {"name": "joker"} == opened.stream.config
    assert opened.stream == await store.stream("p", "s")


async def test_opening_again_raises_the_epoch(store: Store) -> None:
    """Every open raises the epoch, goes on where the journal stands, and leaves the configuration as it is."""
    key = await begun(store, given={"name": "joker"})
    await send(store, key, *offers(1, 3), epoch=1)
    opened = await begin(store, given={"name": "other"})

    assert (2, 4, False, False) == (opened.epoch, opened.next_seq, opened.created, opened.reopened)
    assert {"name": "joker"} == opened.stream.config
    assert 3 == (await begin(store)).epoch


async def test_producers_have_their_own_epochs_and_seqs(store: Store) -> None:
    """One producer's open and events leave the epoch and next seq of another alone."""
    key = await begun(store)
    await send(store, key, *offers(1, 3), epoch=1)
    other = await begin(store, producer="asr")

    assert (1, 1) == (other.epoch, other.next_seq)
    assert stored(4) == await send(store, key, offer(4), epoch=1)


async def test_a_gap_is_journaled(store: Store) -> None:
    """A `from_seq` above the next seq is journaled with the first and last missing seq, and is then next."""
    key = await begun(store)
    await send(store, key, *offers(1, 2))
    opened = await begin(store, from_seq=6)
    (row,) = await store.rows(key, 2, 10)

    assert (6, 3) == (opened.next_seq, opened.stream.position)
    assert (3, None, None, NOW) == (row.position, row.producer, row.seq, row.received_ms)
    assert {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 5} == msgspec.json.decode(row.payload)
    assert stored(4) == await send(store, key, offer(6), epoch=2)


async def test_a_new_session_may_begin_with_a_gap(store: Store) -> None:
    """A `from_seq` is taken on a session that this open makes."""
    opened = await begin(store, from_seq=3)
    gap = {"type": "session.gap", "producer": "main", "from_seq": 1, "to_seq": 2}

    assert (True, 3, 1) == (opened.created, opened.next_seq, opened.stream.position)
    assert [gap] == await journal(store, opened.stream.key)


@pytest.mark.parametrize("from_seq", [1, 2, 3])
async def test_what_can_still_be_sent_is_no_gap(store: Store, from_seq: int) -> None:
    """A `from_seq` that is not above the next seq is ignored."""
    key = await begun(store)
    await send(store, key, *offers(1, 2))
    opened = await begin(store, from_seq=from_seq)

    assert (3, 2) == (opened.next_seq, opened.stream.position)


async def test_an_ended_session_stays_ended(store: Store) -> None:
    """Opening a session that ended raises the epoch for its duplicates, and journals nothing."""
    key = await begun(store)
    await send(store, key, offer(1))
    closed = await close(store, key)
    opened = await begin(store, from_seq=9)

    assert closed == opened.stream == await reread(store, key)
    assert ("ended", 2, 2, False) == (opened.stream.state, opened.epoch, opened.next_seq, opened.reopened)
    assert [Outcome(duplicate=True), Outcome(code="session_ended")] == await send(store, key, *offers(1, 2), epoch=2)


async def test_an_end_for_idleness_told_by_the_producer_is_final(store: Store) -> None:
    """Only the server's own idle close is provisional, not a `session.end` that gives the reason "idle"."""
    key = await begun(store)
    await send(store, key, end(1, reason="idle"))
    await store.close_if_ended(key, ["main"], None, "n", NOW)
    opened = await begin(store, producer="asr", now_ms=NOW + 1)

    assert ("ended", False) == (opened.stream.state, opened.reopened)
    assert [Outcome(code="session_ended")] == await send(store, key, offer(1), producer="asr")


async def test_a_closed_idle_session_is_reopened(store: Store) -> None:
    """Within the reopen window an open brings an idle session back, and says so in the journal."""
    first = (await begin(store)).stream
    key = first.key
    await close_idle(store, key)
    opened = await begin(store, now_ms=NOW + REOPEN_MS - 1)

    assert (True, False) == (opened.reopened, opened.created)
    assert replace(first, position=2) == opened.stream == await reread(store, key)
    assert {"type": "session.reopened", "ts": NOW + REOPEN_MS - 1} == (await journal(store, key))[-1]
    assert stored(3) == await send(store, key, offer(1), epoch=2)


async def test_the_reopen_window_ends(store: Store) -> None:
    """After the reopen window an idle session stays ended."""
    key = await begun(store)
    await close_idle(store, key)
    opened = await begin(store, now_ms=NOW + REOPEN_MS)

    assert ("ended", False) == (opened.stream.state, opened.reopened)
    assert [Outcome(code="session_ended")] == await send(store, key, offer(1), now_ms=NOW + REOPEN_MS)


async def test_the_reopen_window_is_the_sessions_own(store: Store) -> None:
    """A session without a reopen window is not reopened."""
    key = await begun(store, given={"reopen_window": 0})
    await close_idle(store, key)

    assert not (await begin(store)).reopened


# Appending


async def test_events_are_stored_in_order(store: Store) -> None:
    """A batch is journaled in its order, byte for byte, with the times at which it came."""
    key = await begun(store)
    batch = [Offer(seq, NOW + seq, b' {"type":"asr", "n" : %d}' % seq) for seq in (1, 2, 3)]
    appended = await append(store, key, "main", 1, batch, NOW)

    assert stored(1, 2, 3) == appended.outcomes
    assert (3, 4) == (appended.stream.position, appended.next_seq)
    assert [(n, "main", n, NOW + n, batch[n - 1].payload) for n in (1, 2, 3)] == await store.rows(key, 0, 10)
    assert 3 == (await reread(store, key)).position


async def test_positions_have_no_holes(store: Store) -> None:
    """Events of two producers share one row of positions."""
    key = await begun(store)
    assert stored(1, 2) == await send(store, key, *offers(1, 2))
    assert stored(3) == await send(store, key, offer(1), producer="asr")
    assert stored(4) == await send(store, key, offer(3))
    assert stored(5) == await send(store, key, offer(2), producer="asr")
    assert {"main": [1, 2, 3], "asr": [1, 2]} == await producers(store, key)


async def test_an_event_of_the_servers_own_is_appended_where_it_is_expected(store: Store) -> None:
    """Of two that expect the same position one is journaled; the other is told that the journal has gone on."""
    key = await begun(store)
    await send(store, key, *offers(1, 2))
    payloads = [b'{"type":"memory.summary","n":%d}' % n for n in (1, 2)]
    first, second = await asyncio.gather(*(store.append_server_event(key, payload, 2, NOW + 7) for payload in payloads))

    assert [3] == [stream.position for stream in (first, second) if stream is not None]
    won = payloads[0] if first is not None else payloads[1]
    assert [(3, None, None, NOW + 7, won)] == await store.rows(key, 2, 10)
    assert None is await store.append_server_event(key, payloads[0], 4, NOW)
    assert stored(4) == await send(store, key, offer(3))


async def test_an_event_of_the_servers_own_may_follow_the_close(store: Store) -> None:
    """What is remembered can still change; what was exported stays, and an erased session takes nothing."""
    key = await begun(store, given={"webhook": {"url": HOOK}})
    closed = await close(store, key)
    appended = await store.append_server_event(key, b'{"type":"memory.summary"}', closed.position, NOW + 9)
    assert appended is not None
    assert ("ended", closed.position + 1) == (appended.state, (await reread(store, key)).position)
    assert closed.position == (await claim_one(store)).position
    await store.erase(key, NOW)
    with pytest.raises(Refused, match="There is no such session"):
        await store.append_server_event(key, b"{}", closed.position + 1, NOW)


# Restoring


def journal_rows() -> list[JournalRow]:
    """Two events of one producer, one of the server's own, one of a producer without seqs, and the first again."""
    main = [(1, "main", 1, NOW - 9), (2, "main", 2, NOW - 9), (3, None, None, NOW - 8), (4, "api", None, NOW - 7)]
    return [JournalRow(*row, offer(row[2]).payload) for row in [*main, (5, "main", 4, NOW - 6)]]


async def restore(store: Store, session_id: str = "r", given: dict[str, Any] | None = None, **more: Any) -> Stream:
    """A new session with that journal."""
    producers = [ProducerState("main", next_seq=5), ProducerState("api", unsequenced=True)]
    restored = RestoredSession(**{"rows": journal_rows(), "started_ms": NOW - 10, "producers": producers, **more})
    made = await store.restore("p", session_id, validate_config(given or {}), restored, NOW)
    assert made is not None
    return made


async def test_a_restored_session_has_its_journal(store: Store) -> None:
    """It reads as it was written, and each producer goes on where it was; of a hole nothing is acknowledged."""
    made = await restore(store, given={"user_id": "ann"})
    assert ("running", 5, NOW - 10, NOW) == (made.state, made.position, made.started_ms, made.silent_since_ms)
    assert made == await store.stream("p", "r") == await reread(store, made.key)
    assert journal_rows() == await store.rows(made.key, 0, 10)
    assert ["seq_conflict", None, "seq_gap"] == [
        one.code for one in await send(store, made.key, offer(3), offer(5), offer(7))
    ]
    assert [Outcome(duplicate=True)] == await send(store, made.key, offer(2))
    assert ["seq_required"] == [one.code for one in await send(store, made.key, offer(1), producer="api")]
    assert stored(7) == await send(store, made.key, offer(None), producer="api")
    assert [made.key] == await store.due(NOW + IDLE_MS + 1, 10)
    assert 6 == (await begin(store, "r")).next_seq


async def test_who_counts_its_events_is_known(store: Store) -> None:
    """By what it stored, or by where it goes on from; not who sends without seq, nor who only opened."""
    made = await restore(store)
    assert [True, False, False] == [await store.has_seqs(made.key, name) for name in ("main", "api", "new")]
    opened = await begin(store, "b")
    assert not await store.has_seqs(opened.stream.key, "main")
    await send(store, opened.stream.key, offer(1))
    assert await store.has_seqs(opened.stream.key, "main")
    assert not await store.has_seqs(opened.stream.key, "other")


async def test_an_ended_session_is_restored_as_it_ended(store: Store) -> None:
    """It is over, reopens only where it was idle, is compacted and expires; no export is made of it."""
    hook = {"webhook": {"url": HOOK}, "ttl_seconds": 1}
    over = await restore(store, "over", hook, ended_ms=NOW - 5, reason="api")
    idle = await restore(store, "idle", hook, ended_ms=NOW - 5, reason="idle", provisional=True)
    for made, code in ((over, "session_ended"), (idle, None)):
        assert ("ended", NOW - 5, made.reason) == (made.state, made.ended_ms, made.reason)
        assert [code] == [one.code for one in await send(store, made.key, offer(5))]
    assert [over.key] == await store.expired(NOW + 2_000, 10)
    assert over.key in await store.find_compactable(NOW + REOPEN_MS, 10)
    assert [] == await claim(store)


async def test_an_end_that_waits_is_restored_too(store: Store) -> None:
    """The session is closed after the time that other producers have, with the reason that was given."""
    made = await restore(store, ending=END, producers=[ProducerState("main", next_seq=5, ended=True)])
    assert END == made.ending
    assert [made.key] == await store.due(NOW + END_GRACE_MS, 10)
    closed = await store.close(made.key, None, "n", NOW + END_GRACE_MS)
    assert closed is not None
    assert ("ended", END.reason) == (closed.state, closed.reason)


async def test_an_id_is_restored_once(store: Store) -> None:
    """What is there stays as it is, and what was erased does not come back."""
    key = await begun(store, "r")
    again = RestoredSession(rows=journal_rows(), started_ms=NOW)
    assert None is await store.restore("p", "r", validate_config({}), again, NOW)
    assert [] == await store.rows(key, 0, 10)
    await store.erase(key, NOW)
    with pytest.raises(Refused, match="session_erased"):
        await store.restore("p", "r", validate_config({}), again, NOW)


async def test_secrets_are_taken_over(store: Store) -> None:
    """From another session, unless they are given anew; not from an erased one."""
    hook = {"url": HOOK, "secret": "of the first"}
    key = await begun(store, given={"webhook": hook})
    await store.close((await restore(store, "a", {"webhook": {"url": HOOK}}, secrets_of=key)).key, END, "a", NOW)
    other = {"webhook": {"url": HOOK, "secret": "of its own"}}
    await store.close((await restore(store, "b", other, secrets_of=key)).key, END, "b", NOW)
    assert {"a": "of the first", "b": "of its own"} == {
        export.notice_id: export.endpoint.secret for export in await claim(store)
    }
    await store.erase(key, NOW)
    with pytest.raises(Refused, match="unknown_session"):
        await restore(store, "c", secrets_of=key)
    assert None is await store.stream("p", "c")


async def test_an_empty_batch_is_nothing(store: Store) -> None:
    """A batch without events changes nothing and tells how things stand."""
    key = await begun(store)
    appended = await append(store, key, "main", 1, [], NOW)

    assert ([], 0, 1) == (appended.outcomes, appended.stream.position, appended.next_seq)


async def test_an_append_needs_its_session(store: Store) -> None:
    """Events for a session that is not there are refused as a whole."""
    with pytest.raises(Refused) as refusal:
        await send(store, 99, offer(1))

    assert "unknown_session" == refusal.value.code


async def test_duplicates_are_acknowledged(store: Store) -> None:
    """A seq that is equal as JSON, wherever it says it belongs, is acknowledged again and not stored again."""
    key = await begun(store)
    await send(store, key, Offer(1, NOW, b'{"type":"asr","seq":1,"text":"\xc3\xa9","words":[1,{"a":2,"b":3}]}'))
    equal = b' {"words": [1, {"b": 3, "a": 2}], "text": "\\u00e9", "producer": "main", "seq": 1,'
    equal += b' "session_id": "s", "type": "asr"} '

    assert [Outcome(duplicate=True)] == await send(store, key, Offer(1, NOW + 1, equal))
    assert 1 == len(await store.rows(key, 0, 10))


async def test_a_batch_may_repeat_itself(store: Store) -> None:
    """A seq that stands twice in one batch is stored once; a different one under it is a conflict."""
    key = await begun(store)
    again = Outcome(duplicate=True)

    assert [Outcome(1), again, Outcome(2), again, Outcome(code="seq_conflict")] == await send(
        store, key, offer(1), offer(1), offer(2), offer(1), offer(2, text="other")
    )
    assert [Outcome(3), again, again] == await send(store, key, offer(3), offer(1), offer(3))
    assert {"main": [1, 2, 3]} == await producers(store, key)


async def test_a_resend_may_go_on(store: Store) -> None:
    """A batch that repeats what is stored and continues with what is not stores only the new."""
    key = await begun(store)
    await send(store, key, *offers(1, 3))
    repeated = [Outcome(duplicate=True)] * 3

    assert repeated + stored(4, 5) == await send(store, key, *offers(1, 5))
    assert {"main": [1, 2, 3, 4, 5]} == await producers(store, key)


async def test_duplicates_are_found_however_old(store: Store) -> None:
    """Duplicates are found by their key, late and between the events of another producer, alone or in a batch."""
    key = await begun(store)
    seqs = {"main": 0, "asr": 0}
    for producer, count in [("main", 5), ("asr", 700), ("main", 1), ("asr", 3), ("main", 400), ("asr", 900)]:
        batch = offers(seqs[producer] + 1, seqs[producer] + count)
        await send(store, key, *batch, producer=producer)
        seqs[producer] += count

    for producer, last in seqs.items():
        for seq in (1, 2, 5, 6, 7, last // 2, last - 1, last):
            assert [Outcome(duplicate=True)] == await send(store, key, offer(seq), producer=producer)
        assert [Outcome(duplicate=True)] * last == await send(store, key, *offers(1, last), producer=producer)
        assert [Outcome(duplicate=True)] * 3 == await send(
            store, key, offer(last), offer(1), offer(7), producer=producer
        )
        assert [Outcome(code="seq_conflict")] == await send(store, key, offer(6, text="other"), producer=producer)
    assert sum(seqs.values()) == (await reread(store, key)).position


async def test_duplicates_around_a_gap(store: Store) -> None:
    """After a gap what came before it is acknowledged again, and what lies in it can no longer be stored."""
    key = await begun(store)
    await send(store, key, *offers(1, 3))
    await begin(store, from_seq=10)
    await send(store, key, *offers(10, 12))
    again, lost = Outcome(duplicate=True), Outcome(code="seq_conflict")

    assert [again] * 3 + [lost] * 6 + [again] * 3 + stored(8) == await send(store, key, *offers(1, 13))
    assert [lost] == await send(store, key, offer(5))
    assert not is_acknowledged(lost)


async def test_another_event_under_a_seq_is_a_conflict(store: Store) -> None:
    """A seq that is stored with other content is refused, and the journal stays as it is."""
    key = await begun(store)
    await send(store, key, offer(1))

    assert [Outcome(code="seq_conflict")] == await send(store, key, offer(1, text="other"))
    assert [fields(1)] == await journal(store, key)


async def test_a_hole_stores_nothing(store: Store) -> None:
    """A seq above the next is refused with the expected one, and so is what follows it, until that one comes."""
    key = await begun(store)
    gap = Outcome(code="seq_gap", expected=2)

    assert [Outcome(1), gap, gap] == await send(store, key, offer(1), offer(3), offer(4))
    assert [gap] == await send(store, key, offer(2**53))
    assert [Outcome(2)] == await send(store, key, offer(2))
    assert {"main": [1, 2]} == await producers(store, key)


async def test_events_without_seq_are_stored_as_they_come(store: Store) -> None:
    """A producer that does not count has its events stored each time they come."""
    key = await begun(store)

    assert stored(1, 2) == await send(store, key, offer(None), offer(None))
    assert {"main": [None, None]} == await producers(store, key)


async def test_a_producer_counts_or_does_not(store: Store) -> None:
    """A producer that mixes events with and without seq is refused, whichever it began with, and others are not."""
    key = await begun(store)
    mixed = Outcome(code="seq_required")

    assert [Outcome(1), mixed] == await send(store, key, offer(1), offer(None))
    assert [mixed, Outcome(2)] == await send(store, key, offer(None), offer(2))
    assert [Outcome(3), mixed] == await send(store, key, offer(None), offer(1), producer="asr")
    assert [mixed, Outcome(4)] == await send(store, key, offer(1), offer(None), producer="asr")


async def test_a_refused_event_leaves_its_code(store: Store) -> None:
    """A refused event takes its position and seq, and the journal holds its code without its content."""
    key = await begun(store)

    assert [Outcome(1), Outcome(2, "invalid_field"), Outcome(3)] == await send(
        store, key, offer(1), refused(2), offer(3)
    )
    assert {"main": [1, 2, 3]} == await producers(store, key)
    assert {"type": "refused", "code": "invalid_field"} == (await journal(store, key))[1]


@pytest.mark.parametrize("again", [refused(1), refused(1, "unknown_type"), offer(1), offer(1, text="mended")])
async def test_a_refused_event_stays_refused(store: Store, again: Offer) -> None:
    """Whatever is sent again under a refused seq gets the error of the first time, which is its acknowledgement."""
    key = await begun(store)
    (first, inside) = await send(store, key, refused(1), again)
    (later,) = await send(store, key, again)

    assert Outcome(1, "invalid_field") == first
    assert Outcome(code="invalid_field", duplicate=True) == inside == later
    assert is_acknowledged(first)
    assert is_acknowledged(later)
    assert 1 == len(await store.rows(key, 0, 10))


async def test_a_stored_event_is_not_refused_later(store: Store) -> None:
    """A seq that was stored well cannot be replaced by an event that cannot be taken."""
    key = await begun(store)
    await send(store, key, offer(1))

    assert [Outcome(code="seq_conflict")] == await send(store, key, refused(1))
    assert [fields(1)] == await journal(store, key)


async def test_an_older_connection_is_superseded(store: Store) -> None:
    """After a newer open nothing is taken under the older epoch, not even duplicates."""
    key = await begun(store)
    await send(store, key, offer(1), epoch=1)
    await begin(store)

    assert [Outcome(code="superseded")] * 2 == await send(store, key, *offers(1, 2), epoch=1)
    assert [Outcome(duplicate=True), Outcome(2)] == await send(store, key, *offers(1, 2), epoch=2)


async def test_an_epoch_needs_an_open(store: Store) -> None:
    """An epoch of a producer that never opened is refused."""
    key = await begun(store)

    assert [Outcome(code="superseded")] == await send(store, key, offer(1), producer="asr", epoch=1)


async def test_without_an_epoch_none_is_checked(store: Store) -> None:
    """Events that name no epoch are taken whoever opened."""
    key = await begun(store)
    await begin(store)

    assert stored(1) == await send(store, key, offer(1))


async def test_nothing_new_after_a_producers_end(store: Store) -> None:
    """After its own end a producer's new events are refused, while others may still send."""
    key = await begun(store)

    assert [Outcome(1), Outcome(2), Outcome(code="session_ended")] == await send(store, key, offer(1), end(2), offer(3))
    assert [Outcome(code="session_ended")] == await send(store, key, offer(3))
    assert [Outcome(duplicate=True)] * 2 == await send(store, key, offer(1), end(2))
    assert stored(3) == await send(store, key, offer(1), producer="asr")


async def test_nothing_new_after_the_close(store: Store) -> None:
    """After the close duplicates are acknowledged and new events of any producer are refused."""
    key = await begun(store)
    await send(store, key, offer(1))
    await close(store, key)

    assert [Outcome(duplicate=True), Outcome(code="session_ended")] == await send(store, key, *offers(1, 2))
    assert [Outcome(code="session_ended")] == await send(store, key, offer(1), producer="asr")
    assert [Outcome(code="session_ended")] == await send(store, key, refused(2))
    assert 2 == (await reread(store, key)).position


async def test_each_event_of_a_batch_stands_alone(store: Store) -> None:
    """In one batch some events are stored, repeated, refused or left out, each by its own rule."""
    key = await begun(store)
    await send(store, key, *offers(1, 2))
    batch = [offer(1), offer(2, text="other"), offer(5), offer(3), refused(4), offer(4), offer(None), offer(5)]

    assert [
        Outcome(duplicate=True),
        Outcome(code="seq_conflict"),
        Outcome(code="seq_gap", expected=3),
        Outcome(3),
        Outcome(4, "invalid_field"),
        Outcome(code="invalid_field", duplicate=True),
        Outcome(code="seq_required"),
        Outcome(5),
    ] == await send(store, key, *batch)
    assert {"main": [1, 2, 3, 4, 5]} == await producers(store, key)


async def test_an_idle_session_is_reopened_by_a_new_event(store: Store) -> None:
    """Within the window a new event brings an idle session back; a duplicate or a superseded one does not."""
    key = await begun(store)
    await send(store, key, offer(1))
    await close_idle(store, key)

    assert [Outcome(duplicate=True)] == await send(store, key, offer(1), now_ms=NOW + 1)
    assert [Outcome(code="superseded")] == await send(store, key, offer(2), epoch=7, now_ms=NOW + 1)
    assert [Outcome(code="session_ended")] == await send(store, key, offer(3), now_ms=NOW + REOPEN_MS)
    assert "ended" == (await reread(store, key)).state
    assert [Outcome(duplicate=True), Outcome(4)] == await send(store, key, *offers(1, 2), now_ms=NOW + 2)
    assert ("running", NOW + 2) == ((await reread(store, key)).state, (await reread(store, key)).silent_since_ms)
    assert ["session.closed", "session.reopened", "llm.delta"] == (await kinds(store, key))[1:]


# What an append changes beside the journal


async def test_an_update_changes_the_configuration(store: Store) -> None:
    """A `session.update` is merged when it is stored: what it does not name stays, null takes away."""
    key = await begun(store, given={"name": "n", "labels": {"a": "1", "b": "2"}})
    appended = await append(store, key, "main", 1, [update(1, {"name": None, "labels": {"b": None, "c": "3"}})], NOW)

    assert {"labels": {"a": "1", "c": "3"}} == appended.stream.config
    assert appended.stream == await reread(store, key)


async def test_updates_of_one_batch_follow_each_other(store: Store) -> None:
    """Several updates of one batch take effect in their order, and an event that is refused has none."""
    key = await begun(store)
    late = update(3, {"name": "refused"})._replace(refusal="invalid_field")
    await send(store, key, update(1, {"name": "a", "channel": "c"}), update(2, {"name": "b"}), late)

    assert {"name": "b", "channel": "c"} == (await reread(store, key)).config


async def test_an_update_takes_effect_once(store: Store) -> None:
    """A resent update is acknowledged and changes nothing, however much came after it."""
    key = await begun(store)
    old, new = update(1, {"name": "old"}), update(2, {"name": "new"})
    await send(store, key, old, new)

    assert [Outcome(duplicate=True)] == await send(store, key, old)
    assert {"name": "new"} == (await reread(store, key)).config


async def test_too_many_labels_become_a_refusal(store: Store) -> None:
    """An update after which a session had too many labels is refused whole, and stays refused."""
    labels = {str(number): "x" for number in range(MAX_LABELS)}
    key = await begun(store, given={"labels": labels})
    much = update(1, {"name": "n", "labels": {"one more": "x"}})

    assert [Outcome(1, "invalid_field"), Outcome(2)] == await send(store, key, much, offer(2))
    assert [Outcome(code="invalid_field", duplicate=True)] == await send(store, key, much)
    assert {"type": "refused", "code": "invalid_field"} == (await journal(store, key))[0]
    assert {"labels": labels} == (await reread(store, key)).config


async def test_taking_a_section_away_takes_its_secret(store: Store) -> None:
    """A receiver that was taken away with its whole section does not give its secret to the next one."""
    key = await begun(store, given={"webhook": {"url": HOOK, "secret": "old"}})
    await send(store, key, update(1, {"webhook": None}), update(2, {"webhook": {"url": "https://next.example/"}}))
    await close(store, key)
    receiver = (await claim_one(store)).endpoint

    assert ("https://next.example/", None) == (receiver.url, receiver.secret)


async def test_the_first_end_counts(store: Store) -> None:
    """Time and reason of the end are those of the first `session.end`, whoever sends others, and when."""
    key = await begun(store)
    await send(store, key, end(1, NOW - 7, "hang_up"), now_ms=NOW + 1)
    await send(store, key, end(1, NOW - 9, "late"), producer="asr", now_ms=NOW + 2)
    await send(store, key, end(1, NOW - 7, "hang_up"), now_ms=NOW + 3)
    stream = await reread(store, key)

    assert (SessionEnding(NOW - 7, "hang_up"), NOW + 1, "running") == (stream.ending, stream.ending_ms, stream.state)


async def test_a_refused_end_ends_nothing(store: Store) -> None:
    """A `session.end` that cannot be taken leaves the session and its producer running."""
    key = await begun(store)
    wrong = end(1)._replace(refusal="last_seq_mismatch")

    assert [Outcome(1, "last_seq_mismatch"), Outcome(2)] == await send(store, key, wrong, offer(2))
    assert (await reread(store, key)).ending is None


async def test_a_change_by_the_server(store: Store) -> None:
    """A change of the configuration is merged and journaled as the server's own event, at once."""
    key = await begun(store, given={"labels": {"a": "1"}})
    payload = b'{"type":"session.update","labels":{"b":"2"}}'
    stream = await store.change(key, validate_config({"labels": {"b": "2"}}), payload, NOW + 1)

    assert {"labels": {"a": "1", "b": "2"}} == stream.config
    assert stream == await reread(store, key)
    assert [(1, None, None, NOW + 1, payload)] == await store.rows(key, 0, 10)


async def test_a_change_may_be_refused(store: Store) -> None:
    """A change is refused with too many labels, after the end, and for a session that is not there."""
    labels = {str(number): "x" for number in range(MAX_LABELS + 1)}
    key = await begun(store, given={"labels": {"a": "1"}})
    with pytest.raises(Refused, match="invalid_field"):
        await store.change(key, SessionPatch({"labels": labels}, {}), b"{}", NOW)
    with pytest.raises(Refused, match="unknown_session"):
        await store.change(key + 1, validate_config({}), b"{}", NOW)
    await close(store, key)
    with pytest.raises(Refused, match="session_ended"):
        await store.change(key, validate_config({}), b"{}", NOW)

    assert ["session.closed"] == await kinds(store, key)
    assert {"labels": {"a": "1"}} == (await reread(store, key)).config


# Closing


async def test_a_close_at_once(store: Store) -> None:
    """A close with its ending ends the session now, with the time and reason of that ending in the journal."""
    opened = (await begin(store)).stream
    key = opened.key
    await send(store, key, offer(1))
    closed = await close(store, key, END, now_ms=NOW + 9)

    assert replace(opened, state="ended", ended_ms=NOW + 9, reason=END.reason, position=2) == closed
    assert closed == await reread(store, key)
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal(store, key))[-1]


async def test_a_session_is_closed_once(store: Store) -> None:
    """Closing what is closed, or is not there, does nothing."""
    key = await begun(store)
    await close(store, key)

    assert await store.close(key, END, "n", NOW) is None
    assert await store.close_if_ended(key, [], None, "n", NOW) is None
    assert await store.close(key + 1, END, "n", NOW) is None
    assert ["session.closed"] == await kinds(store, key)


async def test_a_session_that_is_not_due_is_not_closed(store: Store) -> None:
    """A close without an ending leaves a session alone that has a connection, or ended only just now."""
    key = await begun(store)
    assert await store.close(key, None, "n", NOW + IDLE_MS) is None
    await send(store, key, end(1))
    assert await store.close(key, None, "n", NOW + END_GRACE_MS - 1) is None
    assert [] == await store.due(NOW + END_GRACE_MS - 1, 10)


async def test_an_end_is_due_after_its_grace(store: Store) -> None:
    """Two seconds after the first end the session is closed with its time and reason."""
    key = await begun(store)
    await send(store, key, end(1, NOW - 7, "hang_up"))
    await send(store, key, end(1, NOW - 9, "late"), producer="asr", now_ms=NOW + 1000)

    assert [key] == await store.due(NOW + END_GRACE_MS, 10)
    closed = await close(store, key, None, now_ms=NOW + END_GRACE_MS)
    assert ("hang_up", NOW + END_GRACE_MS) == (closed.reason, closed.ended_ms)
    assert {"type": "session.closed", "ts": NOW - 7, "reason": "hang_up"} == (await journal(store, key))[-1]
    assert [] == await store.due(NOW + END_GRACE_MS, 10)


async def test_an_end_waits_for_those_connected(store: Store) -> None:
    """An ended session is closed early only when every connected producer has ended."""
    key = await begun(store)
    await send(store, key, end(1))

    assert await store.close_if_ended(key, ["main", "asr"], None, "n", NOW) is None
    await send(store, key, end(1), producer="asr")
    closed = await store.close_if_ended(key, ["main", "asr"], None, "n", NOW)
    assert closed is not None
    assert END.reason == closed.reason


async def test_an_end_waits_for_nobody(store: Store) -> None:
    """An ended session is closed at once when no other producer is connected."""
    key = await begun(store)
    await send(store, key, offer(1), producer="asr")
    await send(store, key, end(1))

    assert await store.close_if_ended(key, ["main"], None, "n", NOW) is not None


async def test_a_session_without_an_end_is_not_ended(store: Store) -> None:
    """A session that no producer ended is not closed as ended, connected or not."""
    key = await begun(store)
    await send(store, key, end(1)._replace(refusal="invalid_field"))

    assert await store.close_if_ended(key, [], None, "n", NOW) is None
    assert await store.close_if_ended(key, ["main"], None, "n", NOW) is None


async def test_silence_is_closed_as_idle(store: Store) -> None:
    """A session that has heard nothing for its idle timeout after its last connection went is closed as idle."""
    key = await begun(store)
    await store.silence(key, NOW + 1000)
    due = NOW + 1000 + IDLE_MS

    assert ([], [key]) == (await store.due(due - 1, 10), await store.due(due, 10))
    assert await store.close(key, None, "n", due - 1) is None
    closed = await close(store, key, None, now_ms=due)
    assert ("idle", due) == (closed.reason, closed.ended_ms)
    assert {"type": "session.closed", "ts": due, "reason": "idle"} == (await journal(store, key))[-1]


async def test_a_session_without_a_connection_is_silent(store: Store) -> None:
    """A session that was created and never opened is idle from its creation on, one with a connection is not."""
    stream, _ = await store.create("p", "s", validate_config({}), NOW)
    assert [stream.key] == await store.due(NOW + IDLE_MS, 10)
    await begin(store)
    assert [] == await store.due(NOW + IDLE_MS, 10)


async def test_coming_back_ends_the_silence(store: Store) -> None:
    """A connection that comes while a due session is about to be closed keeps it open."""
    key = await begun(store)
    await store.silence(key, NOW)
    assert [key] == await store.due(NOW + IDLE_MS, 10)
    await store.silence(key, None)

    assert await store.close(key, None, "n", NOW + IDLE_MS) is None
    assert "running" == (await reread(store, key)).state


@pytest.mark.parametrize("heard", [offer(1), offer(2)])
async def test_events_without_a_connection_are_heard(store: Store, heard: Offer) -> None:
    """What comes over HTTP counts as hearing, duplicates included."""
    key = await begun(store)
    await send(store, key, offer(1))
    await store.silence(key, NOW)
    await send(store, key, heard, now_ms=NOW + 5000)

    assert ([], [key]) == (await store.due(NOW + IDLE_MS, 10), await store.due(NOW + 5000 + IDLE_MS, 10))


async def test_silence_may_be_allowed(store: Store) -> None:
    """With an idle timeout of 0 silence never closes a session, and an update may turn it on."""
    key = await begun(store, given={"idle_timeout": 0})
    await store.silence(key, NOW)

    assert [] == await store.due(NOW + 10 * IDLE_MS, 10)
    await send(store, key, update(1, {"idle_timeout": 1.5}), now_ms=NOW)
    assert ([], [key]) == (await store.due(NOW + 1499, 10), await store.due(NOW + 1500, 10))


async def test_the_longest_session(store: Store) -> None:
    """A session is closed after its longest duration, connected and talking or not."""
    key = await begun(store, given={"max_duration": 100})
    await send(store, key, offer(1), now_ms=NOW + 99_999)

    assert ([], [key]) == (await store.due(NOW + 99_999, 10), await store.due(NOW + 100_000, 10))
    closed = await close(store, key, None, now_ms=NOW + 100_001)
    assert "max_duration" == closed.reason
    assert NOW + 100_001 == (await journal(store, key))[-1]["ts"]


async def test_what_ended_is_not_silent(store: Store) -> None:
    """Noting a silence does nothing to a session that is closed."""
    key = await begun(store)
    closed = await close(store, key)
    await store.silence(key, NOW)

    assert closed == await reread(store, key)
    assert [] == await store.due(NOW + 10**9, 10)


async def test_due_sessions_come_in_their_order(store: Store) -> None:
    """The sessions that have been due for longest come first, at most as many as asked for."""
    keys = [await begun(store, f"s{number}") for number in range(4)]
    for key, wait in zip(keys, (3, 1, 2, 4), strict=True):
        await store.silence(key, NOW + wait)

    assert [keys[1], keys[2], keys[0]] == await store.due(NOW + 3 + IDLE_MS, 10)
    assert [keys[1], keys[2]] == await store.due(NOW + 4 + IDLE_MS, 2)


async def test_time_without_a_server_is_not_silence(store: Store) -> None:
    """After a restart every running session is silent from then on, whatever it was before."""
    connected, silent, ended = [await begun(store, name) for name in ("connected", "silent", "ended")]
    await store.silence(silent, NOW)
    closed = await close(store, ended)
    later = NOW + 10 * IDLE_MS
    await store.restart(later)

    assert [] == await store.due(later + IDLE_MS - 1, 10)
    assert sorted([connected, silent]) == sorted(await store.due(later + IDLE_MS, 10))
    assert [later, later] == [(await reread(store, key)).silent_since_ms for key in (connected, silent)]
    assert closed == await reread(store, ended)


async def test_a_restart_closes_what_had_ended(store: Store) -> None:
    """A session whose end was committed is due at once after a restart, and is closed with that end."""
    key = await begun(store)
    await send(store, key, end(1), now_ms=NOW)
    await store.restart(NOW + 1)

    assert [key] == await store.due(NOW + 1, 10)
    await close(store, key, None, now_ms=NOW + 1)
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal(store, key))[-1]


async def test_a_restart_gives_those_who_have_not_ended_their_grace_anew(store: Store) -> None:
    """Their connections broke with the process before: the close waits for them, also when they are back."""
    key = await begun(store)
    await store.open("p", "s", "llm", validate_config({}), None, NOW)
    await send(store, key, end(1), now_ms=NOW)
    again = NOW + 10 * END_GRACE_MS
    await store.restart(again)

    assert [] == await store.due(again + END_GRACE_MS - 1, 10)
    await store.open("p", "s", "llm", validate_config({}), None, again + 1)
    assert [] == await store.due(again + END_GRACE_MS - 1, 10)
    assert await store.close_if_ended(key, [], (), "n", again + 2) is None
    assert await store.close_if_ended(key, [], ("llm",), "n", again + 2) is not None
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal(store, key))[-1]


# What a close exports


async def test_a_close_exports_to_every_receiver(store: Store) -> None:
    """A close makes one export for the operator's receiver and one for the session's own, of the same notice."""
    await store.set_operator_endpoint(OPERATOR, "operator-secret")
    webhook = {"url": HOOK, "secret": "own-secret", "contents": "standard"}
    key = await begun(store, given={"webhook": webhook})
    await send(store, key, *offers(1, 3))
    await store.close(key, END, "n1", NOW)
    exports = {export.endpoint.url: export for export in await claim(store)}

    assert {OPERATOR, HOOK} == set(exports)
    assert {(key, "n1", 103, 4, None, 0)} == {
        (export.stream, export.notice_id, export.event_type, export.position, export.payload, export.attempts)
        for export in exports.values()
    }
    own, operator = exports[HOOK].endpoint, exports[OPERATOR].endpoint
    assert Endpoint(own.key, key, HOOK, "own-secret", "standard", True, None) == own
    assert Endpoint(operator.key, None, OPERATOR, "operator-secret", "full", False, None) == operator


async def test_the_operators_receiver_hears_of_every_session(store: Store) -> None:
    """A session's own receiver hears of that session only, the operator's of all."""
    await store.set_operator_endpoint(OPERATOR, None)
    first = await finished(store, "s1", HOOK)
    second = await finished(store, "s2", None)
    exports = await claim(store)

    heard = {(first.key, HOOK), (first.key, OPERATOR), (second.key, OPERATOR)}
    assert (3, heard) == (len(exports), {(export.stream, export.endpoint.url) for export in exports})


async def test_the_operators_endpoint_is_found_unless_it_was_taken_away(store: Store) -> None:
    """One that is disabled is still there; one that the operator gave up is not."""
    assert await store.find_operator_endpoint() is None
    await store.set_operator_endpoint(OPERATOR, None)
    await finished(store, hook=None)
    export = await claim_one(store)
    assert export.endpoint == await store.find_operator_endpoint()
    await store.disable_endpoint(export.endpoint, NOW)
    found = await store.find_operator_endpoint()
    assert found is not None
    assert (OPERATOR, NOW, "gone") == (found.url, found.disabled_ms, found.disabled_reason)
    await store.set_operator_endpoint(None, None)
    assert await store.find_operator_endpoint() is None


async def test_without_a_receiver_there_is_no_export(store: Store) -> None:
    """A session that nobody wants to hear of makes no export."""
    stream = await finished(store, hook=None)

    assert ([], None, []) == (await claim(store), await store.next_delivery_ms(), await store.deliveries(stream.key))


async def test_no_export_for_a_disabled_receiver(store: Store) -> None:
    """Receivers that were disabled or taken away get nothing from later closes."""
    await store.set_operator_endpoint(OPERATOR, None)
    first = await finished(store, "s1", hook=None)
    await store.disable_endpoint((await claim_one(store)).endpoint, NOW)
    key = await begun(store, "s2", {"webhook": {"url": HOOK}})
    await send(store, key, update(1, {"webhook": {"url": None}}))
    await close(store, key)

    assert [] == await store.deliveries(key)
    assert 1 == len(await store.deliveries(first.key))


async def test_a_receiver_may_come_during_the_call(store: Store) -> None:
    """The receiver that counts is the one at the close, with its newest secret."""
    key = await begun(store, given={"webhook": {"url": HOOK, "secret": "old"}})
    await send(store, key, update(1, {"webhook": {"secret": "new"}}))
    await send(store, key, update(2, {"webhook": {"url": HOOK + "/2"}}))
    await close(store, key)
    export = await claim_one(store)

    assert (HOOK + "/2", "new") == (export.endpoint.url, export.endpoint.secret)


async def test_a_receiver_may_come_back(store: Store) -> None:
    """A session's receiver that was taken away and is given again hears of the close."""
    key = await begun(store, given={"webhook": {"url": HOOK}})
    await send(store, key, update(1, {"webhook": {"url": None}}), update(2, {"webhook": {"url": HOOK}}))
    await close(store, key)

    assert HOOK == (await claim_one(store)).endpoint.url


async def test_every_close_exports_anew(store: Store) -> None:
    """A session that was reopened is exported again at its next close, at the position of that close."""
    key = await begun(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key, "n1")
    await send(store, key, offer(1), now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)
    exports = await claim(store, NOW + 2)

    assert [("n1", 1), ("n2", 4)] == [(export.notice_id, export.position) for export in exports]


async def test_an_export_is_of_its_close(store: Store) -> None:
    """What stands around the contents of an export is as it was at its close, whatever the session became later."""
    first = {"name": "joker", "channel": "c", "labels": {"a": "1"}, "webhook": {"url": HOOK}}
    key = await begun(store, given=first, now_ms=NOW - 9)
    await close_idle(store, key, "n1")
    await send(store, key, update(1, {"name": "other", "channel": None, "labels": {"a": "2"}}), now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)
    exports = {export.notice_id: export.closing for export in await claim(store, NOW + 2)}

    assert SessionHeader("s", "joker", "c", {"a": "1"}, NOW - 9, NOW, "idle") == exports["n1"]
    assert SessionHeader("s", "other", None, {"a": "2"}, NOW - 9, NOW + 2, END.reason) == exports["n2"]


async def test_what_is_not_closed_is_not_exported(store: Store) -> None:
    """A close that does nothing exports nothing."""
    await store.set_operator_endpoint(OPERATOR, None)
    key = await begun(store)
    await store.close(key, None, "n", NOW)
    await store.close_if_ended(key, [], None, "n", NOW)

    assert [] == await claim(store)


async def test_another_operators_receiver(store: Store) -> None:
    """A new URL replaces the operator's receiver; giving one, be it the same, enables it."""
    await store.set_operator_endpoint(OPERATOR, None)
    await finished(store, "s1", hook=None)
    await store.disable_endpoint((await claim_one(store)).endpoint, NOW)
    await finished(store, "s2", hook=None)
    assert [] == await claim(store)
    await store.set_operator_endpoint(OPERATOR + "/new", "secret")
    stream = await finished(store, "s3", hook=None)

    export = await claim_one(store)
    assert (stream.key, OPERATOR + "/new", "secret") == (export.stream, export.endpoint.url, export.endpoint.secret)


async def test_no_operators_receiver_any_more(store: Store) -> None:
    """Without its URL the operator's receiver hears no more, and with it again."""
    await store.set_operator_endpoint(None, None)
    await store.set_operator_endpoint(OPERATOR, None)
    await store.set_operator_endpoint(None, None)
    await finished(store, "s1", hook=None)
    assert [] == await claim(store)
    await store.set_operator_endpoint(OPERATOR, None)
    await finished(store, "s2", hook=None)
    assert 1 == len(await claim(store))


async def test_what_waits_for_a_removed_receiver_is_not_sent(store: Store) -> None:
    """When a receiver is taken away, the operator's or a session's own, what waits for it is not sent to it."""
    await store.set_operator_endpoint(OPERATOR, None)
    key = await begun(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key)
    await send(store, key, update(1, {"webhook": {"url": None}}), now_ms=NOW + 1)
    await store.set_operator_endpoint(None, None)

    assert [] == [export.endpoint.url for export in await claim(store, NOW + 1)]


# The outbox


async def test_a_claim_is_a_lease(store: Store) -> None:
    """Nobody else gets an export until its lease ends; then it is claimed under a new one."""
    await finished(store)
    first = await claim_one(store)

    assert [] == await claim(store, NOW + LEASE_MS - 1)
    second = await claim_one(store, NOW + LEASE_MS)
    assert first.key == second.key
    assert first.lease < second.lease


async def test_a_start_ends_the_leases_of_dead_processes(store: Store) -> None:
    """What they were attempting, and what the clock put into the future, is claimed at once; retries wait."""
    await finished(store, "leased", notice_id="n1")
    await finished(store, "later", notice_id="n2", now_ms=NOW + 3_600_000)
    waiting, leased = await finished(store, "waiting", notice_id="n3", now_ms=NOW - 1), await claim(store)
    assert ["n3", "n1"] == [export.notice_id for export in leased]
    assert await store.finish_delivery(leased[0], attempt(500), "pending", NOW + 5000)
    await store.release_deliveries(NOW)

    assert {"n1", "n2"} == {export.notice_id for export in await claim(store)}
    assert ["pending"] == [made.state for made in await store.deliveries(waiting.key)]
    assert not await store.finish_delivery(leased[1], attempt(), "delivered", None)


async def test_the_oldest_exports_come_first(store: Store) -> None:
    """Exports are claimed in the order in which they became due, at most as many as asked for."""
    for number in (3, 1, 2, 4):
        await finished(store, f"s{number}", notice_id=f"n{number}", now_ms=NOW + number)

    assert ["n1", "n2"] == [export.notice_id for export in await claim(store, NOW + 3, limit=2)]
    assert ["n3"] == [export.notice_id for export in await claim(store, NOW + 3)]


async def test_busy_receivers_are_left_out(store: Store) -> None:
    """Exports of busy receivers stay unclaimed, and do not stand in the way of others."""
    await store.set_operator_endpoint(OPERATOR, None)
    await finished(store, "s1", hook=None)
    busy = (await claim_one(store)).endpoint.url
    await finished(store, "s2", hook=None)
    await finished(store, "s3", HOOK)

    assert [HOOK] == [
        export.endpoint.url for export in await claim(store, busy=[busy, "https://other.example/"], limit=1)
    ]
    assert [] == await claim(store, busy=[busy])
    assert [OPERATOR, OPERATOR] == [
        export.endpoint.url for export in await claim(store, busy=["https://other.example/"])
    ]


async def test_the_first_frozen_body_stays(store: Store) -> None:
    """The payload that was kept first is what everybody sends, in every attempt."""
    await finished(store)
    first = await claim_one(store)
    second = await claim_one(store, NOW + LEASE_MS)

    assert b"first" == await store.freeze(second, b"first")
    assert b"first" == await store.freeze(first, b"second")
    assert b"first" == (await claim_one(store, NOW + 2 * LEASE_MS)).payload


async def test_a_delivered_export_is_done(store: Store) -> None:
    """What was delivered is not claimed again, and its attempt can be read."""
    stream = await finished(store)
    export = await claim_one(store)

    assert await store.finish_delivery(export, attempt(204), "delivered", None)
    assert [] == await claim(store, NOW + 10**9)
    assert [Delivery("n", HOOK, 103, "delivered", [attempt(204)])] == await store.deliveries(stream.key)


async def test_a_failed_attempt_is_tried_again(store: Store) -> None:
    """An export that waits for another attempt is claimed when that is due, with its attempts counted."""
    stream = await finished(store)
    assert await store.finish_delivery(await claim_one(store), attempt(500), "pending", NOW + 5000)

    assert [] == await claim(store, NOW + 4999)
    export = await claim_one(store, NOW + 5000)
    assert 1 == export.attempts
    assert await store.finish_delivery(export, attempt(None, "timeout", NOW + 5000), "failed", None)
    attempts = [attempt(500), attempt(None, "timeout", NOW + 5000)]
    assert [Delivery("n", HOOK, 103, "failed", attempts)] == await store.deliveries(stream.key)
    assert [] == await claim(store, NOW + 10**9)


async def test_a_finish_counts_only_under_its_lease(store: Store) -> None:
    """Whoever lost the lease changes nothing and logs nothing."""
    stream = await finished(store)
    slow = await claim_one(store)
    fast = await claim_one(store, NOW + LEASE_MS)

    assert not await store.finish_delivery(slow, attempt(200), "delivered", None)
    assert [Delivery("n", HOOK, 103, "pending", [])] == await store.deliveries(stream.key)
    assert await store.finish_delivery(fast, attempt(410), "failed", None)
    assert not await store.finish_delivery(slow, attempt(200), "delivered", None)
    assert [Delivery("n", HOOK, 103, "failed", [attempt(410)])] == await store.deliveries(stream.key)


async def test_a_finish_counts_once(store: Store) -> None:
    """A finish gives its lease back: a second one, after a doubtful commit, does nothing."""
    stream = await finished(store)
    export = await claim_one(store)

    assert await store.finish_delivery(export, attempt(500), "pending", NOW + 1)
    assert not await store.finish_delivery(export, attempt(500), "pending", NOW + 2)
    assert [Delivery("n", HOOK, 103, "pending", [attempt(500)])] == await store.deliveries(stream.key)
    assert NOW + 1 == await store.next_delivery_ms()


async def test_a_disabled_receiver_gets_nothing(store: Store) -> None:
    """What waits for a receiver that is disabled is failed; other receivers and what was delivered stay."""
    await store.set_operator_endpoint(OPERATOR, None)
    done = await finished(store, "s1", hook=None)
    export = await claim_one(store)
    await store.finish_delivery(export, attempt(), "delivered", None)
    waiting = await finished(store, "s2", HOOK)
    await store.disable_endpoint(export.endpoint, NOW)

    assert ["delivered"] == [made.state for made in await store.deliveries(done.key)]
    assert {OPERATOR: "failed", HOOK: "pending"} == {
        made.url: made.state for made in await store.deliveries(waiting.key)
    }
    assert [HOOK] == [export.endpoint.url for export in await claim(store)]


async def test_what_is_on_its_way_does_not_come_back(store: Store) -> None:
    """An attempt that was on its way when its receiver was disabled is not followed by another."""
    await store.set_operator_endpoint(OPERATOR, None)
    for number in (1, 2):
        await finished(store, f"s{number}", hook=None)
    gone, failing = await claim(store)
    await store.finish_delivery(gone, attempt(410), "failed", None)
    await store.disable_endpoint(gone.endpoint, NOW)
    await store.finish_delivery(failing, attempt(500), "pending", NOW + 5000)

    assert [] == await claim(store, NOW + 10**9)
    assert ["failed"] == [made.state for made in await store.deliveries(failing.stream)]


async def test_a_success_on_its_way_still_counts(store: Store) -> None:
    """What was delivered after its receiver was disabled is delivered."""
    stream = await finished(store)
    export = await claim_one(store)
    await store.disable_endpoint(export.endpoint, NOW)
    await store.finish_delivery(export, attempt(), "delivered", None)

    assert [Delivery("n", HOOK, 103, "delivered", [attempt()])] == await store.deliveries(stream.key)


async def test_when_the_next_export_is_due(store: Store) -> None:
    """The next export is the earliest that is due, or whose lease ends; none when nothing waits."""
    assert await store.next_delivery_ms() is None
    await finished(store, "s1", now_ms=NOW)
    assert NOW == await store.next_delivery_ms()
    export = await claim_one(store)
    assert NOW + LEASE_MS == await store.next_delivery_ms()
    await finished(store, "s2", now_ms=NOW + 7)
    assert NOW + 7 == await store.next_delivery_ms()
    await store.finish_delivery(export, attempt(500), "pending", NOW + 5)
    assert NOW + 5 == await store.next_delivery_ms()
    for claimed in await claim(store, NOW + 7):
        await store.finish_delivery(claimed, attempt(), "delivered", None)
    assert await store.next_delivery_ms() is None


async def test_busy_receivers_hide_nobody(store: Store) -> None:
    """However much waits for receivers that are busy, or were taken away, what is due for others is found."""
    await store.set_operator_endpoint(OPERATOR, None)
    for number in range(FRONT_ROWS + 20):
        await finished(store, f"s{number}", hook=None, now_ms=NOW + number)
    await finished(store, "late", HOOK + "/late", now_ms=NOW + 10**6)
    await finished(store, "own", HOOK, now_ms=NOW + 10**6 + 1)
    later = NOW + 10**6 + 2

    found = await claim(store, later, busy=[OPERATOR])
    assert [HOOK + "/late", HOOK] == [export.endpoint.url for export in found]
    assert [] == await claim(store, later, busy=[OPERATOR])
    await store.set_operator_endpoint(None, None)
    await finished(store, "last", HOOK, now_ms=later)
    assert [HOOK] == [export.endpoint.url for export in await claim(store, later)]


# Notices, and the endpoints of projects


def made_endpoint(endpoint_id: str = "e1", *event_types: int, project: str = "p", **more: Any) -> Endpoint:
    """An endpoint that is to be added; its key is the store's."""
    endpoint = Endpoint(
        0, None, f"https://{endpoint_id}.example/", "whsec_AAAA", "full", True, None, endpoint_id, project
    )
    return replace(endpoint, event_types=event_types or (103,), created_ms=NOW, **more)


async def add(store: Store, endpoint: Endpoint) -> Endpoint:
    added = await store.add_endpoint(endpoint, 100)
    assert added is not None
    return added


async def failed(store: Store, key: int, count: int = 1, now_ms: int = NOW) -> None:
    """Let what is due for an endpoint fail for good."""
    exports = [export for export in await claim(store, now_ms) if export.endpoint.key == key]
    assert count == len(exports)
    for export in exports:
        assert await store.finish_delivery(export, attempt(500, started_ms=now_ms), "failed", None)


def told(exports: Sequence[ClaimedDelivery]) -> list[tuple[int, str, int]]:
    return [(export.event_type, export.notice_id, export.position) for export in exports]


async def test_a_start_and_a_close_are_told_to_who_wants_it(store: Store) -> None:
    """Each notice is of one position of the journal, has an id of its own, and goes to who subscribed to it."""
    endpoint = await add(store, made_endpoint("e1", 101, 102, 103, 111, 112))
    await add(store, made_endpoint("e2", 103))
    key = await begun(store, given={"name": "joker", "labels": {"a": "1"}})
    (start,) = await claim(store)
    await send(store, key, *offers(1, 2))
    await close(store, key, END, "n", NOW + 5000)
    closing = await claim(store, NOW + 5000)

    assert (101, 0, endpoint) == (start.event_type, start.position, start.endpoint)
    assert start.notice_id.endswith("-101")
    assert SessionHeader("s", "joker", None, {"a": "1"}, NOW, NOW) == start.closing
    mine = [export for export in closing if export.endpoint.id == "e1"]
    assert [(102, "n-102", 3), (103, "n", 3), (111, "n-111", 3), (112, "n-112", 3)] == told(mine)
    assert SessionHeader("s", "joker", None, {"a": "1"}, NOW, NOW + 5000, END.reason) == mine[0].closing
    assert [None] * 4 == [export.payload for export in mine]
    assert [(103, "n", 3)] == told([export for export in closing if export.endpoint.id == "e2"])


@pytest.mark.parametrize("reason", ["idle", "max_duration", "left"])
async def test_how_a_session_left(store: Store, reason: str) -> None:
    """The row of a close has its reason."""
    await add(store, made_endpoint("e1", 102))
    await close(store, await begun(store), SessionEnding(NOW, reason))
    assert reason == (await claim_one(store)).closing.reason


async def test_a_session_that_comes_back_starts_again(store: Store) -> None:
    """By an open or by an event; whoever opens one that runs starts nothing."""
    await add(store, made_endpoint("e1", 101))
    key = await begun(store)
    await begin(store)
    assert 1 == len(await claim(store))
    await close_idle(store, key)
    await send(store, key, offer(1))
    await close_idle(store, key)
    await begin(store)
    exports = await claim(store)

    assert [2, 5] == [export.position for export in exports]
    assert 2 == len({export.notice_id for export in exports})


async def test_only_the_own_project_is_heard(store: Store) -> None:
    """A project's endpoint hears of no other project's sessions, the operator's of histories of all."""
    await store.set_operator_endpoint(OPERATOR, None)
    await add(store, made_endpoint("e1", 101, 102, 103))
    await add(store, made_endpoint("e2", 101, 102, 103, project="other"))
    await finished(store, hook=None)
    heard = [(export.endpoint.id, export.event_type) for export in await claim(store)]

    assert [("e1", 101), ("e1", 102), ("e1", 103), (None, 103)] == sorted(heard, key=str)


async def test_an_own_receiver_may_hear_more(store: Store) -> None:
    """A session's receiver gets the types of its configuration; taken away, they are histories again."""
    key = await begun(store, given={"webhook": {"url": HOOK, "event_types": [101, 112]}})
    await send(store, key, update(1, {"webhook": {"event_types": [102]}}))
    await close_idle(store, key)
    await send(store, key, update(2, {"webhook": {"event_types": None}}), now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)

    assert [101, 102, 103] == [export.event_type for export in await claim(store, NOW + 2)]


async def test_endpoints_are_kept_by_project(store: Store) -> None:
    """They are found by project and id, in the order in which they were made, as they were given."""
    first = await add(store, made_endpoint("e1", 101, 112, description="ours", contents="standard"))
    second = await add(store, made_endpoint("e2", disabled_ms=NOW, disabled_reason="request"))
    other = await add(store, made_endpoint("e1", project="other"))

    assert [first, second] == await store.endpoints("p")
    assert (first, other, None) == (
        await store.endpoint("p", "e1"),
        await store.endpoint("other", "e1"),
        await store.endpoint("other", "e2"),
    )
    assert replace(made_endpoint("e1", 101, 112, description="ours", contents="standard"), key=first.key) == first
    assert await store.add_endpoint(made_endpoint("e3"), 2) is None
    assert [first, second] == await store.endpoints("p")


async def test_changing_an_endpoint(store: Store) -> None:
    """Every field may change; what waits goes where it is then, and what is unknown stays unknown."""
    endpoint = await add(store, made_endpoint())
    await finished(store, hook=None)
    new = {"url": HOOK, "secret": "new", "old_secret": "old", "old_secret_until_ms": NOW, "event_types": (101,)}
    changed = await store.change_endpoint("p", "e1", lambda old: replace(old, **new))

    assert replace(endpoint, **new) == changed == await store.endpoint("p", "e1") == (await claim_one(store)).endpoint
    assert await store.change_endpoint("other", "e1", lambda old: replace(old, url=OPERATOR)) is None
    assert await store.change_endpoint("p", "e2", lambda old: replace(old, url=OPERATOR)) is None


async def test_an_endpoint_that_is_disabled_waits_for_nothing(store: Store) -> None:
    """What waits is failed, and nothing new is made, until it is enabled."""
    endpoint = await add(store, made_endpoint())
    await finished(store, "s1", hook=None)
    await store.change_endpoint("p", "e1", lambda old: replace(old, disabled_ms=NOW))
    await finished(store, "s2", hook=None)
    assert ([], None) == (await claim(store), await store.next_delivery_ms())
    await store.change_endpoint("p", "e1", lambda old: replace(old, disabled_ms=None))
    await finished(store, "s3", hook=None)

    assert ["s3"] == [export.closing.session_id for export in await claim(store)]
    states = [(one.session_id, one.delivery.state) for one in await delivering(store, endpoint)]
    assert [("s3", "pending"), ("s1", "failed")] == states


async def test_an_endpoint_that_is_gone_says_so(store: Store) -> None:
    """Its reason can be read."""
    endpoint = await add(store, made_endpoint())
    await store.disable_endpoint(endpoint, NOW + 1)

    assert replace(endpoint, disabled_ms=NOW + 1, disabled_reason="gone") == await store.endpoint("p", "e1")


async def test_deleting_an_endpoint(store: Store) -> None:
    """Nothing is sent to it or known of it any more; what was on its way comes to its end without harm."""
    endpoint = await add(store, made_endpoint())
    await finished(store, "s1", hook=None)
    on_its_way = await claim_one(store)
    await finished(store, "s2", hook=None)
    assert not await store.delete_endpoint("other", "e1")
    assert await store.delete_endpoint("p", "e1")
    assert not await store.delete_endpoint("p", "e1")
    await store.finish_delivery(on_its_way, attempt(500), "pending", NOW + 1)

    assert ([], None, []) == (
        await store.endpoints("p"),
        await store.endpoint("p", "e1"),
        await claim(store, NOW + 10**9),
    )
    assert ([], None) == (await delivering(store, endpoint), await store.next_delivery_ms())


async def delivering(store: Store, endpoint: Endpoint, **wanted: Any) -> list[EndpointDelivery]:
    return await store.list_endpoint_deliveries(endpoint.key, DeliveryFilter(**wanted))


async def test_deliveries_of_an_endpoint(store: Store) -> None:
    """They are listed with their attempts, the newest first, by what is asked for."""
    endpoint = await add(store, made_endpoint("e1", 102, 103))
    await add(store, made_endpoint("e2"))
    for number in (1, 2):
        await finished(store, f"s{number}", hook=None, notice_id=f"n{number}", now_ms=NOW + number)
    for export in await claim(store, NOW + 1):
        await store.finish_delivery(export, attempt(), "delivered", None)
    everyone = await delivering(store, endpoint)

    assert ["n2", "n2-102", "n1", "n1-102"] == [one.delivery.notice_id for one in everyone]
    url = endpoint.url
    assert [
        EndpointDelivery(everyone[0].key, "s2", NOW + 2, NOW + 2, Delivery("n2", url, 103, "pending", [])),
        EndpointDelivery(everyone[2].key, "s1", NOW + 1, None, Delivery("n1", url, 103, "delivered", [attempt()])),
    ] == await delivering(store, endpoint, event_type=103)
    assert (
        everyone[2:]
        == await delivering(store, endpoint, session_id="s1")
        == await delivering(store, endpoint, state="delivered")
    )
    assert everyone[1:3] == await delivering(store, endpoint, before=everyone[0].key, limit=2)


async def test_sending_again(store: Store) -> None:
    """What was delivered, has failed or waits is due at once; the attempts of before count for the log only."""
    endpoint, other = await add(store, made_endpoint()), await add(store, made_endpoint("e2", 101, project="other"))
    stream = await finished(store, hook=None)
    await send_until(store, endpoint, "delivered")
    (delivered,) = await delivering(store, endpoint)
    assert await store.resend(other.key, delivered.key, NOW) is None
    assert await store.resend(endpoint.key, delivered.key + 100, NOW) is None
    again = await store.resend(endpoint.key, delivered.key, NOW + 9)

    assert again is not None
    assert ("pending", NOW + 9) == (again.delivery.state, again.due_ms)
    export = await claim_one(store, NOW + 9)
    assert (b"body", 1, 1) == (export.payload, export.attempts, export.restarted_at)
    assert await store.finish_delivery(export, attempt(500), "pending", NOW + 10**6)
    assert await store.resend(endpoint.key, delivered.key, NOW + 10) is not None
    export = await claim_one(store, NOW + 10)
    assert (2, 2) == (export.attempts, export.restarted_at)
    await store.erase(stream.key, NOW)
    assert await store.resend(endpoint.key, delivered.key, NOW + 11) is None
    assert [] == await delivering(store, endpoint)


async def send_until(store: Store, endpoint: Endpoint, state: Any) -> None:
    """One attempt of the one export that is due."""
    export = await claim_one(store)
    assert endpoint.key == export.endpoint.key
    await store.freeze(export, b"body")
    await store.finish_delivery(export, attempt(), state, None)


async def test_an_attempt_under_way_is_not_doubled(store: Store) -> None:
    """Sending again what is leased makes no second attempt beside it, and a success then stands."""
    endpoint = await add(store, made_endpoint())
    await finished(store, hook=None)
    export = await claim_one(store)
    (delivery,) = await delivering(store, endpoint)
    await store.resend(endpoint.key, delivery.key, NOW + 1)

    assert [] == await claim(store, NOW + 1)
    assert await store.finish_delivery(export, attempt(), "delivered", None)
    assert ["delivered"] == [one.delivery.state for one in await delivering(store, endpoint)]
    assert [] == await claim(store, NOW + 10**9)


async def test_recovering(store: Store) -> None:
    """What failed since a time is due; not what failed before, was delivered, waits, or is another endpoint's."""
    endpoint, other = await add(store, made_endpoint()), await add(store, made_endpoint("e2"))
    await finished(store, "old", hook=None, now_ms=NOW)
    await failed(store, endpoint.key)
    await store.change_endpoint("p", "e2", lambda old: replace(old, disabled_ms=NOW))
    for number in (1, 2):
        await finished(store, f"s{number}", hook=None, now_ms=NOW + number)
    await failed(store, endpoint.key, 2, NOW + 2)
    await finished(store, "waits", hook=None, now_ms=NOW + 10**6)
    gone = await finished(store, "gone", hook=None, now_ms=NOW + 3)
    await failed(store, endpoint.key, 1, NOW + 3)
    await store.erase(gone.key, NOW + 3)

    assert 2 == await store.recover(endpoint.key, NOW + 1, NOW + 4)
    assert {"s1", "s2"} == {export.closing.session_id for export in await claim(store, NOW + 4)}
    assert 1 == await store.recover(endpoint.key, 0, NOW + 4)
    assert 1 == await store.recover(other.key, 0, NOW + 4)


async def test_an_endpoint_that_only_fails(store: Store) -> None:
    """It is disabled when its failures began long enough ago; a success is a new beginning."""
    endpoint = await add(store, made_endpoint())
    await finished(store, "s1", hook=None)
    await failed(store, endpoint.key, now_ms=NOW)
    await finished(store, "s2", hook=None, now_ms=NOW + 5)
    await failed(store, endpoint.key, now_ms=NOW + 5)
    assert NOW == (await store.endpoints("p"))[0].failing_since_ms
    assert not await store.disable_failing(endpoint.key, NOW - 1, NOW + 10)
    await finished(store, "s3", hook=None)
    assert await store.finish_delivery(await claim_one(store), attempt(), "delivered", None)
    assert not await store.disable_failing(endpoint.key, NOW + 100, NOW + 100)
    await finished(store, "s4", hook=None, now_ms=NOW + 7)
    await failed(store, endpoint.key, now_ms=NOW + 7)
    await finished(store, "s5", hook=None, now_ms=NOW + 8)
    assert await store.disable_failing(endpoint.key, NOW + 7, NOW + 10)

    (disabled,) = await store.endpoints("p")
    assert (NOW + 10, "failing", NOW + 7) == (
        disabled.disabled_ms,
        disabled.disabled_reason,
        disabled.failing_since_ms,
    )
    assert [] == await claim(store, NOW + 10)
    assert not await store.disable_failing(endpoint.key, NOW + 7, NOW + 11)


async def test_other_receivers_are_not_disabled_for_failing(store: Store) -> None:
    """The operator's and a session's own are tried as long as sessions end."""
    await store.set_operator_endpoint(OPERATOR, None)
    await finished(store)
    for export in await claim(store):
        await store.finish_delivery(export, attempt(500), "failed", None)
        assert not await store.disable_failing(export.endpoint.key, NOW + 10, NOW + 10)


async def test_deliveries_stand_in_their_order(store: Store) -> None:
    """A session's deliveries are its own, in the order in which they were made."""
    key = await begun(store, given={"webhook": {"url": HOOK}})
    await close_idle(store, key, "n1")
    await begin(store, now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)
    await finished(store, "other")
    waiting = [Delivery(notice_id, HOOK, 103, "pending", []) for notice_id in ("n1", "n2")]

    assert waiting == await store.deliveries(key)


# Lists of sessions


async def test_sessions_are_listed_newest_first(store: Store) -> None:
    """The sessions of a project come newest first, the later made first among those of one time."""
    for name, started in [("a", 1), ("b", 3), ("c", 2), ("d", 2)]:
        await begun(store, name, now_ms=NOW + started)
    await store.create("q", "other", validate_config({}), NOW)

    assert ["b", "d", "c", "a"] == await listed(store)
    assert ["b", "d"] == await listed(store, limit=2)
    assert ["other"] == await listed(store, project="q")
    assert [] == await listed(store, project="r")


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"state": "running"}, ["d", "c", "b"]),
        ({"state": "ended"}, ["a"]),
        ({"state": "erased"}, []),
        ({"user_id": "u1"}, ["c", "a"]),
        ({"user_id": "U1"}, []),
        ({"label": ("tier", "vip")}, ["c", "b"]),
        ({"label": ("tier", "none")}, []),
        ({"label": ("other", "vip")}, []),
        ({"started_after": NOW + 1}, ["d", "c"]),
        ({"started_before": NOW + 1}, ["a"]),
        ({"started_after": NOW, "started_before": NOW + 3}, ["c", "b"]),
        ({"user_id": "u1", "label": ("tier", "vip"), "state": "running"}, ["c"]),
        ({"user_id": "u1", "label": ("tier", "vip"), "state": "ended"}, []),
        ({"after": (NOW + 2, 10**9), "user_id": "u1"}, ["c", "a"]),
        ({"after": (NOW + 2, 0), "user_id": "u1"}, ["a"]),
    ],
)
async def test_lists_are_filtered(store: Store, conditions: dict[str, Any], found: list[str]) -> None:
    """A list holds the sessions for which all of its conditions hold."""
    vip = {"labels": {"tier": "vip"}}
    given: list[dict[str, Any]] = [{"user_id": "u1"}, vip | {"user_id": "u2"}, vip | {"user_id": "u1"}, {}]
    keys = [
        await begun(store, name, each, now_ms=NOW + number)
        for number, (name, each) in enumerate(zip("abcd", given, strict=True))
    ]
    await store.close(keys[0], END, "n", NOW)

    assert found == await listed(store, **conditions)


async def test_a_running_name_is_known_until_its_session_ends(store: Store) -> None:
    """A name counts as running in its own project only, after a change too, and no longer than its session runs."""
    key = await begun(store, "one", {"name": "desk"})
    assert await store.is_name_running("p", "desk")
    assert not await store.is_name_running("q", "desk")
    assert not await store.is_name_running("p", "Desk")
    await send(store, key, update(1, {"name": "door"}))
    assert [False, True] == [await store.is_name_running("p", name) for name in ("desk", "door")]
    await store.close(key, SessionEnding(NOW, "over"), "n1", NOW)
    assert not await store.is_name_running("p", "door")
    await store.erase(await begun(store, "two", {"name": "door"}), NOW)
    assert not await store.is_name_running("p", "door")


async def test_lists_are_counted_over_all_pages(store: Store) -> None:
    """The count is that of the conditions, wherever the page begins and ends; a channel is one of them."""
    for number in range(5):
        await begun(store, f"s{number}", {"channel": "odd" if number % 2 else "even"})
    assert ["s3", "s1"] == await listed(store, channel="odd")
    everything = SessionFilter(project="p", limit=1, after=(NOW, 2))
    asked: list[dict[str, Any]] = [{}, {"channel": "even"}, {"channel": "none"}, {"state": "ended"}]
    counts = [await store.count_sessions(msgspec.structs.replace(everything, **conditions)) for conditions in asked]
    assert [5, 3, 0, 0] == counts


@pytest.mark.parametrize("conditions", [{"user_id": ""}, {"state": ""}, {"label": ("", "")}])
async def test_an_empty_condition_is_one(store: Store, conditions: dict[str, Any]) -> None:
    """A condition that nothing meets lists nothing, also when it is empty."""
    await begun(store, given={"user_id": "u", "labels": {"a": ""}})

    assert [] == await listed(store, **conditions)


async def test_lists_follow_updates(store: Store) -> None:
    """A session is listed by the labels that it has now."""
    key = await begun(store, given={"labels": {"a": "1"}})
    await send(store, key, update(1, {"labels": {"a": None, "b": "2"}}))

    assert ([], ["s"]) == (await listed(store, label=("a", "1")), await listed(store, label=("b", "2")))


async def test_paging_while_sessions_come(store: Store) -> None:
    """Going on after the last one seen gives every session once, also while new ones come."""
    for number in range(11):
        await begun(store, f"s{number}", now_ms=NOW + number // 3)
    wanted = await listed(store)
    seen: list[str] = []
    after: tuple[int, int] | None = None
    while page := await store.streams(SessionFilter(project="p", limit=2, after=after)):
        seen += [stream.id for stream in page]
        after = (page[-1].started_ms, page[-1].key)
        await begun(store, f"new{len(seen)}", now_ms=NOW + 100)

    assert wanted == seen


@pytest.mark.parametrize("key", ODD_NAMES)
async def test_labels_may_have_any_name(store: Store, key: str) -> None:
    """A label is found by exactly its name, whatever characters that is made of."""
    await begun(store, "with", {"labels": {key: "v", "other": "w"}})
    await begun(store, "without", {"labels": {f"{key}x": "v", "a": "v", "other": key}})

    assert ["with"] == await listed(store, label=(key, "v"))
    assert [] == await listed(store, label=(key, "w"))
    assert ["without"] == await listed(store, label=("other", key))


@on_one_store
@given(st.text(max_size=8), st.text(max_size=8))
async def test_any_label_is_found(store: Store, key: str, value: str) -> None:
    """Any name and value of a label find the session that has it, and not one that differs."""
    project = f"p{next(numbers)}"
    await store.create(project, "with", validate_config({"labels": {key: value}}), NOW)
    await store.create(project, "without", validate_config({"labels": {key: value + "x", key + "x": value}}), NOW)

    assert ["with"] == await listed(store, project=project, label=(key, value))


# Reading


async def test_rows_come_in_pages(store: Store) -> None:
    """Entries above a position come in order, at most as many as asked for."""
    key = await begun(store)
    other = await begun(store, "other")
    for seq in range(1, 8):
        await send(store, key, offer(seq))
        await send(store, other, offer(seq))

    assert [1, 2, 3] == [row.position for row in await store.rows(key, 0, 3)]
    assert [4, 5, 6] == [row.position for row in await store.rows(key, 3, 3)]
    assert [7] == [row.position for row in await store.rows(key, 6, 3)]
    assert [] == await store.rows(key, 7, 3)
    assert [] == await store.rows(99, 0, 3)


async def test_snapshots_are_of_a_version(store: Store) -> None:
    """A snapshot is found by its session and fold version, unless it is of too late a position."""
    key, other = await begun(store), await begun(store, "other")
    snapshot = Snapshot(7, 3, b"\x00state")
    await store.save_snapshot(key, snapshot)

    assert snapshot == await store.load_snapshot(key, 3, 7) == await store.load_snapshot(key, 3, 10**9)
    assert await store.load_snapshot(key, 3, 6) is None
    assert await store.load_snapshot(key, 2, 7) is None
    assert await store.load_snapshot(other, 3, 7) is None


async def test_a_later_snapshot_replaces_an_earlier(store: Store) -> None:
    """The snapshot that was saved last is found."""
    key = await begun(store)
    await store.save_snapshot(key, Snapshot(7, 3, b"old"))
    await store.save_snapshot(key, Snapshot(9, 3, b"new"))

    assert Snapshot(9, 3, b"new") == await store.load_snapshot(key, 3, 100)


# Erasing


async def test_nothing_of_an_erased_session_is_readable(store: Store) -> None:
    """After an erase neither the session nor its events, snapshots or deliveries can be read, and nothing waits."""
    stream = await finished(store, "s")
    await store.finish_delivery(await claim_one(store), attempt(), "delivered", None)
    key = await begun(store, "running", {"user_id": "u", "webhook": {"url": HOOK}})
    await send(store, key, offer(1))
    await finished(store, "kept", hook=None)
    for erased in (stream.key, key):
        await store.save_snapshot(erased, Snapshot(1, 1, b"state"))
        await store.erase(erased, NOW + 1)
        await store.save_snapshot(erased, Snapshot(1, 1, b"state"))

        assert [] == await store.rows(erased, 0, 10)
        assert await store.load_snapshot(erased, 1, 10) is None
        assert [] == await store.deliveries(erased)
    assert (None, None) == (await store.stream("p", "s"), await store.stream("p", "running"))
    assert (["kept"], []) == (await listed(store), await listed(store, user_id="u"))
    assert ([], [], None) == (
        await store.due(NOW + 10**12, 10),
        await claim(store, NOW + 10**9),
        await store.next_delivery_ms(),
    )


async def test_sessions_are_found_by_their_keys(store: Store) -> None:
    """By keys the sessions of the project are found, as they are after what was acknowledged, erased ones included."""
    first, second, erased = [await begun(store, name) for name in ("a", "b", "c")]
    await send(store, first, *offers(1, 3))
    await store.erase(erased, NOW)
    found = await store.find_sessions("p", [erased, first, 10**6])
    assert [("a", 3, "running"), ("c", 0, "erased")] == [(one.id, one.position, one.state) for one in found]
    assert [] == await store.find_sessions("other", [first, second])
    assert [] == await store.find_sessions("p", [])


async def test_an_erased_session_does_not_come_back(store: Store) -> None:
    """After an erase every way of writing to the session is refused, or does nothing."""
    key = await begun(store)
    await send(store, key, offer(1))
    await store.erase(key, NOW)

    with pytest.raises(Refused, match="session_erased"):
        await begin(store)
    with pytest.raises(Refused, match="session_erased"):
        await store.create("p", "s", validate_config({}), NOW)
    with pytest.raises(Refused):
        await store.change(key, validate_config({}), b"{}", NOW)
    assert [Outcome(code="session_erased")] * 2 == await send(store, key, *offers(1, 2))
    assert [Outcome(code="session_erased")] == await send(store, key, offer(2), epoch=1)
    assert await store.close(key, END, "n", NOW) is None
    assert await store.close_if_ended(key, [], None, "n", NOW) is None
    await store.silence(key, NOW)
    await store.restart(NOW)
    await store.erase(key, NOW)
    assert [] == await store.rows(key, 0, 10)
    assert await store.stream("p", "s") is None


async def test_erasing_what_is_not_there(store: Store) -> None:
    """Erasing an unknown session does nothing."""
    await store.erase(99, NOW)

    assert [] == await listed(store)


async def test_an_erase_meets_an_attempt_on_its_way(store: Store) -> None:
    """An export whose session is erased meanwhile can be finished by nobody."""
    stream = await finished(store)
    export = await claim_one(store)
    await store.erase(stream.key, NOW)

    assert await store.freeze(export, b"body") is None
    assert not await store.finish_delivery(export, attempt(), "delivered", None)
    assert [] == await store.deliveries(stream.key)


# Keys and identity


async def test_keys_are_kept(store: Store) -> None:
    """Keys are found by their id."""
    key = made_key("k1")
    assert ([], None, False) == (await store.keys(), await store.key("k1"), await store.has_keys())
    await store.add_key(key)
    await store.add_key(made_key("k0", created_ms=NOW + 1))

    assert (key, None, True) == (await store.key("k1"), await store.key("K1"), await store.has_keys())
    assert ["k1", "k0"] == [each.id for each in await store.keys()]


@pytest.mark.parametrize("scopes", [("ingest", "read", "admin"), ("read",), ()])
async def test_keys_keep_their_scopes(store: Store, scopes: tuple[str, ...]) -> None:
    """A key has the scopes that it was made with, none included."""
    key = made_key("k", scopes)
    await store.add_key(key)

    assert key == await store.key("k")


async def test_a_key_is_revoked_once(store: Store) -> None:
    """A revoked key keeps the time when it was revoked first, and still counts as made."""
    await store.add_key(made_key("k"))

    assert await store.revoke_key("k", NOW + 1)
    assert not await store.revoke_key("k", NOW + 2)
    assert not await store.revoke_key("other", NOW + 2)
    assert [replace(made_key("k"), revoked_ms=NOW + 1)] == await store.keys()
    assert await store.has_keys()


async def test_revoked_keys_are_found_among_others(both: tuple[Store, Store]) -> None:
    """Of these ids those that are revoked, also through another handle; one that is unknown is not revoked."""
    one, other = both
    for key_id in ("k1", "k2", "k3"):
        await one.add_key(made_key(key_id))
    assert frozenset() == await one.revoked_keys(["k1", "k2", "k3"])
    await other.revoke_key("k2", NOW)
    await other.revoke_key("k3", NOW)
    assert {"k2"} == await one.revoked_keys(["k1", "k2", "k4", "' or 1=1", "k\0"])
    assert {"k2", "k3"} == await one.revoked_keys({f"k{number}" for number in range(20_000)})
    assert frozenset() == await one.revoked_keys([])


async def test_a_store_knows_itself(both: tuple[Store, Store]) -> None:
    """Incarnation and cursor secret are the store's, the same through every handle, and it begins healthy."""
    one, other = both

    assert (one.incarnation, one.cursor_secret) == (other.incarnation, other.cursor_secret)
    assert one.incarnation
    assert len(one.cursor_secret) >= 16
    assert one.healthy


# Two of everything


async def test_what_one_acknowledges_the_other_reads(both: tuple[Store, Store]) -> None:
    """Whatever was acknowledged through one handle is there through another."""
    one, other = both
    key = await begun(one)
    for seq in range(1, 21):
        writer, reader = (one, other) if seq % 2 else (other, one)
        await send(writer, key, offer(seq))

        assert seq == (await reread(reader, key)).position
        assert [seq] == [row.seq for row in await reader.rows(key, seq - 1, 10)]


async def test_two_make_one_session(both: tuple[Store, Store]) -> None:
    """Of several who create or open a session at once exactly one makes it."""
    made = await asyncio.gather(*(store.create("p", "s", validate_config({}), NOW) for store in both * 5))
    opened = await asyncio.gather(*(begin(store, "t") for store in both * 5))

    assert 1 == [how for _, how in made].count("created")
    assert 1 == len({stream.key for stream, _ in made})
    assert (1, set(range(1, 11))) == (sum(each.created for each in opened), {each.epoch for each in opened})


async def test_two_recorders_of_two_producers(both: tuple[Store, Store]) -> None:
    """Two producers who append at once share the positions without holes, each in its own order."""
    key = await begun(both[0])

    async def record(store: Store, producer: str) -> list[Outcome]:
        batches = [await send(store, key, *offers(seq, seq + 2), producer=producer) for seq in range(1, 61, 3)]
        return [outcome for batch in batches for outcome in batch]

    outcomes = await asyncio.gather(record(both[0], "main"), record(both[1], "asr"))
    taken = [outcome.position for each in outcomes for outcome in each]
    assert set(range(1, 121)) == set(taken)
    assert list(range(1, 121)) == [row.position for row in await both[0].rows(key, 0, 1000)]
    assert {name: list(range(1, 61)) for name in ("main", "asr")} == await producers(both[0], key)


async def test_two_recorders_of_one_producer(both: tuple[Store, Store]) -> None:
    """Of two connections of one producer only the newer one writes from its open on."""
    key = await begun(both[0])
    moment = asyncio.Event()

    async def older() -> list[Outcome]:
        taken = []
        for seq in range(1, 41):
            taken += await send(both[0], key, offer(seq, text="older"), epoch=1)
            if seq == 10:
                moment.set()
        return taken

    async def newer() -> tuple[int, list[Outcome]]:
        await moment.wait()
        opened = await begin(both[1])
        new = [offer(seq, text="newer") for seq in range(opened.next_seq, 51)]
        return opened.next_seq, [(await send(both[1], key, each, epoch=opened.epoch))[0] for each in new]

    old, (first, new) = await asyncio.gather(older(), newer())
    assert first > 10
    assert stored(*range(1, first)) + [Outcome(code="superseded")] * (41 - first) == old
    assert stored(*range(first, 51)) == new
    assert {"main": list(range(1, 51))} == await producers(both[0], key)
    assert ["older"] * (first - 1) + ["newer"] * (51 - first) == [
        event["text"] for event in await journal(both[0], key)
    ]


async def test_two_resends_at_once(both: tuple[Store, Store]) -> None:
    """The same events sent at once through two handles are stored once and acknowledged to both."""
    key = await begun(both[0])
    answers = await asyncio.gather(*(send(store, key, *offers(1, 50)) for store in both * 3))

    assert {"main": list(range(1, 51))} == await producers(both[0], key)
    assert all(is_acknowledged(outcome) for answer in answers for outcome in answer)
    assert 50 == sum(outcome.position is not None for answer in answers for outcome in answer)


async def test_two_outboxes_share_nothing(both: tuple[Store, Store]) -> None:
    """Outboxes that claim at once never get the same export, and together get all."""
    for number in range(20):
        await finished(both[0], f"s{number}", notice_id=f"n{number}")

    claims = await asyncio.gather(*(claim(store, limit=3) for store in both * 4))
    assert sorted(f"n{number}" for number in range(20)) == sorted(
        export.notice_id for exports in claims for export in exports
    )
    assert [] == await claim(both[1])


async def test_two_freeze_one_body(both: tuple[Store, Store]) -> None:
    """Whoever freezes at once, all send the same body."""
    await finished(both[0])
    export = await claim_one(both[0])

    assert 1 == len(set(await asyncio.gather(*(store.freeze(export, b"%d" % id(store)) for store in both * 3))))


async def test_two_sweepers_close_once(both: tuple[Store, Store]) -> None:
    """Sweepers who close the same due session at once make exactly one close and one export."""
    keys = [await begun(both[0], f"s{number}", {"webhook": {"url": HOOK}}) for number in range(5)]
    for key in keys:
        await both[0].silence(key, NOW)
    later = NOW + IDLE_MS

    async def sweep(store: Store, notice_id: str) -> list[Stream | None]:
        return [await store.close(key, None, notice_id, later) for key in await store.due(later, 10)]

    swept = await asyncio.gather(sweep(both[0], "a"), sweep(both[1], "b"), sweep(both[0], "c"), sweep(both[1], "d"))
    assert sorted(keys) == sorted(closed.key for each in swept for closed in each if closed is not None)
    for key in keys:
        assert ["session.closed"] == await kinds(both[1], key)
        assert 1 == len(await both[1].deliveries(key))


async def test_a_close_meets_an_append(both: tuple[Store, Store]) -> None:
    """Of a close and appends at once, every event that was acknowledged stands before the close."""
    key = await begun(both[0])

    async def record() -> int:
        return sum([is_acknowledged((await send(both[0], key, offer(seq)))[0]) for seq in range(1, 41)])

    acknowledged, _ = await asyncio.gather(record(), both[1].close(key, END, "n", NOW))
    assert ["llm.delta"] * acknowledged + ["session.closed"] == await kinds(both[0], key)


# Any order of sending

batches = st.lists(
    st.tuples(st.sampled_from(["main", "asr"]), st.integers(1, 14), st.integers(1, 6), st.booleans()), max_size=30
)


@on_one_store
@given(batches)
async def test_any_order_of_batches_gives_each_seq_once(store: Store, sent: list[tuple[str, int, int, bool]]) -> None:
    """Whatever two producers send and send again, each outcome follows from what is stored, and seqs are 1 to n."""
    session_id = f"s{next(numbers)}"
    key = await begun(store, session_id)
    expected = {"main": 1, "asr": 1}
    position = 0
    for producer, first, count, backwards in sent:
        batch = offers(first, first + count - 1)
        outcomes = []
        for each in (batch := batch[::-1] if backwards else batch):
            assert each.seq is not None
            if each.seq > expected[producer]:
                outcomes.append(Outcome(code="seq_gap", expected=expected[producer]))
            elif each.seq < expected[producer]:
                outcomes.append(Outcome(duplicate=True))
            else:
                position, expected[producer] = position + 1, expected[producer] + 1
                outcomes.append(Outcome(position))
        assert outcomes == await send(store, key, *batch, producer=producer)

    journaled = await producers(store, key)
    assert list(range(1, position + 1)) == [row.position for row in await store.rows(key, 0, 1000)]
    assert {name: list(range(1, following)) for name, following in expected.items() if following > 1} == journaled


@on_one_store
@given(batches)
async def test_batches_at_once_give_each_seq_once(
    both: tuple[Store, Store], sent: list[tuple[str, int, int, bool]]
) -> None:
    """Batches that race through two handles give each producer's seqs 1 to n once, with all that was acknowledged."""
    key = await begun(both[0], f"s{next(numbers)}")
    answers = await asyncio.gather(
        *(
            send(both[number % 2], key, *offers(first, first + count - 1), producer=producer)
            for number, (producer, first, count, _) in enumerate(sent)
        )
    )

    journaled = await producers(both[1], key)
    assert all(list(range(1, len(seqs) + 1)) == seqs for seqs in journaled.values())
    for (producer, first, _, _), outcomes in zip(sent, answers, strict=True):
        acknowledged = {first + number for number, outcome in enumerate(outcomes) if is_acknowledged(outcome)}
        assert acknowledged <= set(journaled.get(producer, []))


# Retention


async def compacted(store: Store, key: int) -> int:
    """Compact a journal to its end; the number of steps."""
    steps = 0
    while await store.compact(key):
        steps += 1
    return steps


async def mixed_call(store: Store, session_id: str = "s", given: dict[str, Any] | None = None) -> int:
    """A closed session of two producers, with runs and single events, a refused one, a declared gap, and large ones."""
    key = await begun(store, session_id, given)
    await send(store, key, *offers(1, 40))
    await begin(store, session_id, producer="asr")
    for first in (1, 3, 5):
        await send(store, key, *offers(first, first + 1), producer="asr")
        await send(store, key, offer(40 + first, text="x" * 500_000), offer(41 + first, NOW + 1))
    await send(store, key, refused(47, "text_too_long"))
    await begin(store, session_id, from_seq=61)
    await send(store, key, *offers(61, 70))
    await close(store, key)
    return key


async def test_a_compacted_journal_reads_as_before(store: Store) -> None:
    """Every page of it has the same bytes, positions, seqs and times, after every step of the compaction."""
    key = await mixed_call(store)
    whole = await store.rows(key, 0, 10**6)
    assert len(whole) == whole[-1].position == 65
    while await store.compact(key):
        assert whole == await store.rows(key, 0, 10**6)
    for after in range(0, len(whole) + 1, 7):
        for limit in (1, 5, 10**6):
            assert whole[after : after + limit] == await store.rows(key, after, limit)
    stream = await store.stream("p", "s")
    assert stream is not None
    assert ("ended", len(whole)) == (stream.state, stream.position)
    assert 0 == await compacted(store, key)


async def test_a_compacted_journal_knows_its_seqs(store: Store) -> None:
    """Resent events are acknowledged again when equal, and told what they were told; others still cannot come in."""
    key = await mixed_call(store)
    await compacted(store, key)
    again = await send(store, key, *offers(1, 40), offer(7, text="other"), refused(47), offer(55), *offers(61, 70))
    assert [Outcome(duplicate=True)] * 40 + [
        Outcome(code="seq_conflict"),
        Outcome(code="text_too_long", duplicate=True),
        Outcome(code="seq_conflict"),
    ] + [Outcome(duplicate=True)] * 10 == again
    assert [Outcome(duplicate=True)] * 6 == await send(store, key, *offers(1, 6), producer="asr")
    assert [Outcome(code="session_ended")] == await send(store, key, offer(71))
    assert [Outcome(code="seq_conflict")] * 13 == await send(store, key, *offers(48, 60))


async def test_a_journal_half_compacted_knows_its_seqs(store: Store) -> None:
    """Also while its rows are on their way."""
    key = await mixed_call(store)
    while await store.compact(key):
        assert [Outcome(duplicate=True)] * 46 + [Outcome(code="seq_conflict")] * 2 == await send(
            store, key, *offers(1, 40), *originals(), *offers(52, 53)
        )


def originals() -> list[Offer]:
    """What `mixed_call` sent between 41 and 46."""
    pairs = [(offer(seq, text="x" * 500_000), offer(seq + 1, NOW + 1)) for seq in (41, 43, 45)]
    return [one for pair in pairs for one in pair]


async def test_sessions_are_compacted_when_they_cannot_be_reopened(store: Store) -> None:
    """Not before `reopen_window` is over; what runs, or runs again, is not compacted."""
    key = await begun(store, "later")
    await send(store, key, offer(1))
    await close_idle(store, key)
    now = (await finished(store, "at once", hook=None)).key
    await begun(store, "running")
    assert [] == await store.find_compactable(NOW + REOPEN_MS - 1, 10)
    assert {key, now} == {*await store.find_compactable(NOW + REOPEN_MS, 10)}
    assert (await begin(store, "later")).reopened
    assert [now] == await store.find_compactable(NOW + 10**12, 10)
    await compacted(store, now)
    assert [] == await store.find_compactable(NOW + 10**12, 10)


async def test_a_session_that_was_compacted_too_early_goes_on(store: Store) -> None:
    """When the clock went back a compacted session can be reopened: it goes on, and is compacted again."""
    key = await begun(store)
    await send(store, key, *offers(1, 30))
    await close_idle(store, key)
    await compacted(store, key)
    assert (await begin(store)).reopened
    assert [Outcome(duplicate=True), Outcome(33)] == await send(store, key, offer(30), offer(31))
    before = await store.rows(key, 0, 100)
    assert list(range(1, 34)) == [row.position for row in before]
    await close(store, key)
    await compacted(store, key)
    assert before == (await store.rows(key, 0, 100))[:-1]
    assert [Outcome(duplicate=True)] * 31 == await send(store, key, *offers(1, 31))


async def test_sessions_expire_their_ttl_after_the_end(store: Store) -> None:
    """Counted from the end, by the store's clock; a session that is reopened does not expire, nor one without ttl."""
    ttl = {"ttl_seconds": 10, "reopen_window": 10**6}
    keys = [await begun(store, name, ttl) for name in ("ended", "reopened", "running")]
    await finished(store, "kept", hook=None)
    await close(store, keys[0], now_ms=NOW + 5_000)
    await close_idle(store, keys[1])
    await begin(store, "reopened")
    assert [] == await store.expired(NOW + 14_999, 10)
    assert not await store.expire(keys[0], NOW + 14_999)
    assert keys[:1] == await store.expired(NOW + 15_000, 10)
    assert [True, False] == [await store.expire(keys[0], NOW + 15_000) for _ in range(2)]
    assert await store.stream("p", "ended") is None
    assert ([], keys[:1]) == (await store.expired(NOW + 10**12, 10), await store.erased(10))
    assert not await store.expire(keys[1], NOW + 10**12)
    assert ["kept", "reopened", "running"] == sorted(await listed(store))


async def test_a_compacted_session_is_erased_whole(store: Store) -> None:
    """Also in the middle of its compaction, which then comes to nothing."""
    for steps in (0, 1, 2, 10):
        key = await mixed_call(store, f"s{steps}")
        for _ in range(steps):
            await store.compact(key)
        await store.erase(key, NOW)
        assert ([], [Outcome(code="session_erased")]) == (
            await store.rows(key, 0, 10),
            await send(store, key, offer(1)),
        )
        assert key not in await store.find_compactable(NOW + 10**12, 10)
        while await store.delete_erased([key]):
            pass
        assert not await store.compact(key)
        assert await store.finish_erased()
        assert [] == await store.rows(key, 0, 10)


# What the operator asks


async def test_figures_count_sessions_that_run_in_all_projects(store: Store) -> None:
    """Open and silent sessions are running, those of other projects too; ended and erased ones are not."""
    assert 0 == (await store.figures(NOW)).running
    open_one = await begun(store, "open")
    await store.silence(await begun(store, "silent"), NOW)
    await store.open("q", "never due", "main", validate_config({"idle_timeout": 0}), None, NOW)
    await store.erase(await begun(store, "erased"), NOW)
    await finished(store, "ended", hook=None)
    assert 3 == (await store.figures(NOW)).running
    await close(store, open_one)
    assert 2 == (await store.figures(NOW)).running


async def test_figures_tell_exports_that_wait_from_those_that_are_due(store: Store) -> None:
    """Leased ones and those of later wait, and are not due; delivered ones do neither. The oldest says since when."""
    await finished(store, "a", notice_id="a")
    await finished(store, "b", notice_id="b")
    figures = await store.figures(NOW + 7)
    assert (2, 2, NOW) == (figures.pending, figures.due, figures.oldest_due_ms)
    first, second = await claim(store)
    figures = await store.figures(NOW)
    assert (2, 0, None) == (figures.pending, figures.due, figures.oldest_due_ms)
    await store.finish_delivery(first, attempt(), "delivered", None)
    await store.finish_delivery(second, attempt(500), "pending", NOW + 1_000)
    assert (1, 0) == ((await store.figures(NOW)).pending, (await store.figures(NOW)).due)
    assert NOW + 1_000 == (await store.figures(NOW + 2_000)).oldest_due_ms


# Users

DOCUMENT = b'{"type":"memory.document","operation":"append","content":"Likes tea."}'


async def test_a_user_s_stream_is_made_once(both: tuple[Store, Store]) -> None:
    """Whoever asks for it first makes it; in another project it is another one."""
    one, other = both
    assert None is await one.user("p", "ann")
    made = await asyncio.gather(*(store.ensure_user("p", "ann", NOW) for store in (one, other, one)))
    assert 1 == len({stream.key for stream in made})
    found = await other.user("p", "ann")
    assert found is not None
    assert ("p", "user", "ann", "running", 0, {}) == (
        found.project, found.kind, found.id, found.state, found.position, found.config,
    )  # fmt: skip
    assert found.key != (await one.ensure_user("q", "ann", NOW)).key
    assert None is await one.user("p", "Ann")


@pytest.mark.parametrize("user_id", [name for name in ODD_NAMES if name])
async def test_a_user_s_id_is_any_text(store: Store, user_id: str) -> None:
    """It is found as it was given."""
    key = (await store.ensure_user("p", user_id, NOW)).key
    found = await store.user("p", user_id)
    assert found is not None
    assert (key, user_id) == (found.key, found.id)


async def test_own_events_are_appended_where_they_are_expected(both: tuple[Store, Store]) -> None:
    """Of several writers at one position one succeeds; the others are told so, and nothing of theirs is stored."""
    key = (await both[0].ensure_user("p", "ann", NOW)).key
    answers = await asyncio.gather(*(store.append_server_event(key, DOCUMENT, 0, NOW) for store in both * 3))
    assert [1] == [answer.position for answer in answers if answer is not None]
    assert None is await both[1].append_server_event(key, DOCUMENT, 7, NOW)
    stored = [(row.position, row.producer, row.seq, row.payload) for row in await both[1].rows(key, 0, 10)]
    assert [(1, None, None, DOCUMENT)] == stored


async def test_a_user_is_no_session(store: Store) -> None:
    """It has a name of its own, is in no list or count, and is never due or closed, after a restart either."""
    user = await store.ensure_user("p", "s", NOW)
    assert None is await store.stream("p", "s")
    session, how = await store.create("p", "s", validate_config({}), NOW)
    assert "created" == how
    assert session.key != user.key
    await store.restart(NOW)
    far = NOW + 10**12
    assert [session.key] == await store.due(far, 10)
    assert ["s"] == await listed(store)
    assert 1 == await store.count_sessions(SessionFilter(project="p"))
    assert [session.key] == [stream.key for stream in await store.find_sessions("p", [user.key, session.key])]
    assert 1 == (await store.figures(NOW)).running
    assert None is await store.close(user.key, None, "n", far)
    assert [] == await store.find_compactable(far, 10)
    found = await store.user("p", "s")
    assert found is not None
    assert ("running", user.key, None) == (found.state, found.key, found.silent_since_ms)


async def test_an_erased_user_may_come_back_as_somebody_new(both: tuple[Store, Store]) -> None:
    """Nothing of the first is readable, or can be written; the second has a stream of its own."""
    one, other = both
    first = await one.ensure_user("p", "ann", NOW)
    await one.append_server_event(first.key, DOCUMENT, 0, NOW)
    await one.save_snapshot(first.key, Snapshot(1, 1, b"state"))
    await other.erase(first.key, NOW)
    assert [None, None] == [await store.user("p", "ann") for store in both]
    assert [] == await other.rows(first.key, 0, 10)
    assert None is await other.load_snapshot(first.key, 1, 10)
    with pytest.raises(Refused, match="unknown_session"):
        await other.append_server_event(first.key, DOCUMENT, 1, NOW)
    second = await other.ensure_user("p", "ann", NOW)
    assert second.key != first.key
    assert 0 == second.position
    await other.erase(second.key, NOW)
    assert None is await other.user("p", "ann")
    assert {first.key, second.key} == set(await other.erased(10))
