"""The life of sessions: who is connected, how they end, fall silent, and come back (design, section 5)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from appends import append
from callers import Caller, Receiver, receiving, until
from producers import JsonObject, Producer, connected, end, producing, said
from services import Serve

from voicemem.app import App
from voicemem.config.secrets import SessionPatch
from voicemem.errors import Refused
from voicemem.runtime import Runtime
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.presence import AWAITED_MS, SWEEP_BATCH, Presence
from voicemem.store.admission import Offer
from voicemem.store.port import Store
from voicemem.store.records import OpenResult, SessionFilter
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.store import MemoryStore
from voicemem.store.streams import END_GRACE_MS, SessionEnding

NOW = 1_778_390_400_000
IDLE: JsonObject = {"idle_timeout": 0.2}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def anything(session_patch: SessionPatch) -> None:
    """Settings that may all be set."""


# The use case, without a server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory:", "sqlite:"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """Two handles on one store, as two nodes have them."""
    path = f"{tmp_path}/db"
    stores: list[Store]
    if request.param == "memory:":
        stores = [MemoryStore()] * 2
    else:
        stores = [SqliteStore(path, exclusive=False) for _ in range(2)]
    yield stores[0], stores[1]
    for store in dict.fromkeys(stores):
        await store.close_store()


@pytest.fixture
def nodes(both: tuple[Store, Store], clock: Clock) -> list[Presence]:
    """Two nodes on one store."""
    numbers = itertools.count()
    return [Presence(Sessions(store, Runtime(clock, lambda: f"id{next(numbers)}"), anything)) for store in both]


@pytest.fixture
def presence(nodes: list[Presence]) -> Presence:
    """One of them."""
    return nodes[0]


async def opened(presence: Presence, session_id: str = "s", producer: str = "main") -> ProducerLease:
    """A line of a connection that has opened a session, as a connection does it."""
    presence.connect("p", session_id, producer)
    one: OpenResult = await presence.sessions.store.open(
        "p", session_id, producer, SessionPatch({}, {}), None, presence.sessions.clock()
    )
    return ProducerLease(one.stream, producer, one.epoch, may_call_out=False)


async def ended(presence: Presence, line: ProducerLease) -> None:
    """Commit a producer's end."""
    offer = Offer(1, presence.sessions.clock(), b'{"type":"session.end","seq":1}', ending=SessionEnding(NOW, "left"))
    await append(presence.sessions.store, line.key, line.producer, line.epoch, [offer], presence.sessions.clock())


async def state(presence: Presence, session_id: str = "s") -> tuple[str, str | None]:
    """State and reason of a session."""
    stream = await presence.sessions.get("p", session_id)
    return stream.state, stream.reason


async def test_a_session_falls_silent_with_its_last_connection(presence: Presence, clock: Clock) -> None:
    """Only when all connections of all producers are gone does silence begin."""
    lines = [await opened(presence, producer=name) for name in ("asr", "llm", "llm")]
    for line in lines:
        assert (await presence.sessions.get("p", "s")).silent_since_ms is None
        await presence.disconnect(line)
    assert clock.now == (await presence.sessions.get("p", "s")).silent_since_ms
    assert {} == presence.connected


async def test_an_open_that_fails_leaves_nobody_connected(presence: Presence) -> None:
    """A connection that is noted and then taken back counts for nothing."""
    presence.connect("p", "s", "main")
    await presence.abandon("p", "s", "main")
    assert {} == presence.connected


async def test_silence_is_over_when_somebody_came_meanwhile(presence: Presence) -> None:
    """A connection that is replaced by another of the same producer is no silence."""
    before = await opened(presence)
    await opened(presence)
    await presence.disconnect(before)
    assert (await presence.sessions.get("p", "s")).silent_since_ms is None


async def test_an_end_waits_for_producers_that_are_connected(presence: Presence, clock: Clock) -> None:
    """The close waits for the others, until they have ended or gone, and not longer than the grace."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    clock.now += END_GRACE_MS - 1
    assert (0, ("running", None)) == (await presence.sweep(), await state(presence))
    await presence.disconnect(llm)
    assert ("ended", "left") == await state(presence)


async def test_an_end_waits_for_producers_whose_connections_broke(presence: Presence, clock: Clock) -> None:
    """They are probably on their way back: the close waits until they have ended, or for the grace."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await presence.disconnect(llm, lost=True)
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    assert (0, ("running", None)) == (await presence.sweep(), await state(presence))
    back = await opened(presence, producer="llm")
    await ended(presence, back)
    await presence.close_when_ended(back)
    assert ("ended", "left") == await state(presence)


async def test_an_end_does_not_wait_for_producers_that_broke_off_long_ago(presence: Presence, clock: Clock) -> None:
    """Who did not come back in time is not expected any more."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await presence.disconnect(llm, lost=True)
    clock.now += AWAITED_MS
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    assert ("ended", "left") == await state(presence)
    await presence.sweep()
    assert {} == presence.awaited


async def test_after_a_start_an_end_waits_for_all_that_were_connected(presence: Presence, clock: Clock) -> None:
    """Their connections broke with the process before, and one of them is the first to be back."""
    await ended(presence, await opened(presence, producer="gone"))
    for name in ("asr", "llm"):
        await opened(presence, producer=name)
    await presence.sessions.store.restart(clock.now)
    again = Presence(
        Sessions(presence.sessions.store, Runtime(clock, presence.sessions.new_id), presence.sessions.check_settings)
    )
    assert 0 == await again.sweep()
    asr = await opened(again, producer="asr")
    await ended(again, asr)
    await again.close_when_ended(asr)
    assert (0, ("running", None)) == (await again.sweep(), await state(again))
    llm = await opened(again, producer="llm")
    await ended(again, llm)
    await again.close_when_ended(llm)
    assert ("ended", "left") == await state(again)


async def test_an_end_waits_no_longer_than_its_grace(presence: Presence, clock: Clock) -> None:
    """A producer that stays connected and never ends does not keep the session open."""
    asr, _ = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await ended(presence, asr)
    clock.now += END_GRACE_MS
    assert (1, ("ended", "left")) == (await presence.sweep(), await state(presence))


async def test_an_end_waits_for_nobody_when_all_have_ended(presence: Presence) -> None:
    """The last of the ends closes at once."""
    lines = [await opened(presence, producer=name) for name in ("asr", "llm")]
    for line in lines:
        assert ("running", None) == await state(presence)
        await ended(presence, line)
        await presence.close_when_ended(line)
    assert ("ended", "left") == await state(presence)


async def test_a_close_wakes_the_outbox(presence: Presence) -> None:
    """Whoever waits for exports hears of every kind of close."""
    line = await opened(presence)
    await ended(presence, line)
    await presence.close_when_ended(line)
    assert presence.sessions.notices_due.is_set()
    presence.sessions.notices_due.clear()
    await opened(presence, "t")
    await presence.sessions.end(await presence.sessions.get("p", "t"), None)
    assert presence.sessions.notices_due.is_set()


async def test_a_sweep_closes_what_is_due_and_nothing_else(presence: Presence, clock: Clock) -> None:
    """Silent presence are closed when their time is over; connected ones are not."""
    await opened(presence, "connected")
    await presence.disconnect(await opened(presence, "gone"))
    clock.now += 59_999
    assert 0 == await presence.sweep()
    clock.now += 1
    assert [1, 0] == [await presence.sweep(), await presence.sweep()]
    assert [("running", None), ("ended", "idle")] == [await state(presence, name) for name in ("connected", "gone")]


async def test_a_sweep_closes_more_than_it_takes_at_once(presence: Presence, clock: Clock) -> None:
    """However many are due, they are closed batch by batch."""
    for number in range(SWEEP_BATCH + 5):
        await presence.sessions.create("p", str(number), {})
    clock.now += 60_000
    assert [SWEEP_BATCH, 5, 0] == [await presence.sweep() for _ in range(3)]


async def test_two_sweepers_close_each_session_once(nodes: list[Presence], clock: Clock) -> None:
    """Whoever comes second finds nothing to do; every journal has one close."""
    for number in range(40):
        await nodes[0].sessions.create("p", str(number), {})
    clock.now += 60_000
    counts = await asyncio.gather(*(node.sweep() for node in nodes * 3))
    assert 40 == sum(counts)
    streams = await nodes[1].sessions.store.streams(SessionFilter(project="p"))
    assert [("ended", 1)] * 40 == [(stream.state, stream.position) for stream in streams]


async def test_a_sweep_meets_a_producer_that_comes_back(nodes: list[Presence], clock: Clock) -> None:
    """Whichever is first, the session runs and the producer can send: an idle close is provisional."""
    for number in range(20):
        await nodes[0].sessions.create("p", str(number), {})
    clock.now += 60_000
    sweeping = asyncio.create_task(nodes[0].sweep())
    await asyncio.gather(*(opened(nodes[1], str(number)) for number in range(20)))
    await sweeping
    assert [("running", None)] * 20 == [await state(nodes[0], str(number)) for number in range(20)]


async def test_settings_that_may_not_be_set_make_no_session(presence: Presence) -> None:
    """Create and change ask first, and leave nothing when the answer is no."""

    def refuse(session_patch: SessionPatch) -> None:
        raise Refused("address_not_allowed")

    stream, _ = await presence.sessions.create("p", "s", {})
    presence.sessions.check_settings = refuse
    with pytest.raises(Refused):
        await presence.sessions.create("p", "t", {})
    with pytest.raises(Refused):
        await presence.sessions.change(stream, {"name": "x"})
    with pytest.raises(Refused, match="unknown_session"):
        await presence.sessions.get("p", "t")
    assert 0 == (await presence.sessions.get("p", "s")).position


# The end of a call, over real connections


@pytest.fixture
async def app(serve: Serve) -> App:
    """An empty service."""
    return await serve()


@pytest.fixture
def api(app: App) -> Caller:
    """A caller of the same service."""
    return Caller(app)


@pytest.fixture
async def asr(app: App) -> AsyncIterator[Producer]:
    """One producer of session "s", with one event."""
    async with producing(app, producer="asr") as producer:
        await producer.store(said(1))
        yield producer


@pytest.fixture
async def llm(app: App, asr: Producer) -> AsyncIterator[Producer]:
    """Another producer of the same session, connected at the same time."""
    async with producing(app, producer="llm") as producer:
        yield producer


async def is_over(api: Caller, session_id: str = "s") -> bool:
    """Whether a session has ended."""
    return bool("ended" == (await api.session(session_id))["state"])


async def over(api: Caller, session_id: str = "s", timeout_s: float = 5.0) -> JsonObject:
    """The session, once it has ended."""
    await until(True, lambda: is_over(api, session_id), timeout_s)
    return await api.session(session_id)


async def kinds(api: Caller, session_id: str = "s") -> list[str]:
    """The types of the events in a session's journal."""
    return [row["event"]["type"] for row in await api.journal(session_id)]


async def waited_ms(api: Caller) -> int:
    """The time between the first end in the journal and the close."""
    times = {row["event"]["type"]: row["received_ms"] for row in reversed(await api.journal())}
    return int(times["session.closed"] - times["session.end"])


async def test_the_only_producers_end_closes_at_once(api: Caller, asr: Producer) -> None:
    """The end is acknowledged like any event, and gives the close its time and reason."""
    await asr.store(end(2, ts=1234, reason="hangup", last_seq=1))
    assert "hangup" == (await over(api, timeout_s=1))["reason"]
    row = (await api.journal())[-1]
    assert (None, None, {"type": "session.closed", "ts": 1234, "reason": "hangup"}) == (
        row["producer"],
        row["seq"],
        row["event"],
    )


async def test_an_end_without_a_time_ends_when_it_came(api: Caller, asr: Producer) -> None:
    """Without `ts` the time of receipt is the close's."""
    await asr.store(end(2))
    await over(api)
    rows = await api.journal()
    assert rows[1]["received_ms"] == rows[2]["event"]["ts"]


async def test_an_end_without_seq_ends(app: App, api: Caller) -> None:
    """A producer that does not count ends its session as well."""
    async with producing(app) as producer:
        await producer.send(said(), end(reason="bye"))
        assert "bye" == (await over(api))["reason"]


@pytest.mark.parametrize("last_seq", [0, 2, 7])
async def test_an_end_that_misses_events_is_refused(api: Caller, asr: Producer, last_seq: int) -> None:
    """`last_seq` is the seq before the end's own; after a mismatch the call goes on, and can end rightly."""
    await asr.send(end(2, last_seq=last_seq))
    await asr.expect_error("last_seq_mismatch", seq=2)
    await asr.store(said(3), end(4, last_seq=3))
    await over(api)
    assert ["asr", "refused", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_nobodys_last_words_are_lost(api: Caller, asr: Producer, llm: Producer) -> None:
    """For 2 s after the first end another producer's events still come into the memory, then the session closes."""
    await asr.store(end(2, ts=99, reason="hangup"))
    await llm.store(said(1, text="Last words.", turn_id=2))
    assert "running" == (await api.session())["state"]
    assert "hangup" == (await over(api))["reason"]
    assert END_GRACE_MS <= await waited_ms(api) < END_GRACE_MS + 1500
    assert ["Line 1.", "Last words."] == [message["content"] for message in await api.contents()]
    await llm.send(said(2))
    await llm.expect_error("session_ended", seq=2)


async def test_when_all_have_ended_nobody_waits(api: Caller, asr: Producer, llm: Producer) -> None:
    """The last end closes at once; the first one's time and reason count."""
    await asr.store(end(2, ts=99, reason="hangup"))
    await llm.store(end(1, ts=55, reason="other"))
    assert "hangup" == (await over(api))["reason"]
    assert await waited_ms(api) < END_GRACE_MS / 2
    assert 99 == (await api.journal())[-1]["event"]["ts"]


async def test_when_the_others_are_gone_nobody_waits(api: Caller, asr: Producer, llm: Producer) -> None:
    """A producer that disconnects without an end is not waited for any longer."""
    await asr.store(end(2))
    await llm.socket.close()
    await over(api)
    assert await waited_ms(api) < END_GRACE_MS / 2


async def test_after_its_own_end_a_producer_is_silent(api: Caller, asr: Producer, llm: Producer) -> None:
    """Its duplicates are acknowledged, its new events refused without a trace; others go on."""
    await asr.store(end(2))
    await asr.store(said(1), end(2))
    for late in (said(3), end(3)):
        await asr.send(late)
        await asr.expect_error("session_ended", seq=3)
    await llm.store(said(1))
    assert ["asr", "session.end", "asr"] == await kinds(api)


async def test_after_the_close_duplicates_are_acknowledged(app: App, api: Caller, asr: Producer) -> None:
    """A producer that never saw its acks can clear its buffer, on its old connection and on a new one."""
    await asr.store(end(2))
    await over(api)
    await asr.store(said(1), end(2))
    async with producing(app, producer="asr") as again:
        await again.store(said(1), end(2))
        await again.send(said(3))
        await again.expect_error("session_ended", seq=3)
    assert ["asr", "session.end", "session.closed"] == await kinds(api)


async def test_an_end_over_http_waits_for_connections(api: Caller, asr: Producer) -> None:
    """A producer that is connected has 2 s for its last words, however the first end came."""
    await api.send(end(1, reason="http"), query="?producer=control")
    assert "running" == (await api.session())["state"]
    await asr.store(said(2), end(3))
    assert "http" == (await over(api))["reason"]
    assert await waited_ms(api) < END_GRACE_MS


async def test_an_end_waits_for_producers_over_http(app: App, api: Caller) -> None:
    """A producer that counts its events has a buffer, also when it can send by requests only."""
    async with producing(app, producer="main") as main:
        await main.store(said(1))
        await api.send(said(1), query="?producer=asr")
        await main.store(end(2))
        assert "running" == (await api.session())["state"]
        await api.send(said(2), end(3), query="?producer=asr")
        assert "ended" == (await over(api))["state"]
    assert ["asr", "asr", "session.end", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_a_producer_that_lost_its_connection_has_its_last_words(app: App, api: Caller) -> None:
    """Its connection breaks, the other ends, and what it sends when it is back is taken."""
    async with producing(app, producer="asr") as asr, producing(app, producer="llm") as llm:
        await llm.store(said(1))
        llm.socket.transport.abort()
        await llm.socket.wait_closed()
        await until(0, lambda: asyncio.sleep(0, app.services.presence.connected["default", "s"]["llm"]))
        await asr.store(end(1))
        async with producing(app, producer="llm") as back:
            await back.store(said(2), end(3))
    assert "ended" == (await over(api))["state"]
    assert ["asr", "session.end", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_an_end_over_rest_waits_for_nobody(api: Caller, asr: Producer) -> None:
    """`POST …/end` closes at once; who is still connected hears of it with the next event."""
    assert "ended" == (await api.end(reason="moderated"))["state"]
    await asr.send(said(2))
    await asr.expect_error("session_ended", seq=2)
    await asr.store(said(1))


@pytest.mark.parametrize("reason", ["idle", "max_duration", "hangup"])
async def test_a_producers_end_is_final(app: App, api: Caller, asr: Producer, reason: str) -> None:
    """Whatever reason it gives, nothing brings the session back."""
    await asr.store(end(2, reason=reason))
    await over(api)
    async with connected(app) as again:
        assert "ended" == (await again.open())["state"]
    assert ["session_ended"] == [error["code"] for error in (await api.send(said(1)))["errors"]]
    assert ["asr", "session.end", "session.closed"] == await kinds(api)


# Silence


async def test_a_session_closes_after_its_last_connection_went(app: App, api: Caller) -> None:
    """The close says `idle`, and closes what was open."""
    async with producing(app, session=IDLE) as producer:
        await producer.store({"type": "llm.delta", "seq": 1, "turn_id": 1, "text": "Let me"})
    assert "idle" == (await over(api))["reason"]
    (message,) = await api.contents()
    assert message["metadata"]["interrupted"]


async def test_a_session_that_nobody_joined_closes(api: Caller) -> None:
    """A session that was only created is silent from its creation."""
    await api.create(**IDLE)
    session = await over(api)
    assert "idle" == session["reason"]
    assert session["ended_at"] - session["started_at"] >= 200


async def test_a_connected_session_is_never_idle(app: App, api: Caller) -> None:
    """As long as any connection is there, silence does not count, whichever went before."""
    async with producing(app, session=IDLE), connected(app) as other:
        await other.open(producer="other")
        await other.socket.close()
        await api.create("later", idle_timeout=0.5)
        await over(api, "later")
        assert "running" == (await api.session())["state"]
    await over(api)


async def test_idle_timeout_0_is_never(api: Caller) -> None:
    """A session may be silent for as long as it likes."""
    await api.create(idle_timeout=0)
    await api.create("other", idle_timeout=0.3)
    await over(api, "other")
    assert "running" == (await api.session())["state"]


async def test_events_over_http_are_heard(api: Caller) -> None:
    """A producer without a websocket keeps its session open by sending."""
    for name in ("s", "silent"):
        await api.create(name, idle_timeout=0.4)
    for seq in itertools.count(1):
        assert [] == (await api.send(said(seq)))["errors"]
        await asyncio.sleep(0.05)
        if await is_over(api, "silent"):
            break
    assert ["asr"] * seq == await kinds(api)
    assert "idle" == (await over(api))["reason"]


async def test_the_timeout_may_change_during_the_call(app: App, api: Caller) -> None:
    """An update of the configuration counts from then on."""
    async with producing(app) as producer:
        await producer.store({"type": "session.update", "seq": 1, **IDLE})
    assert "idle" == (await over(api))["reason"]


async def idle(app: App, api: Caller, **config: object) -> None:
    """A session "s" that was cut off in the middle of a reply, and closed as idle."""
    async with producing(app, session=IDLE | config) as producer:
        await producer.store(said(1), {"type": "llm.delta", "seq": 2, "turn_id": 1, "text": "Let me"})
    await over(api)


async def test_a_producer_that_comes_back_reopens(app: App, api: Caller) -> None:
    """Within the window an open brings the session back as if it had not closed, and the reply goes on."""
    await idle(app, api)
    async with connected(app) as producer:
        ready = await producer.open()
        assert ("running", 3) == (ready["state"], ready["next_seq"])
        await producer.store({"type": "llm.done", "seq": 3, "turn_id": 1, "text": "Let me see."}, end(4))
    assert ["Line 1.", "Let me see."] == [message["content"] for message in await api.contents()]
    types = ["asr", "llm.delta", "session.closed", "session.reopened", "llm.done", "session.end", "session.closed"]
    assert types == await kinds(api)


async def test_a_reopened_session_shows_no_end(app: App, api: Caller) -> None:
    """While it runs again it has neither an end nor a reason."""
    await idle(app, api)
    async with producing(app):
        session = await api.session()
        assert ("running", None, None) == (session["state"], session["reason"], session["ended_at"])
        assert ["Line 1."] == [message["content"] for message in await api.contents()]


async def test_a_new_event_over_http_reopens(app: App, api: Caller) -> None:
    """A duplicate does not bring the session back, a new event does; without a connection it falls silent again."""
    await idle(app, api)
    assert {"next_seq": 3, "errors": []} == await api.send(said(1))
    assert "ended" == (await api.session())["state"]
    assert {"next_seq": 4, "errors": []} == await api.send(said(3))
    assert ["session.closed", "session.reopened", "asr"] == (await kinds(api))[2:5]
    assert "idle" == (await over(api))["reason"]


async def test_after_the_window_nothing_reopens(app: App, api: Caller) -> None:
    """A producer that comes back too late finds the session ended, its duplicates are acknowledged."""
    await idle(app, api, reopen_window=0)
    async with connected(app) as producer:
        assert "ended" == (await producer.open())["state"]
        await producer.store(said(1))
        await producer.send(said(3))
        await producer.expect_error("session_ended", seq=3)
    assert ["session_ended"] == [error["code"] for error in (await api.send(said(3)))["errors"]]
    assert "session.closed" == (await kinds(api))[-1]


async def test_every_close_makes_an_export(serve: Serve) -> None:
    """The receiver hears of the provisional close, and again of the next, each under an id of its own."""
    async with receiving() as receiver:
        app = await serve(webhook_url=receiver.url())
        api = Caller(app)
        await idle(app, api)
        await receiver.wait(1)
        async with producing(app) as producer:
            await producer.store({"type": "llm.done", "seq": 3, "turn_id": 1, "text": "Let me see."}, end(4))
        assert [["Line 1.", "Let me"], ["Line 1.", "Let me see."]] == await noticed(receiver)


async def noticed(receiver: Receiver) -> list[list[str]]:
    """What two notices say, which must be different ones."""
    notices = await receiver.wait(2)
    assert 2 == len({notice.id for notice in notices})
    return [[message["content"] for message in notice.payload["contents"]] for notice in notices]


async def test_the_longest_call_is_closed_while_connected(app: App, api: Caller) -> None:
    """`max_duration` closes whatever is left, and that is final."""
    async with producing(app, session={"max_duration": 0.3}) as producer:
        await producer.store(said(1))
        assert "max_duration" == (await over(api))["reason"]
        await producer.send(said(2))
        await producer.expect_error("session_ended", seq=2)
        assert "ended" == (await producer.open())["state"]


async def test_the_longest_call_may_be_a_silent_one(api: Caller) -> None:
    """A session that is never idle is closed after `max_duration` all the same."""
    await api.create(idle_timeout=0, max_duration=0.3)
    assert "max_duration" == (await over(api))["reason"]
